"""A model, and in which quantization it is loaded: what every workload asks for that measures a whole model."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from benchmarker.schema.base import DType, Number, Plain, Positive, Scalar, Whole


class ModelSpec(Plain):
    """Where the weights come from."""

    id: Annotated[str, Field(min_length=1)] = "Qwen/Qwen3-4B"
    """A hub id, a folder, or a shape that ships with benchmarker (with load_format dummy)."""
    revision: str | None = None
    """Hub branch, tag or commit."""
    load_format: Literal["auto", "dummy"] = "auto"
    """`dummy` measures random weights in the model's exact shapes: right for time and memory, meaningless as text."""
    dtype: DType = "float16"
    """Type of what is not quantized."""
    trust_remote_code: bool = False
    """Run Python from the model's repository. Needs a revision of 40 hex digits: code that cannot change underneath."""
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
    """A quantization by its name, and its options. The registry of quantizations says whether there are such."""

    quant: str
    """Quantization of the weights."""
    options: dict[str, Scalar] = Field(default_factory=dict)
    """The quantization's own."""


class ModelFacts(Plain):
    """Which model was measured."""

    id: str
    """As the user gave it."""
    revision: str | None = None
    """The hub commit that the files came from; None for a folder or a dummy."""
    config_sha256: str | None = None
    """Of the model's shapes, so that equal names with different shapes do not pass as equal."""
    files_sha256: str | None = None
    """Fingerprint of the files, where the model is a folder or a file: the same by any path. None for a model from the
    hub, and in older records."""
    load_format: Literal["auto", "dummy"] = "auto"
    dtype: str = "float16"
    """The 16- or 32-bit type of what is not quantized."""
    parameters: Whole | None = None
    """Each shared tensor counted once."""
    trust_remote_code: bool = False
    chat_template: bool = False


class TensorTypes(Plain):
    """How the tensors of a GGUF file are stored."""

    tensors_by_type: dict[str, Whole]
    """How many there are of each type: `{"Q8_0": 29, "F32": 17}`."""
    weight_bytes_by_type: dict[str, Whole]
    output_type: str
    """Of the output layer."""
    is_tied: bool
    """Whether the embedding is the output layer too."""


class LoadFacts(Plain):
    """What loading cost, and what it made."""

    load_s: Number
    """From the call until the model is on the device, ready to generate. Reading from disk is in it."""
    quantize_s: Number | None = None
    """How long quantizing the checkpoint took when that was done here, now or in an earlier run; it is not in
    `load_s`. None where the checkpoint was found quantized, or is quantized while loading."""
    peak_bytes: Whole | None = None
    """Most bytes while loading: live tensors on a GPU, growth of the resident memory on CPU. Older records have all of
    the process's resident memory there."""
    weight_bytes: Positive
    """Unique storages of all parameters and buffers, with the scales that quantization adds."""
    parameters: Positive
    """Of the architecture: a packed weight counts as what it was packed from, a shared one once."""
    bits_per_weight: Number
    """8 * weight_bytes / parameters: the effective width, unquantized parts and scales included."""
    quantized_fraction: Number
    """Share of the parameters that is stored in fewer than 16 bits."""
    linear_classes: dict[str, Whole]
    """Class of each linear layer, with how many there are."""
    weight_classes: dict[str, Whole]
    """Class of each linear layer's weight tensor: torchao's linears are plain `Linear`, their weights are not."""
    lm_head_dtype: str
    lm_head_tied: bool
    """Whether the output layer shares its storage with the input embedding."""
    file_types: TensorTypes | None = None
    """Of the GGUF file that the model was read from; the fields above are of what loading made of it. None for a
    folder."""
    per_gpu_bytes: tuple[Whole, ...] = ()
    """Of `weight_bytes`, what each of several GPUs that share the model holds. Empty for one."""
    notes: tuple[str, ...] = ()
    """What the loader wants read, such as a checkpoint's own config that won over an option."""
