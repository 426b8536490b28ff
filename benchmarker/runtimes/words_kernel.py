"""A vector times GPTQ's packed 4-bit words, as one kernel that reads each word once.

Imported only where there is a GPU, since torch brings Triton only there.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

# No `from __future__ import annotations` here: torch reads the operator's types from its annotations.

COLUMNS = 64
"""Outputs of a program of the grid."""
MOST_PARTS = 16
"""Programs that share the inputs, while each has no more than four groups; what they sum is added up afterwards."""
WARPS = 4
TWO_TO_23 = 0x4B000000
"""The bits of 2**23 as a float. Given to the kernel as a number it does not know: masking and joining are then one
instruction, which has room for one constant."""


@triton.jit  # type: ignore[untyped-decorator]
def words_kernel(  # type: ignore[no-untyped-def]
    hidden, words, zeros, scales, made,
    outputs, groups, two_to_23,
    in_group: tl.constexpr, columns: tl.constexpr, groups_each: tl.constexpr,
):  # fmt: skip
    """hidden: [groups * in_group * 8]; words: [groups * in_group, outputs]; zeros: [groups, outputs / 8]; scales:
    [groups, outputs]; made: [grid, outputs]."""
    column = tl.program_id(0) * columns + tl.arange(0, columns)
    inside = column < outputs
    word = tl.arange(0, in_group)
    total = tl.zeros([in_group, columns], tl.float32)
    for each in tl.static_range(groups_each):
        group = tl.program_id(1) * groups_each + each
        known = inside & (group < groups)
        row = group * in_group + word
        packed = tl.load(words + row[:, None] * outputs + column[None, :], mask=known[None, :], other=0)
        scale = tl.load(scales + group * outputs + column, mask=known, other=0.0).to(tl.float32)
        zero = tl.load(zeros + group * (outputs // 8) + column // 8, mask=known, other=0)
        zero = ((zero >> (column % 8 * 4)) & 15).to(tl.float32)
        dot = tl.zeros([in_group, columns], tl.float32)
        sum_of_hidden = tl.zeros([in_group], tl.float32)
        for at in tl.static_range(8):
            value = tl.load(hidden + row * 8 + at, mask=row < groups * in_group, other=0.0).to(tl.float32)
            sum_of_hidden += value
            # The four bits stay where they are, sixteen to the power of `place` times too large: put into the lowest
            # bits of 2**23 as a float, they need no conversion. There is room for five of them.
            place = at if at < 5 else at - 3
            bits = packed if at < 5 else packed >> 12
            number = ((bits & (15 << 4 * place)) | two_to_23).to(tl.float32, bitcast=True) - 8388608.0
            dot += number * (value * (1.0 / (1 << 4 * place)))[:, None]
        total += (dot - zero[None, :] * sum_of_hidden[:, None]) * scale[None, :]
    tl.store(made + tl.program_id(1) * outputs + column, tl.sum(total, 0), mask=inside)


@triton_op("benchmarker::words_times", mutates_args=())
def words_times(hidden: Tensor, words: Tensor, zeros: Tensor, scales: Tensor) -> Tensor:
    """Args:
        hidden: [in].
        words: [in / 8, out], 32 bits: consecutive inputs from the lowest bits up.
        zeros: [groups, out / 8], 32 bits, packed likewise.
        scales: [groups, out].

    Returns:
        [parts, out] in 32 bits, to be summed over the parts.
    """
    count, outputs = words.shape
    groups = scales.shape[0]
    groups_each = 2 if groups <= 2 * MOST_PARTS else 4
    parts = triton.cdiv(groups, groups_each)
    made = torch.empty((parts, outputs), dtype=torch.float32, device=hidden.device)
    wrap_triton(words_kernel)[(triton.cdiv(outputs, COLUMNS), parts)](
        hidden, words, zeros, scales, made, outputs, groups, TWO_TO_23,
        in_group=count // groups, columns=COLUMNS, groups_each=groups_each, num_warps=WARPS,
    )  # fmt: skip
    return made
