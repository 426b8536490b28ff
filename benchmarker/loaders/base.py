"""What a loader is: options with types, and a function that turns a checkpoint on disk into a model on a device.

A loader file imports neither torch nor its quantization library at the top, so that a missing library is that one
variant's problem, and checking a config needs none of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from benchmarker.errors import MissingLibraryError
from benchmarker.plain import Plain

if TYPE_CHECKING:
    from transformers import PreTrainedModel

DType = Literal["float16", "bfloat16", "float32"]


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
    packed: bool = False
    """Whether a dummy checkpoint holds packed tensors instead of 16-bit ones."""


def require(variant: str, *packages: str) -> None:
    """Check that the pip packages are installed, without importing them.

    Raises:
        MissingLibraryError: One is not.
    """
    from importlib.metadata import PackageNotFoundError, version

    for package in packages:
        try:
            version(package)
        except PackageNotFoundError:
            raise MissingLibraryError(
                f"{variant}: the library '{package}' is not installed; pip install 'benchmarker[{variant}]'"
            ) from None
