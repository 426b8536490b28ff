"""What a loader is: options with types, and a function that turns a checkpoint on disk into a model on a device.

A loader file imports neither torch nor its quantization library at the top, so that a missing library is that one
variant's problem, and checking a config needs none of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from benchmarker.core.errors import MissingLibraryError
from benchmarker.core.packages import installed_version
from benchmarker.schema.base import DType as DType
from benchmarker.schema.base import Plain

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


class Options(Plain):
    """A loader's own options. Every value is a scalar, so that it can be given as `--option key=value`."""


@dataclass(frozen=True)
class Checkpoint:
    """A model on disk: a folder with config.json and safetensors."""

    folder: Path
    model_id: str
    """As the user gave it: a hub id, a folder, or a shipped shape."""
    revision: str | None
    """The hub commit that the files came from."""
    dummy: bool
    """Whether the weights are random."""
    config: dict[str, Any]
    """config.json, parsed."""
    trust_remote_code: bool = False

    @property
    def quantization(self) -> dict[str, Any] | None:
        """The `quantization_config` that the checkpoint carries, if it is quantized already."""
        found = self.config.get("quantization_config")
        return found if isinstance(found, dict) else None


@dataclass(frozen=True)
class Target:
    """Where the model goes, and in which type what is not quantized is kept."""

    device: str
    """As torch names it: `cuda:0` or `cpu`."""
    dtype: DType


class Progress(Protocol):
    """How a long step reports: `step("quantizing layers", 3, 36)`."""

    def step(self, what: str, done: int, total: int) -> None: ...

    def note(self, text: str) -> None: ...


class Silent:
    """Reports nothing."""

    def step(self, what: str, done: int, total: int) -> None: ...

    def note(self, text: str) -> None: ...


@dataclass(frozen=True)
class Loaded:
    """What a loader returns."""

    model: PreTrainedModel
    notes: tuple[str, ...] = ()
    """Goes into the record: see LoadFacts.notes."""


@dataclass(frozen=True)
class PlannedTensor:
    """One tensor of a checkpoint that is yet to be written."""

    name: str
    dtype: str
    """As torch names it: `bfloat16`."""
    shape: tuple[int, ...]
    make: Callable[[torch.Generator], torch.Tensor]
    """Makes the values on the generator's device."""


@dataclass(frozen=True)
class PlannedLinear:
    """One linear layer of a checkpoint that is yet to be written."""

    name: str
    """Of the module: `model.layers.0.mlp.up_proj`."""
    in_features: int
    out_features: int
    bias: bool
    std: float
    """Standard deviation that its weights should have."""


@dataclass(frozen=True)
class Packing:
    """How a loader's format looks on disk, so that a dummy checkpoint of it needs no quantizing."""

    config: Callable[[Any], dict[str, Any]]
    """From the loader's options to config.json's `quantization_config`."""
    tensors: Callable[[PlannedLinear, Any], tuple[PlannedTensor, ...]]
    """From a linear layer and the loader's options to its packed tensors."""


def nothing(options: Any, target: Target) -> None:
    """Checks nothing."""


def as_it_is(checkpoint: Checkpoint, options: Any, target: Target, progress: Progress) -> Checkpoint:  # noqa: ARG001
    """Prepares nothing."""
    return checkpoint


@dataclass(frozen=True)
class Loader:
    """One quantization."""

    name: str
    summary: str
    """For --help: `torchao int8, weight only`."""
    options: type[Options]
    packages: tuple[str, ...]
    """pip names of what it needs beyond torch and transformers."""
    load: Callable[[Checkpoint, Any, Target, Progress], Loaded]
    """Takes an instance of `options`. Raises a BenchmarkerError for what the checkpoint, the device or the installed
    libraries cannot do, where it can before any weight is read."""
    check: Callable[[Any, Target], None] = nothing
    """Refuses what cannot work whatever the checkpoint: a missing library, a device or a type that the format has no
    code for. Called first, so that nothing is downloaded or made in vain."""
    prepare: Callable[[Checkpoint, Any, Target, Progress], Checkpoint] = as_it_is
    """Makes the checkpoint that `load` takes, where quantizing is too much to repeat: done once, cached on disk."""
    reads: tuple[str, ...] = ()
    """`quant_method`s of checkpoints that are quantized already and that it loads as they are."""
    packing: Packing | None = None
    """How a dummy checkpoint looks; None where it holds 16-bit weights that are quantized while loading."""


def install_words(extra: str) -> str:
    """How its libraries are installed. The name alone would fetch somebody else's package from an index."""
    return f"pip install -e '.[{extra}]' in benchmarker's folder"


def require(variant: str, *packages: str) -> None:
    """Check that the pip packages are installed, without importing them.

    Raises:
        MissingLibraryError: One is not.
    """
    for package in packages:
        if installed_version(package) is None:
            raise MissingLibraryError(f"{variant}: the library '{package}' is not installed; {install_words(variant)}")
