"""What the rows say together: where each mixer crosses the best softmax, its memory a token, and what did not fit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from benchmarker.comparison.rows import CellKey
from benchmarker.core.formatting import percent
from benchmarker.core.stats import paired_ratio
from benchmarker.core.tables import escaped
from benchmarker.workloads.attention.reading.lengths import lines_of
from benchmarker.workloads.mixers.declared import mode_words
from benchmarker.workloads.mixers.reading.rows import MixersRow
from benchmarker.workloads.mixers.words import (
    Against,
    crossover_in_words,
    does_not_fit,
    kernels_in_words,
    slope,
    slope_in_words,
    turns_of,
)

if TYPE_CHECKING:
    from benchmarker.schema.record import Moment


def remarks(rows: Sequence[MixersRow], baseline: str | None) -> list[str]:  # noqa: ARG001
    """One line for each mixer and mode, then the memory, then what did not fit."""
    return [*crossovers(rows), *_shares(rows), *_slopes(rows), *_misfits(rows)]


def crossovers(rows: Sequence[MixersRow]) -> list[str]:
    """Where each mixer crosses the best softmax, by the time of calls; and by that of their kernels if it differs."""
    lines = []
    for line in lines_of([row.cell for row in rows if row.cell and row.latency], mode_words=mode_words):
        here = [row for row in rows if row.cell in line.keys and row.latency]
        by_kernels = _against(here, lambda row: row.kernels_by_round)
        for variant, points in _against(here, lambda row: row.latency_by_round).items():
            alone = by_kernels.get(variant, [])
            differs = turns_of(alone) != turns_of(points)
            if words := crossover_in_words(escaped(variant), points):
                lines.append(f"{line.words}: {words}{kernels_in_words(alone) if differs else ''}.")
    return lines


def _against(
    rows: Sequence[MixersRow], seconds_of: Callable[[MixersRow], Mapping[Moment, float]]
) -> dict[str, list[Against]]:
    """Each mixer beside the softmax that takes the least time at the same length, shortest length first.

    Args:
        seconds_of: A row's time, by round; empty where it has none.
    """
    lengths: dict[int, list[MixersRow]] = defaultdict(list)
    for row in rows:
        if row.cell and seconds_of(row):
            lengths[row.cell.seq_len].append(row)
    against: dict[str, list[Against]] = defaultdict(list)
    for seq_len, same in sorted(lengths.items()):
        best = best_softmax(same)
        for row in same if best else ():
            if not row.is_softmax and best:
                ratio = paired_ratio(seconds_of(best), seconds_of(row))
                against[row.variant].append(Against(seq_len, ratio, escaped(best.variant)))
    return against


def best_softmax(rows: Sequence[MixersRow]) -> MixersRow | None:
    """The fastest softmax of one cell."""
    able = [row for row in rows if row.is_softmax and row.latency]
    return min(able, key=lambda row: row.latency.value if row.latency else 0.0, default=None)


def _shares(rows: Sequence[MixersRow]) -> Iterator[str]:
    """What the best softmax has of the arithmetic of a training step."""
    cells: dict[CellKey, list[MixersRow]] = defaultdict(list)
    for row in rows:
        if row.cell and row.mixer_share is not None:
            cells[row.cell].append(row)
    for cell, members in cells.items():
        best = best_softmax(members)
        if best and best.mixer_share is not None:
            yield (
                f"{cell.words}: {escaped(best.variant)} is {percent(best.mixer_share)} of the arithmetic of the step, "
                "which no mixer can more than save."
            )


def _slopes(rows: Sequence[MixersRow]) -> Iterator[str]:
    """Of bytes over tokens, in each mode: of what is kept for the backward pass, else of the call's peak."""
    sizes: dict[tuple[str, str], dict[int, int]] = defaultdict(dict)
    for row in rows:
        fact = "kept" if row.cell and row.cell.mode != "forward" else "peak"
        if row.cell and fact in row.facts:
            sizes[row.variant, fact][row.tokens] = round(row.facts[fact])
    for (variant, fact), measured in sizes.items():
        line = slope(sorted(measured.items()))
        what = "keeps for the backward pass" if fact == "kept" else "has at its peak, forward,"
        if line:
            yield f"{slope_in_words(escaped(variant), line, what)}."


def _misfits(rows: Sequence[MixersRow]) -> Iterator[str]:
    for row in rows:
        cell = row.misfit
        if cell:
            yield f"{does_not_fit(escaped(row.variant), cell.seq_len, cell.least_bytes, cell.free_bytes)}."
