"""What a checkpoint is, where its model goes, and what a quantization says of the checkpoints that it loads.

Nothing here knows which quantizations there are: finding a model is handed a `Form`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from benchmarker.schema.base import DType, Split

if TYPE_CHECKING:
    import torch


GGUF_SUFFIX = ".gguf"


@dataclass(frozen=True)
class Checkpoint:
    """A model on disk: a folder with config.json and safetensors, or a GGUF file."""

    folder: Path
    """Of a GGUF file, the file itself."""
    model_id: str
    """As the user gave it: a hub id, a folder, or a shipped shape."""
    revision: str | None
    """The hub commit that the files came from."""
    dummy: bool
    """Whether the weights are random."""
    config: dict[str, Any]
    """config.json, parsed; of a GGUF file, the shapes that it states, by the same names."""
    is_text_part: bool = False
    """True if `config` is the text part of a multimodal model's config.json."""
    trust_remote_code: bool = False

    @property
    def is_gguf(self) -> bool:
        """Whether it is a GGUF file instead of a folder."""
        return self.folder.suffix == GGUF_SUFFIX

    @property
    def quantization(self) -> dict[str, Any] | None:
        """The `quantization_config` that the checkpoint carries, if it is quantized already."""
        quantization = self.config.get("quantization_config")
        return quantization if isinstance(quantization, dict) else None


@dataclass(frozen=True)
class Target:
    """Where the model goes, and in which type what is not quantized is kept."""

    device: str
    """As torch names it: `cuda:0` or `cpu`."""
    dtype: DType
    gpus: int = 1
    """How many share the model, from this device on."""
    split: Split = "tensors"
    """How they share it."""


class Progress(Protocol):
    """How a long step reports: `step("quantizing layers", 3, 36)`."""

    def step(self, what: str, finished: int, total: int) -> None: ...

    def note(self, text: str) -> None: ...


class Silent:
    """Reports nothing."""

    def step(self, what: str, finished: int, total: int) -> None: ...

    def note(self, text: str) -> None: ...


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


def any_stored(model_id: str, config: dict[str, Any]) -> None:
    """Refuses no checkpoint."""


@dataclass(frozen=True)
class Form:
    """What finding a model needs to know of the quantization that will load it."""

    packages: tuple[str, ...] = ()
    """Libraries that loading imports."""
    check_stored: Callable[[str, dict[str, Any]], None] = any_stored
    """Takes the model's name and config.json. Raises a BenchmarkerError for a checkpoint that is quantized already, in
    a way that this quantization does not read."""
    packing: Packing | None = None
    """How a dummy checkpoint looks; None where it holds 16-bit weights."""
    options: Any = None
    """What `packing` takes: the quantization's own options."""
