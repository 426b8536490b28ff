"""W4A16 GEMV over bitsandbytes' NF4 or FP4 codes: dequantized in the kernel, each word of eight codes read once.

For NVIDIA's Hopper and newer. A code is an index into a table of sixteen numbers. Each lane of a warp keeps one of
them, and a code is looked up by asking its lane (a warp shuffle): one instruction, which reads four bits and ignores
those above, so that a shift alone makes the next code of a word. A table in memory takes three instructions.

The kernel starts while the one before it ends (programmatic dependent launch). It reads its weights at once, as no step
writes them, and waits for the vector.
"""

from typing import Any

import torch
from torch import Tensor, nn

from benchmarker.kernels.pdl import can_start_early
from benchmarker.kernels.triton_if_present import tl, triton

# No `from __future__ import annotations` here: torch reads the operator's types from its annotations.

ROWS = 64
"""Outputs of a program of the grid."""
WORDS = 16
"""Words of a row that a program of the grid reads. Each program sums its inputs; the sums are added up afterwards.
Small programs overlap: with 32 rows, 64 words and 4 warps an H200 took 6 % longer for a token."""
WARPS = 2


BLOCK_SIZES = (32, 64, 128)
"""Weights that share a scale."""


def supports(linear: Any) -> str | None:
    """Why this kernel cannot multiply by a linear's weights; None where it can."""
    if not is_4bit(linear):
        return "not bitsandbytes' Linear4bit"
    if not can_start_early(linear.weight.device):
        return "needs NVIDIA's Hopper or newer, and a Triton that is not 3.4"
    return layout_reason(linear)


def is_4bit(module: nn.Module) -> bool:
    """Whether a module is bitsandbytes' 4-bit linear. Classes of the same name that wrap one, and do more, are not."""
    return type(module).__name__ == "Linear4bit" and isinstance(module, nn.Linear)


def layout_reason(linear: Any) -> str | None:
    """What of a linear's packing by bitsandbytes this kernel does not know; None where it knows all."""
    state = linear.weight.quant_state
    if state is None:
        return "weights that are not quantized yet"
    if linear.weight.dtype != torch.uint8:
        return "codes that are not kept in bytes"
    if state.absmax.dtype != torch.float32 or state.nested:
        return "scales that are quantized themselves (double_quant)"
    if tuple(state.shape) != (linear.out_features, linear.in_features):
        return "weights of another shape than the linear's"
    has_blocks = state.blocksize in BLOCK_SIZES and linear.in_features % state.blocksize == 0
    return None if has_blocks else "blocks of another size than 32, 64 or 128, or that do not end with a row"


@triton.jit  # type: ignore[untyped-decorator]
def gemv_nf4_kernel(  # type: ignore[no-untyped-def]
    hidden, words, scales, numbers, sums,
    outputs,
    inputs: tl.constexpr, in_block: tl.constexpr, rows: tl.constexpr, blocks: tl.constexpr,
):  # fmt: skip
    """hidden: [inputs]; words: [outputs, inputs / 8]; scales: [outputs, inputs / 8 / in_block]; numbers: [16]; sums:
    [grid, outputs]. A block has one scale and so many words."""
    in_row: tl.constexpr = inputs // 8 // in_block
    row = tl.program_id(0) * rows + tl.arange(0, rows)
    inside = row < outputs
    block = tl.program_id(1) * blocks + tl.arange(0, blocks)
    word = tl.program_id(1) * blocks * in_block + tl.arange(0, blocks * in_block)
    packed = tl.load(
        words + row.to(tl.int64)[:, None] * (inputs // 8) + word[None, :],
        mask=inside[:, None] & (word < inputs // 8)[None, :], other=0, eviction_policy="evict_first",
    )  # fmt: skip
    scale = tl.load(
        scales + row.to(tl.int64)[:, None] * in_row + block[None, :],
        mask=inside[:, None] & (block < in_row)[None, :], other=0.0,
    )  # fmt: skip
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
    weight = _looked_up(tl.reshape(packed, [rows, blocks, in_block]), numbers)
    start = (block[:, None] * in_block + tl.arange(0, in_block)[None, :]) * 8
    is_inside = (block < in_row)[:, None]
    dot = tl.zeros([rows, blocks, in_block], tl.float32)
    for pair in tl.static_range(4):
        first, second = _pair(hidden, start + 2 * pair, is_inside)
        dot += weight[2 * pair] * first[None, :, :]
        dot += weight[2 * pair + 1] * second[None, :, :]
    total = tl.sum(tl.sum(dot * scale[:, :, None], 2), 1)
    tl.store(sums + tl.program_id(1) * outputs + row, total, mask=inside)


@triton.jit
def _looked_up(packed, numbers):  # type: ignore[no-untyped-def]
    """The eight weights of each word, first to last: of a byte the upper four bits come first."""
    return tl.inline_asm_elementwise(
        """{
        .reg .b32 number, lane, code;
        .reg .b64 place;
        mov.u32 lane, %laneid;
        and.b32 lane, lane, 15;
        mad.wide.u32 place, lane, 4, $9;
        ld.global.nc.b32 number, [place];
        shr.u32 code, $8, 4;
        shfl.sync.idx.b32 $0, number, code, 0x100f, 0xffffffff;
        shfl.sync.idx.b32 $1, number, $8, 0x100f, 0xffffffff;
        shr.u32 code, $8, 12;
        shfl.sync.idx.b32 $2, number, code, 0x100f, 0xffffffff;
        shr.u32 code, $8, 8;
        shfl.sync.idx.b32 $3, number, code, 0x100f, 0xffffffff;
        shr.u32 code, $8, 20;
        shfl.sync.idx.b32 $4, number, code, 0x100f, 0xffffffff;
        shr.u32 code, $8, 16;
        shfl.sync.idx.b32 $5, number, code, 0x100f, 0xffffffff;
        shr.u32 code, $8, 28;
        shfl.sync.idx.b32 $6, number, code, 0x100f, 0xffffffff;
        shr.u32 code, $8, 24;
        shfl.sync.idx.b32 $7, number, code, 0x100f, 0xffffffff;
        }""",
        "=r,=r,=r,=r,=r,=r,=r,=r,r,l",
        [packed, numbers.to(tl.int64)],
        dtype=(tl.float32,) * 8,
        is_pure=True,
        pack=1,
    )


@triton.jit
def _pair(hidden, place, is_inside):  # type: ignore[no-untyped-def]
    """Two consecutive numbers of the vector as float32. Two of 16 bits are one load."""
    kind: tl.constexpr = hidden.dtype.element_ty
    if kind == tl.float32:
        first = tl.load(hidden + place, mask=is_inside, other=0.0)
        second = tl.load(hidden + place + 1, mask=is_inside, other=0.0)
    else:
        both = tl.load(hidden.to(tl.pointer_type(tl.int32)) + place // 2, mask=is_inside, other=0)
        first = both.to(tl.int16).to(kind, bitcast=True).to(tl.float32)
        second = (both >> 16).to(tl.int16).to(kind, bitcast=True).to(tl.float32)
    return first, second


@torch.library.custom_op("benchmarker::gemv_nf4", mutates_args=())
def gemv_nf4(hidden: Tensor, packed: Tensor, scales: Tensor, numbers: Tensor, parts: int) -> Tensor:
    """The sums of weight @ hidden, part by part of the inputs.

    The caller must wait for weights that were written just before on the same device: the kernel does not.

    Args:
        hidden: [in], where `in` is a multiple of a block. It begins at a multiple of 4 bytes, as whole tensors do.
        packed: [out * in / 2, 1], uint8: two codes a byte, the earlier input's in the upper four bits.
        scales: The scale of each block of consecutive inputs, [blocks], float32, one row of inputs after another.
        numbers: The number that each code stands for, before its scale, [16], float32.
        parts: `parts_of(in)`. It is an argument so that torch's cache of compiled graphs knows it.

    Returns:
        [parts, out] in 32 bits, to be summed over the parts.
    """
    inputs, words = len(hidden), packed.numel() // 4
    sums, in_block = _room(hidden, packed, parts), words // len(scales)
    with torch.cuda.device_of(sums):
        gemv_nf4_kernel[(triton.cdiv(sums.shape[1], ROWS), parts)](
            hidden.contiguous(), packed.view(-1).view(torch.int32), scales, numbers, sums, sums.shape[1],
            inputs=inputs, in_block=in_block, rows=ROWS, blocks=WORDS // in_block, num_warps=WARPS, launch_pdl=True,
        )  # fmt: skip
    return sums


@gemv_nf4.register_fake
def _shape(hidden: Tensor, packed: Tensor, scales: Tensor, numbers: Tensor, parts: int) -> Tensor:  # noqa: ARG001
    return _room(hidden, packed, parts)


def parts_of(inputs: int) -> int:
    """How many parts the inputs are summed in."""
    return -(-inputs // (8 * WORDS))


def _room(hidden: Tensor, packed: Tensor, parts: int) -> Tensor:
    """Memory for the sums of each part, [parts, out]."""
    return hidden.new_empty((parts, 2 * packed.numel() // hidden.shape[0]), dtype=torch.float32)
