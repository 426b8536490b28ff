"""A model, and in which quantization it is loaded: what every workload asks for that measures a whole model."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from benchmarker.schema.base import DType, Plain, Scalar


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
