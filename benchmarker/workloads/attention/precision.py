"""How float32 products are computed: as IEEE says, or in TF32 on NVIDIA's tensor cores.

`torch.set_float32_matmul_precision` is the setting that cuBLAS and inductor both read, in torch 2.8 to 2.13. The newer
`torch.backends.cuda.matmul.fp32_precision` alone makes older readers inside torch fail for a mix of the two; here it
is read back as the proof.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from benchmarker.workloads.attention.spec import DType

MatmulPrecision = Literal["ieee", "tf32"]


@contextmanager
def matmul_precision(dtype: DType) -> Iterator[MatmulPrecision | None]:
    """Set it while the context lasts, and say what torch then reports; None for types that it does not concern."""
    import torch

    if dtype not in ("float32", "tf32"):
        yield None
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    try:
        yield "tf32" if _is_tf32() else "ieee"
    finally:
        torch.set_float32_matmul_precision(before)


def _is_tf32() -> bool:
    import torch

    matmul = torch.backends.cuda.matmul
    if hasattr(matmul, "fp32_precision"):
        return bool(matmul.fp32_precision == "tf32")
    return bool(matmul.allow_tf32)
