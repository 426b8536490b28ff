"""Dequantization of a packed matrix to 16 bits, for prefills that are too long for the quantized GEMM.

Each packed weight is read once and each result written once: 3 bytes per int8 weight, 2.5 per 4-bit weight. Weights are
rounded once, as the libraries round them: int8 numbers and bitsandbytes' codes are scaled in 32 bits, GPTQ's numbers in
the type of the scales. The inputs of the result are in natural order or in the order `packed_weights.by_lane`, to be
multiplied by rows that were permuted for `prefill_gemm`.
"""

import torch
from torch import Tensor

from benchmarker.kernels.gemv_gptq import unpacked
from benchmarker.kernels.launch_support import tl, triton
from benchmarker.kernels.packed_weights import Packed, by_lane, is_int4_by_group, packed_of

# No `from __future__ import annotations`: torch reads the operator's types from its annotations.

WORDS, COLUMNS, WARPS = 4, 512, 8
"""Tile and warps for GPTQ, the fastest of seven: 44.7 us (2.8 TB/s) for 19456 x 2560 weights (H100, 2026-11-24)."""
CHUNKS, CHUNK_WARPS = 512, 4
"""Tile and warps for int8 and codes, in chunks of eight consecutive weights (one 16-byte store)."""


@triton.jit  # type: ignore[untyped-decorator]
def unpack_gptq_kernel(  # type: ignore[no-untyped-def]
    words, zeros, scales, matrix, outputs,
    group_words: tl.constexpr, by_lane_order: tl.constexpr, tile_words: tl.constexpr, tile_columns: tl.constexpr,
):  # fmt: skip
    """Shapes: words [length, outputs]; zeros [groups, outputs / 8]; scales [groups, outputs]; matrix [length * 8,
    outputs]. `group_words`, the words that share a scale, and 8 are multiples of `tile_words`."""
    column = tl.program_id(0) * tile_columns + tl.arange(0, tile_columns)
    # 64 bits: the matrix may have more than 2**31 elements, unlike a tile.
    start = tl.program_id(1).to(tl.int64) * tile_words * outputs
    in_chunk = tl.program_id(1) * tile_words % 8 * 8
    word = tl.arange(0, tile_words)
    inside = column < outputs
    group = tl.program_id(1) * tile_words // group_words
    packed = tl.load(words + start + (word[:, None] * outputs + column[None, :]), mask=inside[None, :], other=0)
    scale = tl.load(scales + group * outputs + column, mask=inside, other=0.0)
    zero = tl.load(zeros + group * (outputs // 8) + column // 8, mask=inside, other=0) >> column % 8 * 4 & 15
    for place in tl.static_range(8):
        number = (packed >> 4 * place & 15) - zero[None, :]
        weight = number.to(scales.dtype.element_ty) * scale[None, :]
        row = word[:, None] * 8 + place
        if by_lane_order:
            # Index of the input: 16 * lane + 8 * word + 4 * half + 2 * product + pair.
            row += in_chunk
            product = row // 8 % 2 * 2 + row // 2 % 2
            row = product * 16 + row % 2 * 8 + row // 16 * 2 + row // 4 % 2 - in_chunk
        address = matrix + 8 * start + (row * outputs + column[None, :])
        tl.store(address, weight.to(matrix.dtype.element_ty), mask=inside[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def pairs_of_chunks(tile: tl.constexpr, by_lane_order: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the offsets of the four input pairs of each chunk in the packed weights, [tile, 4]."""
    chunk, pair = tl.arange(0, tile)[:, None], tl.arange(0, 4)[None, :]
    if by_lane_order:
        # Of 64 inputs, a chunk has two from each of four lanes.
        return chunk // 8 * 32 + pair * 8 + chunk % 8
    return chunk * 4 + pair


@triton.jit  # type: ignore[untyped-decorator]
def unpack_int8_kernel(  # type: ignore[no-untyped-def]
    weights, scales, matrix, row_chunks, chunks, by_lane_order: tl.constexpr, tile: tl.constexpr
):  # fmt: skip
    """Shapes: weights [chunks * 4], two int8 each; scales [outputs]; matrix [outputs, inputs], `row_chunks` chunks per
    row."""
    start = tl.program_id(0).to(tl.int64) * tile
    chunk = tl.program_id(0) * tile + tl.arange(0, tile)
    inside = chunk < chunks
    pairs = pairs_of_chunks(tile, by_lane_order)
    pair = tl.load(weights + 4 * start + pairs, mask=inside[:, None], other=0).to(tl.int32)
    scale = tl.load(scales + chunk // row_chunks, mask=inside, other=0.0)
    number = tl.join(pair << 24 >> 24, pair >> 8).reshape(tile, 8)
    weight = number.to(tl.float32) * scale.to(tl.float32)[:, None]
    place = tl.arange(0, tile)[:, None] * 8 + tl.arange(0, 8)[None, :]
    tl.store(matrix + 8 * start + place, weight.to(matrix.dtype.element_ty), mask=inside[:, None])


@triton.jit  # type: ignore[untyped-decorator]
def unpack_codes_kernel(  # type: ignore[no-untyped-def]
    codes, scales, numbers, matrix, chunks,
    block_chunks: tl.constexpr, by_lane_order: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """Shapes: codes [chunks * 4], two codes each, the upper four bits first; scales one per `block_chunks` chunks;
    numbers [16], the code table; matrix [outputs, inputs]."""
    start = tl.program_id(0).to(tl.int64) * tile
    chunk = tl.program_id(0) * tile + tl.arange(0, tile)
    inside = chunk < chunks
    pairs = pairs_of_chunks(tile, by_lane_order)
    packed = tl.load(codes + 4 * start + pairs, mask=inside[:, None], other=0).to(tl.int32)
    scale = tl.load(scales + chunk // block_chunks, mask=inside, other=0.0)
    # The table (64 bytes) stays in the L1 cache.
    number = tl.load(numbers + tl.join(packed >> 4, packed & 15).reshape(tile, 8))
    weight = number * scale[:, None]
    place = tl.arange(0, tile)[:, None] * 8 + tl.arange(0, 8)[None, :]
    tl.store(matrix + 8 * start + place, weight.to(matrix.dtype.element_ty), mask=inside[:, None])


@torch.library.custom_op("benchmarker::unpack_matrix", mutates_args=())
def unpack_matrix(
    weights: Tensor, scales: Tensor, zeros: Tensor | None, form: str, outputs: int, dtype: torch.dtype
) -> Tensor:
    """Return the dequantized matrix, [inputs, outputs]; `packed_weights.packed_of` describes the arguments.

    As in the packed weights, the innermost dimension in memory is the outputs for GPTQ, else the inputs.
    """
    return unpack(packed_of(weights, scales, zeros, form, outputs), dtype)


@unpack_matrix.register_fake
def _shape(
    weights: Tensor,
    scales: Tensor,
    zeros: Tensor | None,  # noqa: ARG001
    form: str,
    outputs: int,
    dtype: torch.dtype,
) -> Tensor:
    in_number = 8 if is_int4_by_group(form) else 1 if form == "int8 by row" else 2
    return _empty(scales, form, weights.numel() * in_number // outputs, outputs, dtype)


def _empty(like: Tensor, form: str, inputs: int, outputs: int, dtype: torch.dtype) -> Tensor:
    if is_int4_by_group(form):
        return like.new_empty((inputs, outputs), dtype=dtype)
    return like.new_empty((outputs, inputs), dtype=dtype).T


def unpack(packed: Packed, dtype: torch.dtype, *, by_lane_order: bool = False) -> Tensor:
    """Dequantize by a kernel on a GPU, else by torch operators. The inputs are in natural order or `by_lane`."""
    if packed.words.is_cuda:
        return launch(packed, dtype, by_lane_order=by_lane_order)
    matrix = _by_operators(packed, dtype)
    if not by_lane_order:
        return matrix
    permuted = by_lane(matrix.T, packed.pack_factor).view(packed.outputs, -1).T
    # With the strides that `unpack_matrix` documents.
    return permuted.contiguous() if is_int4_by_group(packed.form) else permuted


def _by_operators(packed: Packed, dtype: torch.dtype) -> Tensor:
    if is_int4_by_group(packed.form):
        assert packed.zeros is not None
        return unpacked(packed.words, packed.zeros, packed.scales).to(dtype)
    if packed.form == "int8 by row":
        return (packed.words.view(torch.int8).float() * packed.scales.float()[:, None]).to(dtype).T
    assert packed.zeros is not None
    codes = packed.words.view(torch.uint8).int()
    numbers = packed.zeros[torch.stack((codes >> 4, codes & 15), 2)]
    return (numbers.view(*packed.scales.shape, -1) * packed.scales[:, :, None]).view(packed.outputs, -1).to(dtype).T


def launch(packed: Packed, dtype: torch.dtype, *, by_lane_order: bool = False) -> Tensor:
    """Dequantize by a kernel. Numbers of inputs and group sizes must be multiples of 8, or of 64 if `by_lane_order`."""
    outputs, words, scales = packed.outputs, packed.words, packed.scales
    inputs = packed.length * packed.pack_factor
    matrix = _empty(scales, packed.form, inputs, outputs, dtype)
    chunks = inputs * outputs // 8
    grid = (triton.cdiv(chunks, CHUNKS),)
    with torch.cuda.device_of(matrix):
        if is_int4_by_group(packed.form):
            assert packed.zeros is not None
            tile_words = min(WORDS, packed.group_words)
            unpack_gptq_kernel[(triton.cdiv(outputs, COLUMNS), packed.length // tile_words)](
                words, packed.zeros.contiguous(), scales, matrix, outputs,
                group_words=packed.group_words, by_lane_order=by_lane_order, tile_words=tile_words,
                tile_columns=COLUMNS, num_warps=WARPS,
            )  # fmt: skip
        elif packed.form == "int8 by row":
            unpack_int8_kernel[grid](
                words.view(torch.int16), scales, matrix, inputs // 8, chunks,
                by_lane_order=by_lane_order, tile=CHUNKS, num_warps=CHUNK_WARPS,
            )  # fmt: skip
        else:
            unpack_codes_kernel[grid](
                words.view(torch.uint8), scales, packed.zeros, matrix, chunks,
                block_chunks=packed.group_words * packed.pack_factor // 8, by_lane_order=by_lane_order, tile=CHUNKS,
                num_warps=CHUNK_WARPS,
            )  # fmt: skip
    return matrix
