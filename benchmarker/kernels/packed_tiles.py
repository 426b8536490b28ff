"""Tiles of `packed_matmul` that are worth timing for a product."""

from collections.abc import Iterator
from math import ceil, log2

from benchmarker.kernels.packed_matmul import Tile
from benchmarker.kernels.packed_weights import Packed

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
FEWEST_ROWS = 16
"""Rows of the smallest tile: fewer would be copied two bytes at a time."""


def tiles_for(packed: Packed, rows: int, processors: int) -> list[Tile]:
    """Tiles worth timing for 128 rows at most, the likeliest first."""
    tiles = _tiles(packed, rows, processors)
    return list(dict.fromkeys(tile for tile in tiles if packed.length % tile.words == 0))


def _tiles(packed: Packed, rows: int, processors: int) -> Iterator[Tile]:
    """Tiles whose inputs are shared until there are two to four programs for each processor.

    With fewer the memory rests, with more their sums take longer than they save.
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
