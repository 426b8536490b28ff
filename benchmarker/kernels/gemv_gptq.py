"""W4A16 GEMV over GPTQ-packed weights: a vector times a matrix of 4-bit numbers, each word of eight read once.

On NVIDIA's Hopper and newer it starts while the kernel before it ends (programmatic dependent launch) and reads its
weights at once, which nothing in a step writes; for the vector it waits. torch has no way to launch somebody's Triton
kernel like this from compiled code, so the compiler is given an operator that it does not look into.
"""

from typing import Any

import torch
from torch import Tensor

from benchmarker.kernels.pdl import can_start_early
from benchmarker.kernels.triton_if_present import tl, triton

# No `from __future__ import annotations` here: torch reads the operator's types from its annotations.

COLUMNS = 32
"""Outputs of a program of the grid."""
GROUPS_EACH = 4
"""Of a program; programs share the inputs, and what they sum is added up afterwards."""
WARPS = 4
TWO_TO_23 = 0x4B000000
"""The bits of 2**23 as a float. Given to the kernel as a number it does not know: masking and joining are then one
instruction, which has room for one constant."""


IN_A_WORD = 8
LARGEST_GROUP = 512


def supports(linear: Any) -> str | None:
    """None, or why this kernel cannot multiply by a linear's weights."""
    if type(linear).__name__ != "TorchLinear" or linear.bits != 4:
        return "not gptqmodel's TorchLinear in 4 bit"
    if not linear.qweight.is_cuda:
        return "not on a GPU"
    return layout_reason(linear)


def layout_reason(linear: Any) -> str | None:
    """None, or what of gptqmodel's packing this kernel does not know."""
    if linear.qzero_format() != 2 or getattr(linear, "adapter", None) is not None or linear.out_features % IN_A_WORD:
        return "zeros in an older format, an adapter, or outputs that are no multiple of 8"
    group = len(linear.g_idx) // len(linear.scales)
    if group % IN_A_WORD or group & (group - 1) or group > LARGEST_GROUP:
        return "groups of a size that is no power of two from 8 to 512"
    if bool((linear.g_idx == linear.g_idx.new_tensor(range(len(linear.g_idx))) // group).all()):
        return None
    return "groups that do not follow one another (desc_act)"


@triton.jit  # type: ignore[untyped-decorator]
def gemv_gptq_kernel(  # type: ignore[no-untyped-def]
    hidden, words, zeros, scales, sums,
    outputs, groups, two_to_23,
    in_group: tl.constexpr, columns: tl.constexpr, groups_each: tl.constexpr, early: tl.constexpr,
):  # fmt: skip
    """hidden: [groups * in_group * 8]; words: [groups * in_group, outputs]; zeros: [groups, outputs / 8]; scales:
    [groups, outputs]; sums: [grid, outputs]."""
    column = tl.program_id(0) * columns + tl.arange(0, columns)
    inside = column < outputs
    word = tl.arange(0, in_group)
    first = tl.program_id(1) * groups_each
    weights = ()
    for each in tl.static_range(groups_each):
        group = first + each
        is_inside = inside & (group < groups)
        row = group * in_group + word
        packed = tl.load(words + row[:, None] * outputs + column[None, :], mask=is_inside[None, :], other=0)
        scale = tl.load(scales + group * outputs + column, mask=is_inside, other=0.0)
        zero = tl.load(zeros + group * (outputs // 8) + column // 8, mask=is_inside, other=0)
        weights = weights + ((packed, scale, zero),)  # type: ignore[assignment]  # noqa: RUF005
    if early:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    total = tl.zeros([in_group, columns], tl.float32)
    for each in tl.static_range(groups_each):
        packed, scale, zero = weights[each]
        row = (first + each) * in_group + word
        zero = ((zero >> (column % 8 * 4)) & 15).to(tl.float32)
        dot = tl.zeros([in_group, columns], tl.float32)
        sum_of_hidden = tl.zeros([in_group], tl.float32)
        for nibble in tl.static_range(8):
            value = tl.load(hidden + row * 8 + nibble, mask=row < groups * in_group, other=0.0).to(tl.float32)
            sum_of_hidden += value
            # The four bits stay where they are, sixteen to the power of `place` times too large: put into the lowest
            # bits of 2**23 as a float, they need no conversion. There is room for five of them.
            place = nibble if nibble < 5 else nibble - 3
            bits = packed if nibble < 5 else packed >> 12
            number = ((bits & (15 << 4 * place)) | two_to_23).to(tl.float32, bitcast=True) - 8388608.0
            dot += number * (value * (1.0 / (1 << 4 * place)))[:, None]
        total += (dot - zero[None, :] * sum_of_hidden[:, None]) * scale.to(tl.float32)[None, :]
    tl.store(sums + tl.program_id(1) * outputs + column, tl.sum(total, 0), mask=inside)


@torch.library.custom_op("benchmarker::gemv_gptq", mutates_args=())
def gemv_gptq(hidden: Tensor, words: Tensor, zeros: Tensor, scales: Tensor) -> Tensor:
    """Weights that were written just before on the same device must be waited for by the caller.

    Args:
        hidden: [in].
        words: [in / 8, out], 32 bits: consecutive inputs from the lowest bits up.
        zeros: [groups, out / 8], 32 bits, packed likewise.
        scales: [groups, out].

    Returns:
        [parts, out] in 32 bits, to be summed over the parts.
    """
    count, outputs = words.shape
    groups = scales.shape[0]
    sums = _room(hidden, scales)
    early = can_start_early(hidden.device)
    with torch.cuda.device_of(sums):
        gemv_gptq_kernel[(triton.cdiv(outputs, COLUMNS), len(sums))](
            hidden.contiguous(), words, zeros, scales, sums, outputs, groups, TWO_TO_23,
            in_group=count // groups, columns=COLUMNS, groups_each=GROUPS_EACH, early=early, num_warps=WARPS,
            **({"launch_pdl": True} if early else {}),
        )  # fmt: skip
    return sums


def unpacked(words: Tensor, zeros: Tensor, scales: Tensor) -> Tensor:
    """The matrix itself, [in, out] in the type of the scales, for products with many rows.

    In torch's own operators, of which the compiler makes one kernel. Arguments as for `gemv_gptq`.
    """
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=words.device)
    groups, outputs = scales.shape
    numbers = (words.unsqueeze(1) >> shifts.view(1, -1, 1)) & 15
    zero = ((zeros.unsqueeze(2) >> shifts) & 15).view(groups, 1, outputs)
    weights = (numbers.view(groups, -1, outputs) - zero).to(scales.dtype) * scales.unsqueeze(1)
    return weights.view(-1, outputs)


@gemv_gptq.register_fake
def _shape(hidden: Tensor, words: Tensor, zeros: Tensor, scales: Tensor) -> Tensor:  # noqa: ARG001
    return _room(hidden, scales)


def _room(hidden: Tensor, scales: Tensor) -> Tensor:
    """Memory for the sums of each part, [parts, out]."""
    groups, outputs = scales.shape
    return hidden.new_empty((-(-groups // GROUPS_EACH), outputs), dtype=torch.float32)
