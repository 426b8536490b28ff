"""W4A16 GEMM for 2 to 64 rows on tensor cores, for Hopper and newer. `w4a16_gemm.cu` describes the algorithm.

A block occupies a whole multiprocessor. With few rows, the time is limited by reading weights from memory; with many
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
from benchmarker.kernels.launch_support import arrival_counters
from benchmarker.kernels.packed_weights import INT4_ZEROS, Packed, is_int4_by_group

MAX_ROWS = 64
ROWS_PER_MMA = 8  # Number of rows in a tensor core product.
TILE_OUTPUTS = 16
GROUP_SIZES = {"int4 by group": 128, INT4_ZEROS: 128, "nf4": 64, "fp4": 64}  # Inputs per scale.
MAX_COUNTERS = 1 << 14  # Size of the array of counters, one per tile and warp, for tiles that several blocks share.
MAX_TILES_PER_BLOCK, MAX_SPLIT_K, MIN_WARPS = 15, 8, 6
MAX_PREFETCH = {1: {12: 4, 16: 3, 20: 2}, 3: {12: 4, 16: 2, 20: 1}, 4: {8: 4, 12: 2, 16: 1}, 8: {8: 2, 12: 1}}
"""Maximum number of chunks in a lane's registers, by tiles of eight rows, then by warps per block."""
L1_KB = 240  # L1 cache of an H100's multiprocessor, including shared memory.
CANDIDATES = 5  # Maximum number of configs to time.


@dataclass(frozen=True)
class TileConfig:
    warps: int  # Warps of a block among which the inputs of a tile of 16 outputs are divided.
    tiles: int  # Tiles that a block computes at a time.
    split_k: int  # Blocks among which the inputs of a tile are divided.
    prefetch: int  # Chunks of 128 inputs that a warp loads ahead.

    @property
    def name(self) -> str:
        """Name in records: `table, 5 warps a tile, 3 tiles, 1 parts, 2 chunks ahead`."""
        tiles = f"table, {self.warps} warps a tile, {self.tiles} tiles"
        return f"{tiles}, {self.split_k} parts, {self.prefetch} chunks ahead"


def why_not(hidden: Tensor, packed: Packed) -> str | None:
    """Return why this kernel does not support rows, [rows, inputs], times the weights; None if it does."""
    inputs, group = packed.length * packed.pack_factor, packed.group_words * packed.pack_factor
    if not 1 < len(hidden) <= MAX_ROWS:
        return f"fewer than 2 rows or more than {MAX_ROWS}"
    if GROUP_SIZES.get(packed.form) != group:
        return "not GPTQ's words with groups of 128, nor codes in blocks of 64"
    if packed.scales.dtype != (hidden.dtype if is_int4_by_group(packed.form) else torch.float32):
        return "scales of another type"
    if not packed.is_aligned:
        return "weights that begin at no multiple of 16 bytes"
    return gemv_tensor_core.why_not(hidden.device, hidden.dtype, inputs, [packed.outputs])


def tile_configs_for(packed: Packed, rows: int, sms: int, smem_bytes: int = HOPPERS_SHARED_BYTES) -> list[TileConfig]:
    """Return the candidates: for each number of warps per tile, the config with the least estimated time."""
    estimates = {
        config: estimated_us(config, packed, rows, sms)
        for config in _possible_configs(packed, rows)
        if program_for(packed, rows, torch.float16, config, sms).shared_bytes <= smem_bytes
    }
    best: dict[int, TileConfig] = {}
    for config in sorted(estimates, key=estimates.__getitem__):
        best.setdefault(config.warps, config)
    return list(best.values())[:CANDIDATES]


def _possible_configs(packed: Packed, rows: int) -> Iterator[TileConfig]:
    chunks, output_tiles = packed.length * packed.pack_factor // CHUNK, packed.outputs // TILE_OUTPUTS
    for warps, tiles in product(range(1, 21), range(1, MAX_TILES_PER_BLOCK + 1)):
        max_prefetch = _max_prefetch(_row_tiles(rows), warps * tiles)
        if warps * tiles < MIN_WARPS and max_prefetch:
            continue
        for split_k, prefetch in product(range(1, MAX_SPLIT_K + 1), range(1, max_prefetch + 1)):
            config = TileConfig(warps, tiles, split_k, prefetch)
            is_counted = split_k == 1 or output_tiles * warps <= MAX_COUNTERS
            if is_counted and (warps * split_k - 1) * _k_steps(config, chunks) < chunks:
                yield config


def _max_prefetch(row_tiles: int, warps: int) -> int:
    by_warps = next(by_warps for most, by_warps in MAX_PREFETCH.items() if row_tiles <= most)
    return next((prefetch for most, prefetch in by_warps.items() if warps <= most), 0)


def _row_tiles(rows: int) -> int:
    return -(-rows // ROWS_PER_MMA)


def _k_steps(config: TileConfig, chunks: int) -> int:
    return -(-chunks // (config.warps * config.split_k * config.prefetch)) * config.prefetch


def estimated_us(config: TileConfig, packed: Packed, rows: int, sms: int) -> float:
    """Return an estimated time on an H100, in microseconds, by which slow configs are excluded.

    A chunk is 1 KB of weights; a multiprocessor receives at most 25 KB/us with 1 us latency. A chunk takes 32 cycles of
    the L1 cache for the table and 16 cycles per eight rows. Rows are read from L2 at 42 KB/us, once, or once per tile
    if they do not fit in L1. Partial sums of split K are written to L2 and read from it.
    """
    inputs, row_tiles, warps = packed.length * packed.pack_factor, _row_tiles(rows), config.warps * config.tiles
    program = program_for(packed, rows, torch.float16, config, sms)
    waves = ceil(packed.outputs // TILE_OUTPUTS * config.split_k / (program.blocks * config.tiles))
    chunks = waves * warps * _k_steps(config, inputs // CHUNK)
    from_memory = chunks / min(25.0, warps * config.prefetch)
    through_l1 = chunks * (32 + 16 * row_tiles) / 1700
    rows_kb = 2 * rows * inputs / config.split_k / 1024
    times_read = 1 if rows_kb < L1_KB - program.shared_bytes / 1024 else waves
    partial_sums_kb = 4 * rows * packed.outputs * config.split_k / 1024 / sms
    split_k_us = 1.5 + 2 * partial_sums_kb / 42 if config.split_k > 1 else 0.0
    return max(from_memory, through_l1, times_read * rows_kb / 42) + split_k_us


def program_for(packed: Packed, rows: int, dtype: torch.dtype, config: TileConfig, sms: int) -> Program:
    inputs, row_tiles = packed.length * packed.pack_factor, _row_tiles(rows)
    tiles = packed.outputs // TILE_OUTPUTS * config.split_k
    blocks = min(-(-tiles // config.tiles), sms)
    is_persistent = blocks * config.tiles < tiles
    macros = {
        "IS_CODEBOOK": not is_int4_by_group(packed.form), "HAS_ZEROS": packed.form == INT4_ZEROS, "INPUTS": inputs,
        "ROW_TILES": row_tiles, "WARPS_PER_TILE": config.warps, "TILES_PER_BLOCK": config.tiles,
        "SPLIT_K": config.split_k, "K_STEPS": _k_steps(config, inputs // CHUNK), "PREFETCH": config.prefetch,
        "IS_PERSISTENT": is_persistent, "BF16": dtype == torch.bfloat16,
    }  # fmt: skip
    # Two buffers, because a tile's sums are added while the next tile's sums are written.
    sums = (2 if is_persistent else 1) * config.tiles * config.warps * _tile_sums(rows)
    return Program(
        tuple((name, int(value)) for name, value in macros.items()),
        blocks,
        WARP * config.warps * config.tiles,
        gemv_tensor_core.TABLE_BYTES + 4 * sums,
    )


def _tile_sums(rows: int) -> int:
    return _row_tiles(rows) * ROWS_PER_MMA * TILE_OUTPUTS


def compile_only(hidden: Tensor, packed: Packed, config: TileConfig) -> None:
    program = program_for(packed, len(hidden), hidden.dtype, config, gemv_tensor_core.sm_count(hidden.device))
    compile_source("w4a16_gemm", program.macros, hidden.device)


def launch(hidden: Tensor, packed: Packed, config: TileConfig) -> Tensor:
    """Return the product, [rows, outputs], summed in 32 bits, for aligned rows [rows, inputs] (`why_not`)."""
    rows, device = len(hidden), hidden.device
    if not 1 < rows <= MAX_ROWS or not gemv_tensor_core.supports_vectors(hidden):
        raise ValueError(f"not 2 to {MAX_ROWS} rows of one type of 16 bits that begin at a multiple of 16 bytes")
    program = program_for(packed, rows, hidden.dtype, config, gemv_tensor_core.sm_count(device))
    tiles = packed.outputs // TILE_OUTPUTS
    assert config.split_k == 1 or tiles * config.warps <= MAX_COUNTERS
    sums = tiles * config.split_k * _tile_sums(rows) if config.split_k > 1 else 1
    partial_sums = hidden.new_empty(sums, dtype=torch.float32)
    output = hidden.new_empty((rows, packed.outputs))
    kernel = cuda_kernel("w4a16_gemm", program.macros, program.threads, program.shared_bytes, device)
    counts = arrival_counters("w4a16_gemm", MAX_COUNTERS, device)
    pointers = [hidden, packed.words, packed.scales, packed.zeros, partial_sums, counts, output]
    kernel(program.blocks, [*pointers, rows, packed.outputs])
    return output
