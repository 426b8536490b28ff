"""Which way a product of packed weights with several rows is made: measured once for each shape on a machine, and kept.

The candidates are a few tiles of `packed_matmul`, and the way without it: unpack the matrix to 16 bits and multiply by
it. Each is timed on the device alone, in a graph, with the last cache overwritten before each product, as a model's
other weights do.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from math import ceil, log2
from typing import Any

import torch
from torch import Tensor

from benchmarker.kernels.packed_matmul import Tile, compile_only, launch
from benchmarker.kernels.packed_weights import Packed
from benchmarker.kernels.product_memory import file_for, kept

REPEATS = 12
"""Products in a timed graph."""
REPLAYS = 3
"""Times that the graph is run; the shortest counts."""
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
ONE_TILE = 128
"""Most rows of a single tile."""
COMPILERS = 8
"""Kernels that are compiled at once."""
MOST_OFF = 0.01
"""By how much of its norm a candidate's result may differ from the one without our kernel: rounding takes a tenth."""
UNPACKED = "unpacked to 16 bit, then cuBLAS"


@dataclass(frozen=True)
class Choice:
    """The way of one product."""

    form: str
    """As `Packed.form`."""
    rows: int
    inputs: int
    outputs: int
    tile: Tile | None
    """None for the way without our kernel."""
    us: dict[str, float] = field(default_factory=dict)
    """What each candidate took, in microseconds."""
    refused: dict[str, str] = field(default_factory=dict)
    """Candidates that could not be compiled or run, or were wrong, and why."""

    @property
    def name(self) -> str:
        """The candidate's name in `us`."""
        return UNPACKED if self.tile is None else name_of(self.tile)


_choices: dict[tuple[object, ...], Choice] = {}


def choices() -> tuple[Choice, ...]:
    """What was chosen in this process so far."""
    return tuple(_choices.values())


def name_of(tile: Tile) -> str:
    """`128 outputs, 64 rows, 16 words, 2 parts, 4 warps, 4 stages`."""
    size = f"{tile.outputs} outputs, {tile.rows} rows, {tile.words} words"
    return f"{size}, {tile.parts} parts, {tile.warps} warps, {tile.stages} stages"


def chosen(hidden: Tensor, packed: Packed, unpacked: Callable[[Tensor, Packed], Tensor]) -> Choice:
    """The way of a product, measured at its first call on this machine.

    Args:
        hidden: As of `launch`.
        unpacked: The way without our kernel.
    """
    key = (packed.form, packed.outputs, packed.length, packed.in_group, len(hidden), hidden.dtype, hidden.device)
    if key not in _choices:
        tiles = tiles_for(packed, len(hidden), _processors(hidden.device))
        if not hidden.is_cuda or torch.cuda.is_current_stream_capturing():
            return _choice(hidden, packed, tiles[0])
        name, path = ", ".join(map(str, key[:-1])), file_for(hidden.device)
        choice = read_choice(kept(name, path), tiles)
        if choice is None:
            choice = measure(hidden, packed, tiles, unpacked)
            if not choice.refused:
                # Another process that measured meanwhile may have been first.
                choice = read_choice(kept(name, path, asdict(choice)), tiles) or choice
        _choices[key] = choice
    return _choices[key]


def read_choice(fields: dict[str, Any] | None, tiles: list[Tile]) -> Choice | None:
    """What was kept, if it is one of these tiles or the way without; else None."""
    try:
        tile = Tile(**fields["tile"]) if fields and fields["tile"] else None
        choice = Choice(**{**fields, "tile": tile}) if fields else None
    except (KeyError, TypeError):
        return None
    return choice if tile is None or tile in tiles else None


def _choice(
    hidden: Tensor,
    packed: Packed,
    tile: Tile | None,
    us: dict[str, float] | None = None,
    refused: dict[str, str] | None = None,
) -> Choice:
    inputs = packed.length * packed.in_word
    return Choice(packed.form, len(hidden), inputs, packed.outputs, tile, us or {}, refused or {})


def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


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


def measure(hidden: Tensor, packed: Packed, tiles: list[Tile], unpacked: Callable[[Tensor, Packed], Tensor]) -> Choice:
    """Time the tiles, and the way without our kernel, and choose the fastest that is right."""
    # A model's own rows may be zeros before its weights are read.
    hidden = torch.empty_like(hidden).copy_(torch.arange(hidden.numel(), device=hidden.device).sin().view_as(hidden))
    us: dict[str, float] = {}
    refused: dict[str, str] = {}

    def compiled(tile: Tile) -> str | None:
        try:
            compile_only(hidden, packed, tile)
        except Exception as error:  # noqa: BLE001 - whatever a compiler says, the other candidates are left
            return _first_line(error)
        return None

    with ThreadPoolExecutor(COMPILERS) as pool:
        reasons = list(pool.map(compiled, tiles))
    ways: dict[str, tuple[Tile | None, Callable[[], Tensor]]] = {
        name_of(tile): (tile, lambda tile=tile: launch(hidden, packed, tile))  # type: ignore[misc]
        for tile, reason in zip(tiles, reasons, strict=True)
        if reason is None
    }
    refused |= {name_of(tile): reason for tile, reason in zip(tiles, reasons, strict=True) if reason is not None}
    ways[UNPACKED] = None, lambda: unpacked(hidden, packed)
    expected = unpacked(hidden, packed)
    emptied = _emptied(hidden.device)
    empty_us = graph_us(lambda: None, emptied)
    for name, (_, way) in ways.items():
        try:
            off = difference(way(), expected)
            if off > MOST_OFF:
                refused[name] = f"its result is {off:.2g} of its norm off"
                continue
            us[name] = max(0.01, graph_us(way, emptied) - empty_us)
        except RuntimeError as error:
            refused[name] = _first_line(error)
    assert us, f"no way to multiply by {packed.form}: {refused}"
    best = min(us, key=us.__getitem__)
    return _choice(hidden, packed, ways[best][0], us, refused)


def difference(result: Tensor, expected: Tensor) -> float:
    """Frobenius norm of what they differ by, in parts of the expected result's; infinite where one is not finite."""
    off = float((result.float() - expected.float()).norm() / expected.float().norm())
    return off if off < float("inf") else float("inf")


def _emptied(device: torch.device) -> Tensor:
    """Memory that fills the last cache of the device twice."""
    return torch.empty(2 * torch.cuda.get_device_properties(device).L2_cache_size, dtype=torch.int8, device=device)


def graph_us(way: Callable[[], Tensor | None], emptied: Tensor) -> float:
    """What a product takes in a graph, in microseconds, with the overwriting of the last cache before it.

    Args:
        way: Makes the product.
        emptied: Memory to overwrite.
    """
    way()
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(emptied.device)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            for _ in range(REPEATS):
                emptied.fill_(1)
                way()
        finally:
            graph.capture_end()
        times: list[float] = []
        for _ in range(REPLAYS):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(1000 * start.elapsed_time(end) / REPEATS)
    torch.cuda.current_stream().wait_stream(stream)
    return min(times)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"[:200]
