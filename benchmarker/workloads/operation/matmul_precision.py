"""Precision of float32 products: IEEE single precision, or TF32 on NVIDIA's tensor cores.

cuBLAS and inductor both read `torch.set_float32_matmul_precision` in torch 2.8 to 2.13. Setting only the newer
`torch.backends.cuda.matmul.fp32_precision` makes older readers inside torch fail, so it serves here as the proof only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

MatmulPrecision = Literal["ieee", "tf32"]


@contextmanager
def matmul_precision(dtype: str) -> Iterator[MatmulPrecision | None]:
    """Set the precision of a type while the context is open, and yield the precision that torch reports.

    Yields None for 16-bit types, which the setting does not concern.
    """
    import torch

    if dtype not in ("float32", "tf32"):
        yield None
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    try:
        matmul = torch.backends.cuda.matmul
        is_tf32 = matmul.fp32_precision == "tf32" if hasattr(matmul, "fp32_precision") else matmul.allow_tf32
        yield "tf32" if is_tf32 else "ieee"
    finally:
        torch.set_float32_matmul_precision(before)
