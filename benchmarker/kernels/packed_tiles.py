"""Tiles of `packed_matmul` that are worth timing for a product."""

from collections.abc import Iterator
from math import ceil, log2

from benchmarker.kernels.packed_matmul import Tile
from benchmarker.kernels.packed_weights import ONE_TILE, Packed

SHARED_BYTES = 100 << 10
"""Shared memory that a program may take, so that two fit on a processor of Hopper's."""
SHAPES = {
    16: ((64, 2, 1), (32, 2, 1), (64, 4, 1), (64, 4, 2)),
    32: ((64, 2, 1), (32, 2, 1), (64, 4, 1), (64, 4, 2)),
    64: ((128, 8, 1), (64, 4, 1), (64, 2, 1), (64, 4, 2)),
    128: ((64, 4, 1), (128, 8, 1)),
}
"""By the rows of a tile: its outputs, its warps, and how many times the fewest words of int8 it takes in a step. Two
warps ask the tensor cores one by one (mma), four together (wgmma): which is faster depends on the shape."""
LARGE_SHAPES = {True: ((128, 128, 16, 8), (128, 128, 32, 8), (128, 64, 32, 4)), False: ((128, 128, 16, 8),)}
"""Of more than 128 rows, for int8 and for 4 bit: outputs and rows of a tile, words of a step, warps. Of twelve tiles
these were the fastest of some product of Qwen3-4B with 256 to 1,024 rows, on an H100."""
FEWEST_ROWS = 16
"""Rows of the smallest tile: fewer would be copied two bytes at a time."""


def tiles_for(packed: Packed, rows: int, processors: int) -> list[Tile]:
    """Tiles worth timing, the likeliest first."""
    tiles = _small_tiles(packed, rows, processors) if rows <= ONE_TILE else _large_tiles(packed, rows, processors)
    return list(dict.fromkeys(tile for tile in tiles if packed.length % tile.words == 0))


def _small_tiles(packed: Packed, rows: int, processors: int) -> Iterator[Tile]:
    """Tiles that take all rows, 128 at most.

    Their inputs are shared until there are two to four programs for each processor: with fewer the memory rests, with
    more their sums take longer than they save.
    """
    least, tile_rows = 32 if packed.form == "int8 by row" else 16, max(FEWEST_ROWS, 1 << (rows - 1).bit_length())
    for programs in (2, 4) if tile_rows < 128 else (1, 2):
        for outputs, warps, times in SHAPES[tile_rows]:
            words = least * times if packed.form == "int8 by row" else least
            steps = packed.length // words
            wanted = programs * processors / ceil(packed.outputs / outputs)
            parts = max(1, min(1 << max(0, round(log2(wanted))), 8, steps // 4))
            step_bytes = outputs * words * packed.words.element_size() + 2 * tile_rows * words * packed.in_word
            yield Tile(outputs, tile_rows, words, parts, warps, max(3, min(6, SHARED_BYTES // step_bytes)))


def _large_tiles(packed: Packed, rows: int, processors: int) -> Iterator[Tile]:
    """Tiles of more than 128 rows, several of them: inputs are shared until there is a program for each processor, or
    two."""
    for outputs, tile_rows, words, warps in LARGE_SHAPES[packed.form == "int8 by row"]:
        count, steps = ceil(packed.outputs / outputs) * ceil(rows / tile_rows), packed.length // words
        for programs in (1, 2):
            parts = max(1, min(round(programs * processors / count), 8, steps // 4))
            yield Tile(outputs, tile_rows, words, parts, warps, 3)
