"""W4A16 GEMV over GPTQ-packed weights: a matrix of 4-bit numbers times a vector, each word of eight read once.

On NVIDIA's Hopper and newer the kernel starts while the one before it ends (programmatic dependent launch). It reads
its weights at once, as no step writes them, and waits for the vector. Compiled code cannot launch a Triton kernel so,
therefore the compiler is given an operator that it does not look into.
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
"""Groups of inputs of a program of the grid. Each program sums its groups; the sums are added up afterwards."""
WARPS = 4
TWO_TO_23 = 0x4B000000
"""The bits of 2**23 as a float. It is an argument of the kernel, not a constant, so that masking and joining are one
instruction, which has room for one constant."""


IN_A_WORD = 8
LARGEST_GROUP = 512


def supports(linear: Any) -> str | None:
    """Why this kernel cannot multiply by a linear's weights; None where it can."""
    if type(linear).__name__ != "TorchLinear" or linear.bits != 4:
        return "not gptqmodel's TorchLinear in 4 bit"
    if not linear.qweight.is_cuda:
        return "not on a GPU"
    return layout_reason(linear)


def layout_reason(linear: Any) -> str | None:
    """What of a linear's packing by gptqmodel this kernel does not know; None where it knows all."""
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
    """The sums of hidden @ ((numbers - zeros) * scales), part by part of the inputs.

    The caller must wait for weights that were written just before on the same device: the kernel does not.

    Args:
        hidden: [in].
        words: The weights' numbers, [in / 8, out], int32: eight consecutive inputs each, from the lowest bits up.
        zeros: The zero points, [groups, out / 8], int32: eight consecutive outputs each, from the lowest bits up.
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
    """The unpacked matrix, [in, out] in the type of the scales, by torch's own operators.

    `unpack_gptq` makes the same by one kernel on a GPU. Arguments as of `gemv_gptq`.
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
