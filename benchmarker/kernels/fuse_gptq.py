"""GPTQ's linears of one input as one.

In GPTQ's words the outputs lie side by side, so that linears are joined column by column, and each one's words, zeros
and scales become columns of the whole. What multiplies by packed words takes the whole; SwiGLU's product of one row
takes the columns of gate and up. gptqmodel's fastest kernel takes no columns of a larger matrix, so that its own
forward, outside of compiled code, is given copies for the time of a call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from benchmarker.kernels.forward_override import with_forward
from benchmarker.kernels.packed_products import most_packed_rows
from benchmarker.kernels.tensor_gemv import OUTPUTS_STEP

PACKED = ("qweight", "qzeros", "scales")
"""A linear's tensors with its outputs in columns."""


def join_gptq(linears: Sequence[Any]) -> nn.Module | None:
    """One linear with the words of all; each linear's own become columns of it.

    None where groups, zeros, types or biases differ, where columns would begin at no multiple of 16 bytes, and where
    several rows are no packed product: those go to the library, with a copy each time.
    """
    first = linears[0]
    if len({_kind(linear) for linear in linears}) > 1 or first.packed_form is None:
        return None
    if any(linear.out_features % OUTPUTS_STEP for linear in linears):
        return None
    joined: Any = with_forward(nn.Module, type(first).forward)()
    joined.in_features, joined.packed_form = first.in_features, first.packed_form
    joined.out_features = sum(linear.out_features for linear in linears)
    for name in (*PACKED, "bias"):
        parts: list[Any] = [getattr(linear, name) for linear in linears]
        joined.register_buffer(name, None if parts[0] is None else _join(parts))
    joined.most_packed_rows = most_packed_rows(joined, first.packed_form)
    for linear in linears:
        linear.own_class = with_forward(linear.own_class, _library_forward)
    whole: nn.Module = joined
    return whole


def _join(parts: Sequence[Tensor]) -> Tensor:
    """The parts side by side; each becomes columns of the whole."""
    whole = torch.cat([part.data for part in parts], dim=-1)
    for part, columns in zip(parts, whole.split([part.shape[-1] for part in parts], dim=-1), strict=True):
        part.data = columns
    return whole


def separate_gptq(linear: Any) -> None:
    """Give a linear that was joined words of its own again, side by side."""
    for name in PACKED:
        part: Tensor = getattr(linear, name)
        part.data = part.data.contiguous()
    linear.own_class = linear.own_class.__bases__[0]


def _kind(linear: Any) -> tuple[object, ...]:
    """What joined linears have in common."""
    return (
        type(linear), linear.packed_form, linear.bias is None, len(linear.qweight), len(linear.scales),
        linear.scales.dtype, linear.scales.device,
    )  # fmt: skip


def _library_forward(linear: Any, hidden: Tensor) -> Tensor:
    """gptqmodel's own forward, on words that lie side by side as before."""
    parts: list[Tensor] = [getattr(linear, name) for name in PACKED]
    columns = [part.data for part in parts]
    try:
        for part in parts:
            part.data = part.data.contiguous()
        result: Tensor = linear.own_class.original_forward(linear, hidden)
    finally:
        for part, own in zip(parts, columns, strict=True):
            part.data = own
    return result
