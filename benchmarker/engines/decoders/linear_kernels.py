"""Origin of the kernels that multiply by a model's weights, read from its linear layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from benchmarker.quantization.inspect import is_linear
from benchmarker.schema.model import KernelUse, ProductChoice, Purpose

if TYPE_CHECKING:
    from torch import nn

    from benchmarker.kernels import Replacement

PURPOSES: dict[str, Purpose] = {
    "fuse_qkv_gate_up": "joined_linears",
    "gemv_swiglu": "swiglu",
    "packed_matmul": "packed_rows",
}
"""Purposes of our kernels that are no plain GEMV with one linear's weights."""


def linear_kernels(model: nn.Module, *, compiled: bool) -> tuple[KernelUse, ...]:
    """Count the libraries' linears by class.

    Args:
        compiled: True if inductor writes the kernels of layers of class `Linear`.
    """
    linears = [module for module in model.modules() if is_linear(module)]
    return _by_class(linears, total=len(linears), compiled=compiled)


def native_kernels(model: nn.Module, replacements: Sequence[Replacement]) -> tuple[KernelUse, ...]:
    """Count the linears that each of our kernels replaced, and the libraries' linears that remain."""
    linears = [module for module in model.modules() if is_linear(module)]
    ours = [
        KernelUse(
            purpose=PURPOSES.get(replacement.kernel, "linear"),
            origin="benchmarker",
            name=replacement.kernel,
            covered=len(replacement.modules) if _counts(replacement) else None,
            total=len(linears) if _counts(replacement) else None,
        )
        for replacement in replacements
    ]
    replaced = {id(module) for replacement in replacements for module in replacement.modules}
    rest = [module for module in linears if id(module) not in replaced]
    return (*ours, *_by_class(rest, total=len(linears), compiled=True))


def _counts(replacement: Replacement) -> bool:
    return PURPOSES.get(replacement.kernel, "linear") in ("linear", "packed_rows")


def product_choices(rows: Collection[int]) -> tuple[ProductChoice, ...]:
    """Return the GEMM kernels that this process chose by measuring, for these numbers of rows."""
    from benchmarker.kernels.gemm_autotune import choices

    return tuple(
        ProductChoice(
            form=choice.form,
            rows=choice.rows,
            inputs=choice.inputs,
            outputs=choice.outputs,
            way=choice.way,
            us=choice.us,
        )
        for choice in choices()
        if choice.rows in rows
    )


def _by_class(linears: Sequence[Any], *, total: int, compiled: bool) -> tuple[KernelUse, ...]:
    counts = Counter(type(linear).__name__ for linear in linears)
    return tuple(
        KernelUse(
            purpose="linear",
            origin="inductor" if compiled and name == "Linear" else "library",
            name=name,
            covered=count,
            total=total,
        )
        for name, count in sorted(counts.items())
    )
