"""W4A16 GEMM for 2 to 64 rows on tensor cores, for Hopper and newer. `w4a16_gemm.cu` describes the algorithm.

A program occupies a whole multiprocessor. With few rows, the time is limited by reading weights from memory; with many
rows, by reading the rows, which each warp reads again for each tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import ceil

import torch
from torch import Tensor

from benchmarker.kernels import gemv_tensor_core
from benchmarker.kernels.cuda_source import compile_only as compile_source
from benchmarker.kernels.cuda_source import cuda_kernel
from benchmarker.kernels.gemv_tensor_core import CHUNK, HOPPERS_SHARED_BYTES, WARP, Program
from benchmarker.kernels.launch_support import arrived
from benchmarker.kernels.packed_weights import ZEROED, Packed, is_int4_by_group

MOST_ROWS = 64
COLUMNS = 8  # Number of rows in a tensor core product.
TILE_OUTPUTS = 16
GROUPS_OF = {"int4 by group": 128, ZEROED: 128, "nf4": 64, "fp4": 64}  # Inputs per scale.
MOST_COUNTED = 1 << 14  # Size of the array of counters, one per tile and warp, for tiles that several blocks share.
MOST_GROUPS, MOST_PARTS, FEWEST_WARPS = 15, 8, 6
MOST_HELD = {1: {12: 4, 16: 3, 20: 2}, 3: {12: 4, 16: 2, 20: 1}, 4: {8: 4, 12: 2, 16: 1}, 8: {8: 2, 12: 1}}
"""Maximum number of chunks in a lane's registers, by groups of eight rows, then by warps per block."""
FIRST_CACHE_KB = 240  # L1 cache of an H100's multiprocessor, including shared memory.
CANDIDATES = 5  # Maximum number of cuts to time.


@dataclass(frozen=True)
class Cut:
    split: int  # Warps of a program among which the inputs of a tile of 16 outputs are divided.
    groups: int  # Groups of `split` warps per program.
    parts: int  # Number of programs among which the inputs of a tile are divided.
    held: int  # Chunks of 128 inputs that a warp reads ahead.

    @property
    def name(self) -> str:
        """Name in records: `table, 5 warps a tile, 3 tiles, 1 parts, 2 chunks ahead`."""
        return f"table, {self.split} warps a tile, {self.groups} tiles, {self.parts} parts, {self.held} chunks ahead"


def why_not(hidden: Tensor, packed: Packed) -> str | None:
    """Return why this kernel does not support rows, [rows, inputs], times the weights; None if it does."""
    inputs, group = packed.length * packed.in_word, packed.in_group * packed.in_word
    if not 1 < len(hidden) <= MOST_ROWS:
        return f"fewer than 2 rows or more than {MOST_ROWS}"
    if GROUPS_OF.get(packed.form) != group:
        return "not GPTQ's words with groups of 128, nor codes in blocks of 64"
    if packed.scales.dtype != (hidden.dtype if is_int4_by_group(packed.form) else torch.float32):
        return "scales of another type"
    if not packed.is_in_place:
        return "weights that begin at no multiple of 16 bytes"
    return gemv_tensor_core.why_not(hidden.device, hidden.dtype, inputs, [packed.outputs])


def cuts_for(packed: Packed, rows: int, processors: int, most_shared_bytes: int = HOPPERS_SHARED_BYTES) -> list[Cut]:
    """Return the cuts to time: for each number of warps per tile, the cut with the least estimated time."""
    estimates = {
        cut: estimated_us(cut, packed, rows, processors)
        for cut in _possible_cuts(packed, rows)
        if program_for(packed, rows, torch.float16, cut, processors).shared_bytes <= most_shared_bytes
    }
    likeliest: dict[int, Cut] = {}
    for cut in sorted(estimates, key=estimates.__getitem__):
        likeliest.setdefault(cut.split, cut)
    return list(likeliest.values())[:CANDIDATES]


def _possible_cuts(packed: Packed, rows: int) -> Iterator[Cut]:
    chunks, tiles = packed.length * packed.in_word // CHUNK, packed.outputs // TILE_OUTPUTS
    for split, groups in product(range(1, 21), range(1, MOST_GROUPS + 1)):
        most_held = _most_held(_columns(rows), split * groups)
        if split * groups < FEWEST_WARPS and most_held:
            continue
        for parts, held in product(range(1, MOST_PARTS + 1), range(1, most_held + 1)):
            cut = Cut(split, groups, parts, held)
            is_counted = parts == 1 or tiles * split <= MOST_COUNTED
            if is_counted and (split * parts - 1) * _units(cut, chunks) < chunks:
                yield cut


def _most_held(columns: int, warps: int) -> int:
    by_warps = next(by_warps for most, by_warps in MOST_HELD.items() if columns <= most)
    return next((held for most, held in by_warps.items() if warps <= most), 0)


def _columns(rows: int) -> int:
    return -(-rows // COLUMNS)


def _units(cut: Cut, chunks: int) -> int:
    return -(-chunks // (cut.split * cut.parts * cut.held)) * cut.held


def estimated_us(cut: Cut, packed: Packed, rows: int, processors: int) -> float:
    """Return an estimated time on an H100, in microseconds, by which slow cuts are excluded.

    A chunk is 1 KB of weights; a multiprocessor receives at most 25 KB/us with 1 us latency. A chunk takes 32 cycles of
    the L1 cache for the table and 16 cycles per eight rows. Rows are read from L2 at 42 KB/us, once, or once per tile
    if they do not fit in L1. Sums of several parts are written to L2 and read from it.
    """
    inputs, columns, warps = packed.length * packed.in_word, _columns(rows), cut.split * cut.groups
    program = program_for(packed, rows, torch.float16, cut, processors)
    turns = ceil(packed.outputs // TILE_OUTPUTS * cut.parts / (program.blocks * cut.groups))
    chunks = turns * warps * _units(cut, inputs // CHUNK)
    from_memory = chunks / min(25.0, warps * cut.held)
    through_cache = chunks * (32 + 16 * columns) / 1700
    rows_kb = 2 * rows * inputs / cut.parts / 1024
    times_read = 1 if rows_kb < FIRST_CACHE_KB - program.shared_bytes / 1024 else turns
    left_kb = 4 * rows * packed.outputs * cut.parts / 1024 / processors
    of_parts = 1.5 + 2 * left_kb / 42 if cut.parts > 1 else 0.0
    return max(from_memory, through_cache, times_read * rows_kb / 42) + of_parts


def program_for(packed: Packed, rows: int, dtype: torch.dtype, cut: Cut, processors: int) -> Program:
    inputs, columns = packed.length * packed.in_word, _columns(rows)
    tiles = packed.outputs // TILE_OUTPUTS * cut.parts
    blocks = min(-(-tiles // cut.groups), processors)
    is_repeated = blocks * cut.groups < tiles
    macros = {
        "IS_CODEBOOK": not is_int4_by_group(packed.form), "HAS_ZEROS": packed.form == ZEROED, "INPUTS": inputs,
        "ROW_TILES": columns, "WARPS_PER_TILE": cut.split, "TILES_PER_BLOCK": cut.groups,
        "SPLIT_K": cut.parts, "K_STEPS": _units(cut, inputs // CHUNK), "PREFETCH": cut.held,
        "IS_PERSISTENT": is_repeated, "BF16": dtype == torch.bfloat16,
    }  # fmt: skip
    # Two buffers, because a tile's sums are added while the next tile's sums are written.
    sums = (2 if is_repeated else 1) * cut.groups * cut.split * _sums_of_tile(rows)
    return Program(
        tuple((name, int(value)) for name, value in macros.items()),
        blocks,
        WARP * cut.split * cut.groups,
        gemv_tensor_core.TABLE_BYTES + 4 * sums,
    )


def _sums_of_tile(rows: int) -> int:
    return _columns(rows) * COLUMNS * TILE_OUTPUTS


def compile_only(hidden: Tensor, packed: Packed, cut: Cut) -> None:
    program = program_for(packed, len(hidden), hidden.dtype, cut, gemv_tensor_core.processors(hidden.device))
    compile_source("w4a16_gemm", program.macros, hidden.device)


def launch(hidden: Tensor, packed: Packed, cut: Cut) -> Tensor:
    """Return the product, [rows, outputs], summed in 32 bits, for aligned rows [rows, inputs] (`why_not`)."""
    rows, device = len(hidden), hidden.device
    if not 1 < rows <= MOST_ROWS or not gemv_tensor_core.takes_vectors(hidden):
        raise ValueError(f"not 2 to {MOST_ROWS} rows of one type of 16 bits that begin at a multiple of 16 bytes")
    program = program_for(packed, rows, hidden.dtype, cut, gemv_tensor_core.processors(device))
    tiles = packed.outputs // TILE_OUTPUTS
    assert cut.parts == 1 or tiles * cut.split <= MOST_COUNTED
    left = hidden.new_empty(tiles * cut.parts * _sums_of_tile(rows) if cut.parts > 1 else 1, dtype=torch.float32)
    output = hidden.new_empty((rows, packed.outputs))
    kernel = cuda_kernel("w4a16_gemm", program.macros, program.threads, program.shared_bytes, device)
    counts = arrived("w4a16_gemm", MOST_COUNTED, device)
    pointers = [hidden, packed.words, packed.scales, packed.zeros, left, counts, output]
    kernel(program.blocks, [*pointers, rows, packed.outputs])
    return output
