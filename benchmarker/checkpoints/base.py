"""Checkpoint on disk, device and dtype of its model, and the requirements of the quantization that loads it."""

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
    """Model on disk: a folder with config.json and safetensors, or a GGUF file."""

    folder: Path  # Folder, or the GGUF file itself.
    model_id: str  # Name as given by the user: a hub id, a folder, or a shipped shape.
    revision: str | None  # Hub commit; None for local files.
    dummy: bool  # True if the weights are random.
    config: dict[str, Any]  # Parsed config.json, or the shapes of a GGUF file under the same keys.
    is_text_part: bool = False  # True if `config` is the text part of a multimodal model's config.json.
    trust_remote_code: bool = False
    has_gguf_tokenizer: bool = True  # False for a GGUF file without a tokenizer.
    fused_experts: tuple[str, ...] = ()  # Names of the fused experts' weights that the quantization covers.

    @property
    def is_gguf(self) -> bool:
        return self.folder.suffix == GGUF_SUFFIX

    @property
    def location(self) -> tuple[Path, dict[str, str]]:
        """Arguments of transformers' `from_pretrained`: the folder, and `gguf_file` for a GGUF file."""
        return (self.folder.parent, {"gguf_file": self.folder.name}) if self.is_gguf else (self.folder, {})

    @property
    def weight_file_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.folder.glob("*.safetensors"))

    @property
    def quantization(self) -> dict[str, Any] | None:
        """`quantization_config` of the checkpoint, or None if it is not quantized."""
        quantization = self.config.get("quantization_config")
        return quantization if isinstance(quantization, dict) else None


@dataclass(frozen=True)
class Target:
    """Device of the model, and type of the tensors that are not quantized."""

    device: str  # torch's name: `cuda:0` or `cpu`.
    dtype: DType
    gpus: int = 1  # Number of GPUs that share the model, starting at `device`.
    split: Split = "tensors"


class Progress(Protocol):
    """Progress reports of a long step: `step("quantizing layers", 3, 36)`."""

    def step(self, what: str, finished: int, total: int) -> None: ...

    def note(self, text: str) -> None: ...


class Silent:
    def step(self, what: str, finished: int, total: int) -> None: ...

    def note(self, text: str) -> None: ...


Fill = Callable[["torch.Tensor", "torch.Generator"], "torch.Tensor"]


@dataclass(frozen=True)
class PlannedTensor:
    name: str
    meta: torch.Tensor  # Shape and type, on torch's meta device.
    fill: Fill  # Returns the values for an empty tensor of this shape and type.


@dataclass(frozen=True)
class PlannedLinear:
    name: str  # Name of the module: `model.layers.0.mlp.up_proj`.
    in_features: int
    out_features: int
    std: float  # Standard deviation of the weights.


@dataclass(frozen=True)
class Packing:
    """Storage format of a quantization, used to write a dummy checkpoint without quantizing."""

    config: Callable[[Any], dict[str, Any]]  # Maps the loader's options to `quantization_config`.
    tensors: Callable[[PlannedLinear, Any], tuple[PlannedTensor, ...]]
    """Maps a linear layer and the loader's options to its packed tensors, without the bias."""


@dataclass(frozen=True)
class QuantizationNeeds:
    packages: tuple[str, ...] = ()  # Libraries that loading imports.
    packing: Packing | None = None  # Format of a dummy checkpoint; None for 16-bit weights.
    options: Any = None  # Options of the quantization, passed to `packing`.
