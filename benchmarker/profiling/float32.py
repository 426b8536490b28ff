"""Which kernels multiply in 32-bit floats, told from their names."""

from __future__ import annotations

import re

# cuBLAS and CUTLASS name the types of a product: sgemm is of float32, and so are f32 operands of an attention kernel.
_SINGLES = re.compile(r"sgemm|_f32_|f32f32|<float, float, float")
_NARROWER = re.compile(r"tf32|bf16|f16|s16816|s1688")
"""With these in its name a kernel accumulates or returns float32, and multiplies something narrower."""


def is_float32(name: str) -> bool:
    """Whether a product or an attention kernel runs in float32, without tensor cores."""
    return bool(_SINGLES.search(name)) and not _NARROWER.search(name)
