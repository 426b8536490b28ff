"""The products of a decode step of one sequence, each one kernel with what stands before and behind it.

Linears of one input are one product: `fuse_qkv_gate_up` has made one matrix of them. GPTQ's kernel also takes matrices
that lie apart, and for SwiGLU the columns of gate and up in theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from torch import Tensor

from benchmarker.kernels import gemv_dense, gemv_gptq, gemv_nf4
from benchmarker.kernels.gemv_ends import Ends
from benchmarker.kernels.gemv_gptq import Matrix
from benchmarker.kernels.replace_linears import kernel_of


class Product(Protocol):
    """Linears of one input as one kernel."""

    def __call__(self, hidden: Tensor, *, ends: Ends) -> Tensor:
        """From a vector, [in], and what is computed besides, to the outputs of all linears in one vector."""


GPTQ_STEP = 32
"""Outputs of all but the last of several matrices that lie apart are a multiple of it."""


def product_of(linears: Sequence[Any]) -> Product | None:
    """The product of linears with one input, in this order; None where no single kernel makes it."""
    kernels = {kernel_of(linear) for linear in linears}
    if len(kernels) > 1 or None in kernels or any(linear.bias is not None for linear in linears):
        return None
    if kernels == {"gemv_gptq"}:
        return _gptq(linears)
    linear = _whole(linears)
    if linear is None:
        return None
    if kernels == {"gemv_nf4"}:
        state = linear.weight.quant_state
        return partial(gemv_nf4.launch, packed=linear.weight, scales=state.absmax, numbers=state.code)
    weights, scales = gemv_dense.as_rows(linear.weight)
    return partial(gemv_dense.launch, weights=weights, scales=scales)


def _gptq(linears: Sequence[Any]) -> Product | None:
    layouts = {(len(linear.qweight), len(linear.scales), linear.scales.dtype) for linear in linears}
    whole = _whole(linears)
    if len(layouts) > 1 or (whole is None and any(linear.out_features % GPTQ_STEP for linear in linears[:-1])):
        return None
    matrices = _matrices(linears if whole is None else [whole])
    # Columns of a larger matrix that are not all of it, or not in its order.
    if not all(matrix.words.is_contiguous() for matrix in matrices):
        return None
    return partial(_gptq_product, matrices=matrices, gate_up=_matrices(linears))


def _matrices(linears: Sequence[Any]) -> list[Matrix]:
    are_zeros_read = any(linear.packed_form != "int4 by group" for linear in linears)
    return [Matrix(linear.qweight, linear.qzeros if are_zeros_read else None, linear.scales) for linear in linears]


def _gptq_product(hidden: Tensor, *, ends: Ends, matrices: Sequence[Matrix], gate_up: Sequence[Matrix]) -> Tensor:
    """A product of one or several matrices, or of gate and up for SwiGLU, which may be columns of one matrix."""
    return gemv_gptq.launch(hidden, gate_up if ends.swiglu else matrices, ends)


def _whole(linears: Sequence[Any]) -> Any | None:
    """The linear that has the weights of all of these, and of no others, in this order; None where there is none."""
    if len(linears) == 1:
        return linears[0]
    parts: list[Any] = [getattr(linear, "fused_slice", None) for linear in linears]
    if None in parts or any(part.fused is not parts[0].fused for part in parts):
        return None
    starts = [part.start for part in parts]
    is_all = starts[0] == 0 and parts[-1].is_last and starts == sorted(starts)
    has_all = sum(linear.out_features for linear in linears) == parts[0].fused.linear.out_features
    return parts[0].fused.linear if is_all and has_all else None
