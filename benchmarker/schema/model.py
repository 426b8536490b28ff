"""A model and its quantization, for every workload that measures a whole model."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from benchmarker.schema.base import DType, Number, Plain, Positive, Scalar, Whole


class ModelSpec(Plain):
    """Source of the weights."""

    id: Annotated[str, Field(min_length=1)] = "Qwen/Qwen3-4B"
    """A hub id, a folder, or a shape that ships with benchmarker (with load_format dummy)."""
    revision: str | None = None
    """Hub branch, tag or commit."""
    load_format: Literal["auto", "dummy"] = "auto"
    """`dummy` measures random weights in the model's exact shapes: right for time and memory, meaningless as text."""
    dtype: DType = "float16"
    """Type of unquantized weights."""
    trust_remote_code: bool = False
    """Run Python from the model's repository. Requires a revision of 40 hex digits, so that the code cannot change."""
    chat_template: bool = False
    """Wrap text prompts in the model's own chat template."""

    @model_validator(mode="after")
    def _pin_remote_code(self) -> Self:
        if self.trust_remote_code and not re.fullmatch(r"[0-9a-f]{40}", self.revision or ""):
            raise ValueError(
                "trust_remote_code needs a revision of 40 hex digits (--revision), so that the code is pinned"
            )
        return self


class QuantSpec(Plain):
    """Name and options of a quantization."""

    quant: str
    """Quantization of the weights."""
    options: dict[str, Scalar] = Field(default_factory=dict)
    """Options of the quantization."""


class ModelFacts(Plain):
    """Model that was measured."""

    id: str
    """Name as the user gave it."""
    revision: str | None = None
    """Hub commit of the files; None for a folder or random weights."""
    config_sha256: str | None = None
    """SHA-256 of the model's shapes. It distinguishes models of equal names."""
    files_sha256: str | None = None
    """Fingerprint of a folder's files, equal for any path. None for a model from the hub and in older records."""
    load_format: Literal["auto", "dummy"] = "auto"
    dtype: str = "float16"
    """16- or 32-bit type of unquantized weights."""
    parameters: Whole | None = None
    """Number of parameters; shared tensors count once."""
    trust_remote_code: bool = False
    chat_template: bool = False


class TensorTypes(Plain):
    """Storage types of the tensors of a GGUF file."""

    tensors_by_type: dict[str, Whole]
    """Number of tensors by type: `{"Q8_0": 29, "F32": 17}`."""
    weight_bytes_by_type: dict[str, Whole]
    output_type: str
    """Type of the output layer."""
    is_tied: bool
    """Whether the embedding is also the output layer."""


class LoadFacts(Plain):
    """Cost and result of loading."""

    load_s: Number
    """Time until the model is ready on the device, s, including reading from disk."""
    quantize_s: Number | None = None
    """Time of quantizing the checkpoint, now or in an earlier run, s; excluded from `load_s`. None if the checkpoint
    was quantized already, or is quantized while loading."""
    peak_bytes: Whole | None = None
    """Peak memory while loading, bytes: live tensors on a GPU, growth of resident memory on CPU."""
    weight_bytes: Positive
    """Bytes of the unique storages of all parameters and buffers, quantization scales included."""
    parameters: Positive
    """Number of parameters of the architecture; shared ones count once."""
    bits_per_weight: Number
    """8 * weight_bytes / parameters: effective bits, unquantized parts and scales included."""
    quantized_fraction: Number
    """Share of the parameters that is stored in fewer than 16 bits."""
    linear_classes: dict[str, Whole]
    """Number of linear layers by class."""
    weight_classes: dict[str, Whole]
    """Number of weight tensors by class. torchao's layers are plain `Linear`; their weights are not."""
    lm_head_dtype: str
    lm_head_tied: bool
    """Whether the output layer shares its storage with the input embedding."""
    file_types: TensorTypes | None = None
    """Tensor types of the GGUF file from which the model was read. None for a folder."""
    per_gpu_bytes: tuple[Whole, ...] = ()
    """`weight_bytes` of each GPU that shares the model. Empty for one GPU."""
    notes: tuple[str, ...] = ()
    """Notes of the loader for the reader, such as a config of the checkpoint that replaced an option."""
