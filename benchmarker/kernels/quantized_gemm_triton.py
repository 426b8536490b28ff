"""Quantized GEMM in Triton for 2 to 128 rows: words are unpacked in registers.

Weights are the left operand of `tl.dot`, in registers; rows are the right operand, in shared memory: eight rows are the
eight columns of an mma. One product takes the first input of every word, the next the second input, and so on. With
rows in this order (`by_word_position`), no weight moves between threads. Scales multiply a group's sums in float32.

All rows are in one tile, so each word is read once. If there are fewer tiles than the GPU can run, the inputs of a tile
are divided among programs (`split_k`), and the program that ends last adds the partial sums in a fixed order.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, log2
from typing import Any

import torch
from torch import Tensor

from benchmarker.kernels.dequantize_words import unpack_codes, unpack_gptq, unpack_int8
from benchmarker.kernels.launch_support import arrival_counters, supports_pdl, tl, triton
from benchmarker.kernels.packed_weights import Packed

MAX_TILES = 1 << 14  # Maximum number of tiles in a GEMM.


@dataclass(frozen=True)
class TileConfig:
    outputs: int
    rows: int  # Maximum number of rows.
    words: int  # Words per output and step.
    split_k: int  # Number of programs among which the inputs of a tile are divided.
    warps: int
    stages: int  # Steps in flight, including the current one.

    @property
    def name(self) -> str:
        """Name in records: `128 outputs, 64 rows, 16 words, 2 parts, 4 warps, 4 stages`."""
        size = f"{self.outputs} outputs, {self.rows} rows, {self.words} words"
        return f"{size}, {self.split_k} parts, {self.warps} warps, {self.stages} stages"


def launch(hidden: Tensor, packed: Packed, tile: TileConfig) -> Tensor:
    """Return packed weights times activations in the order of `by_word_position`, summed in 32 bits."""
    output = hidden.new_empty((len(hidden), packed.outputs))
    positional, named = _arguments(hidden, packed, tile, output)
    with torch.cuda.device_of(output):
        packed_matmul_kernel[_grid(hidden, packed, tile)](*positional, **named)
    return output


def compile_only(hidden: Tensor, packed: Packed, tile: TileConfig) -> Any:
    positional, named = _arguments(hidden, packed, tile, hidden)
    with torch.cuda.device_of(hidden):
        return packed_matmul_kernel.warmup(*positional, grid=_grid(hidden, packed, tile), **named)


def _grid(hidden: Tensor, packed: Packed, tile: TileConfig) -> tuple[int, int]:
    assert len(hidden) <= tile.rows
    return triton.cdiv(packed.outputs, tile.outputs), tile.split_k


def _arguments(hidden: Tensor, packed: Packed, tile: TileConfig, output: Tensor) -> tuple[Any, dict[str, Any]]:
    tiles = _grid(hidden, packed, tile)[0]
    assert tiles <= MAX_TILES
    numbers = tiles * tile.split_k * tile.outputs * tile.rows if tile.split_k > 1 else 1
    partial_sums = hidden.new_empty(numbers, dtype=torch.float32)
    pdl = supports_pdl(hidden.device)
    positional = (
        hidden, packed.words, packed.scales, packed.scales if packed.zeros is None else packed.zeros, partial_sums,
        arrival_counters("packed_matmul", MAX_TILES, hidden.device), output, len(hidden), packed.outputs,
    )  # fmt: skip
    named = {
        "length": packed.length, "pack_factor": packed.pack_factor, "group_words": packed.group_words,
        "form": packed.form, "tile_rows": tile.rows, "tile_outputs": tile.outputs, "tile_words": tile.words,
        "split_k": tile.split_k, "pdl": pdl, "by_ptx": hidden.is_cuda and torch.version.hip is None,
        "num_warps": tile.warps, "num_stages": tile.stages, **({"launch_pdl": True} if pdl else {}),
    }  # fmt: skip
    return positional, named


@triton.jit  # type: ignore[untyped-decorator]
def _scale(  # type: ignore[no-untyped-def]
    scales, group, column, inside, outputs, groups: tl.constexpr, form: tl.constexpr
):  # fmt: skip
    if form == "int8 by row":
        place = column
    elif form == "int4 by group" or form == "int4 by group, zeros":
        place = group * outputs + column
    else:
        place = column * groups + group
    return tl.load(scales + place, mask=inside, other=0.0).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def _unpacked(  # type: ignore[no-untyped-def]
    words, numbers, column, inside, word, outputs,
    length: tl.constexpr, form: tl.constexpr, kind: tl.constexpr, by_ptx: tl.constexpr,
):  # fmt: skip
    """Unpack words; return a tuple of tiles, [outputs, words]: tile i has weight i of each word."""
    if form == "int4 by group" or form == "int4 by group, zeros":
        packed = tl.load(words + word[:, None] * outputs + column[None, :], mask=inside[None, :], other=0)
        weights = unpack_gptq(tl.trans(packed), kind, by_ptx)
    else:
        start = words + column.to(tl.int64)[:, None] * length
        packed = tl.load(start + word[None, :], mask=inside[:, None], other=0)
        if form == "int8 by row":
            weights = unpack_int8(packed, kind, by_ptx)
        else:
            weights = unpack_codes(packed, numbers, form == "fp4", kind, by_ptx)
    return weights


@triton.jit  # type: ignore[untyped-decorator]
def _values(  # type: ignore[no-untyped-def]
    hidden, at, word, row, rows, length: tl.constexpr, pack_factor: tl.constexpr
):  # fmt: skip
    start = hidden + at * length + row[None, :] * (length * pack_factor)
    return tl.load(start + word[:, None], mask=(row < rows)[None, :], other=0.0)


@triton.jit
def _zero(zeros, group, column, inside, outputs):  # type: ignore[no-untyped-def]
    packed = tl.load(zeros + group * (outputs // 8) + column // 8, mask=inside, other=0)
    return ((packed >> column % 8 * 4 & 15) - 8).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def _prefetch_words(  # type: ignore[no-untyped-def]
    words, column, first_column, outputs, length: tl.constexpr, first,
    tile_outputs: tl.constexpr, tile_words: tl.constexpr, by_column: tl.constexpr,
):  # fmt: skip
    """Prefetch a program's first words to L2: four lines of 128 bytes per output, or four tiles if `by_column`."""
    if by_column:
        line = tl.minimum(first_column + tl.arange(0, tile_outputs // 32) * 32, outputs - 1)
        ahead = tl.minimum(first + tl.arange(0, 4 * tile_words), length - 1)
        place = ahead.to(tl.int64)[:, None] * outputs + line[None, :]
    else:
        in_line: tl.constexpr = 1024 // words.dtype.element_ty.primitive_bitwidth
        line = tl.minimum(first + tl.arange(0, 4) * in_line, length - 1)
        place = tl.minimum(column, outputs - 1).to(tl.int64)[:, None] * length + line[None, :]
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [(words + place).to(tl.int64)],
        dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def _reduce_partial_sums(  # type: ignore[no-untyped-def]
    total, partial_sums, counters, split_k: tl.constexpr, tile_outputs: tl.constexpr, tile_rows: tl.constexpr
):  # fmt: skip
    """Store a program's sums. Return (total of all splits, True) in the program that ends last, else (sums, False)."""
    tile = partial_sums + tl.program_id(0) * (split_k * tile_outputs * tile_rows)
    place = tl.arange(0, tile_outputs)[:, None] * tile_rows + tl.arange(0, tile_rows)[None, :]
    tl.store(tile + tl.program_id(1) * (tile_outputs * tile_rows) + place, total)
    tl.debug_barrier()
    is_last = tl.atomic_add(counters + tl.program_id(0), 1, sem="acq_rel") == split_k - 1
    if is_last:
        total = tl.zeros([tile_outputs, tile_rows], tl.float32)
        for part in tl.static_range(split_k):
            total += tl.load(tile + part * (tile_outputs * tile_rows) + place, cache_modifier=".cg")
        tl.store(counters + tl.program_id(0), 0)
    return total, is_last


@triton.jit(do_not_specialize=["rows"])  # type: ignore[untyped-decorator]
def packed_matmul_kernel(  # type: ignore[no-untyped-def]
    hidden, words, scales, zeros, partial_sums, counters, output,
    rows, outputs,
    length: tl.constexpr, pack_factor: tl.constexpr, group_words: tl.constexpr, form: tl.constexpr,
    tile_rows: tl.constexpr, tile_outputs: tl.constexpr, tile_words: tl.constexpr, split_k: tl.constexpr,
    pdl: tl.constexpr, by_ptx: tl.constexpr,
):  # fmt: skip
    """Shapes: hidden [rows, pack_factor, length]; words [outputs, length], GPTQ [length, outputs]; scales [outputs]
    (int8), [groups, outputs] (GPTQ), [outputs, groups] (codes); zeros [groups, outputs / 8] (GPTQ), codebook [16];
    partial_sums [tiles, split_k, tile_outputs, tile_rows]; counters [tiles], zero before and after; output [rows,
    outputs]. `group_words` words share a scale."""
    kind: tl.constexpr = hidden.dtype.element_ty
    # float32 in Triton's interpreter, which has no bfloat16 product.
    exact: tl.constexpr = kind if by_ptx else tl.float32
    by_column: tl.constexpr = form == "int4 by group" or form == "int4 by group, zeros"
    by_group: tl.constexpr = form != "int8 by row"
    groups: tl.constexpr = length // group_words
    first_column = tl.program_id(0) * tile_outputs
    column = first_column + tl.arange(0, tile_outputs)
    inside = column < outputs
    row = tl.arange(0, tile_rows)
    steps: tl.constexpr = length // tile_words
    each: tl.constexpr = (steps + split_k - 1) // split_k
    first = tl.program_id(1) * each
    last = min(first + each, steps)
    if pdl:
        # Prefetch words while the previous kernel ends.
        _prefetch_words(
            words, column, first_column, outputs, length, first * tile_words, tile_outputs, tile_words, by_column
        )
    scale = _scale(scales, min(first, steps - 1) * tile_words // group_words, column, inside, outputs, groups, form)
    if pdl:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    total = tl.zeros([tile_outputs, tile_rows], tl.float32)
    for step in range(first, last):
        word = step * tile_words + tl.arange(0, tile_words)
        if by_group:
            # Read the scales of the next step.
            following = min(step + 1, steps - 1) * tile_words // group_words
            next_scale = _scale(scales, following, column, inside, outputs, groups, form)
        weights = _unpacked(words, zeros, column, inside, word, outputs, length, form, kind, by_ptx)
        part = tl.zeros([tile_outputs, tile_rows], tl.float32) if by_group else total
        sum_of_rows = tl.zeros([tile_outputs, tile_rows], tl.float32)
        for at in tl.static_range(pack_factor):
            values = _values(hidden, at, word, row, rows, length, pack_factor)
            part = tl.dot(weights[at].to(exact), values.to(exact), part)
            if form == "int4 by group, zeros":
                sum_of_rows = tl.dot(
                    tl.full([tile_outputs, tile_words], 1.0, tl.float32).to(exact), values.to(exact), sum_of_rows
                )
        if form == "int4 by group, zeros":
            group = step * tile_words // group_words
            part -= _zero(zeros, group, column, inside, outputs)[:, None] * sum_of_rows
        if by_group:
            total += part * scale[:, None]
            scale = next_scale
        else:
            total = part
    is_last = True
    if split_k > 1:
        total, is_last = _reduce_partial_sums(total, partial_sums, counters, split_k, tile_outputs, tile_rows)
    if is_last:
        if not by_group:
            total *= scale[:, None]
        place = row[None, :] * outputs + column[:, None]
        tl.store(output + place, total.to(kind), mask=(row < rows)[None, :] & inside[:, None])


SHARED_BYTES = 100 << 10  # Shared memory per program, so that two fit on a multiprocessor of Hopper.
SHAPES = {
    16: ((64, 2, 1), (32, 2, 1), (64, 4, 1), (64, 4, 2)),
    32: ((64, 2, 1), (32, 2, 1), (64, 4, 1), (64, 4, 2)),
    64: ((128, 8, 1), (64, 4, 1), (64, 2, 1), (64, 4, 2)),
    128: ((64, 4, 1), (128, 8, 1)),
}
"""(outputs, warps, multiples of the smallest int8 step) by rows of a tile. Two warps use mma, four warps wgmma; the
shape determines which is faster."""
MIN_TILE_ROWS = 16  # Rows of the smallest tile. Smaller tiles would be copied in units of two bytes.


def tile_configs_for(packed: Packed, rows: int, sms: int) -> list[TileConfig]:
    """Return the tiles to time for at most 128 rows, the most promising first."""
    tiles = _tiles(packed, rows, sms)
    return list(dict.fromkeys(tile for tile in tiles if packed.length % tile.words == 0))


def _tiles(packed: Packed, rows: int, sms: int) -> Iterator[TileConfig]:
    least, tile_rows = 32 if packed.form == "int8 by row" else 16, max(MIN_TILE_ROWS, 1 << (rows - 1).bit_length())
    for programs in (2, 4) if tile_rows < 128 else (1, 2):
        for outputs, warps, times in SHAPES[tile_rows]:
            words = least * times if packed.form == "int8 by row" else least
            steps = packed.length // words
            wanted = programs * sms / ceil(packed.outputs / outputs)
            split_k = max(1, min(1 << max(0, round(log2(wanted))), 8, steps // 4))
            step_bytes = outputs * words * packed.words.element_size() + 2 * tile_rows * words * packed.pack_factor
            yield TileConfig(outputs, tile_rows, words, split_k, warps, max(3, min(6, SHARED_BYTES // step_bytes)))
