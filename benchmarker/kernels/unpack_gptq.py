"""GPTQ's packed weights as a matrix of 16-bit floats, for prompts that are longer than packed products pay for.

gptqmodel's own way takes several passes over the matrix, and inductor's kernel for `gemv_gptq.unpacked` reads each word
eight times. This one reads it once: 2.5 bytes move for a weight, half a byte of it read.
"""

import torch
from torch import Tensor

from benchmarker.kernels.gemv_gptq import IN_A_WORD, unpacked
from benchmarker.kernels.triton_if_present import tl, triton

# No `from __future__ import annotations` here: torch reads the operator's types from its annotations.

WORDS, COLUMNS, WARPS = 4, 512, 8
"""Tile of a program, and its warps: of seven tried the fastest, 44.7 us for 19456 x 2560 weights on an H100
(2026-11-24), 2.8 TB/s."""


@triton.jit  # type: ignore[untyped-decorator]
def unpack_gptq_kernel(  # type: ignore[no-untyped-def]
    words, zeros, scales, matrix, outputs,
    in_group: tl.constexpr, tile_words: tl.constexpr, tile_columns: tl.constexpr,
):  # fmt: skip
    """words: [length, outputs]; zeros: [groups, outputs / 8]; scales: [groups, outputs]; matrix: [length * 8, outputs].
    `in_group` words share a scale, a multiple of `tile_words`."""
    column = tl.program_id(0) * tile_columns + tl.arange(0, tile_columns)
    word = tl.program_id(1) * tile_words + tl.arange(0, tile_words)
    inside = column < outputs
    group = tl.program_id(1) * tile_words // in_group
    packed = tl.load(words + word[:, None] * outputs + column[None, :], mask=inside[None, :], other=0)
    scale = tl.load(scales + group * outputs + column, mask=inside, other=0.0)
    zero = tl.load(zeros + group * (outputs // 8) + column // 8, mask=inside, other=0) >> column % 8 * 4 & 15
    for place in tl.static_range(8):
        number = (packed >> 4 * place & 15) - zero[None, :]
        weight = number.to(scales.dtype.element_ty) * scale[None, :]
        row = word[:, None] * 8 + place
        tl.store(matrix + row * outputs + column[None, :], weight, mask=inside[None, :])


@torch.library.custom_op("benchmarker::unpack_gptq", mutates_args=())
def unpack_gptq(words: Tensor, zeros: Tensor, scales: Tensor) -> Tensor:
    """The matrix of `gemv_gptq.unpacked`, [in, out] in the type of the scales; arguments as there."""
    if not words.is_cuda:
        return unpacked(words, zeros, scales)
    matrix: Tensor = _shape(words, zeros, scales)
    launch(words, zeros, scales, matrix)
    return matrix


def launch(words: Tensor, zeros: Tensor, scales: Tensor, matrix: Tensor) -> None:
    """Run the kernel; `matrix` is what it writes."""
    length, outputs = words.shape
    in_group = length // len(scales)
    tile_words = min(WORDS, in_group)
    with torch.cuda.device_of(matrix):
        unpack_gptq_kernel[(triton.cdiv(outputs, COLUMNS), length // tile_words)](
            words, zeros, scales, matrix, outputs,
            in_group=in_group, tile_words=tile_words, tile_columns=COLUMNS, num_warps=WARPS,
        )  # fmt: skip


@unpack_gptq.register_fake
def _shape(words: Tensor, zeros: Tensor, scales: Tensor) -> Tensor:  # noqa: ARG001
    return scales.new_empty((IN_A_WORD * len(words), words.shape[1]))
