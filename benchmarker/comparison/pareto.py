"""Which variants nothing else beats: the Pareto front of speed, memory and quality."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarker.comparison.rows import RowT
from benchmarker.core.stats import SAME_WITHIN


def front(rows: Sequence[RowT]) -> list[RowT]:
    """The rows that no other row beats: as good in everything that is known, and better in something.

    Speed and peak memory must be known. They count in levels of two per cent, the first from the best value, so that
    hardly less memory is worth no slowness; at the edge of a level less can decide. What else a variant costs, such as
    divergence from the baseline, counts where every row has it; the baseline's own is none. Judged by the measured
    values: the intervals say how sure they are.

    Args:
        rows: Rows of one cell.
    """
    able = [row for row in rows if row.pace and row.peak_memory_bytes is not None]
    losses = [0.0 if row.is_baseline else row.loss for row in able]
    times = _levels([1 / row.speed for row in able])
    peaks = _levels([float(row.peak_memory_bytes or 0) for row in able])
    divergences = [loss or 0.0 for loss in losses] if None not in losses else [0.0] * len(able)
    costs = list(zip(times, peaks, divergences, strict=True))
    return [row for row, cost in zip(able, costs, strict=True) if not any(_beats(rival, cost) for rival in costs)]


def _levels(values: Sequence[float]) -> list[int]:
    """The level of each value, 1 for the least; values within two per cent of a level's best share it."""
    bests: list[float] = []
    for value in sorted(values):
        if not bests or value > bests[-1] * (1 + SAME_WITHIN):
            bests.append(value)
    return [sum(best <= value for best in bests) for value in values]


def _beats(first: tuple[float, ...], second: tuple[float, ...]) -> bool:
    """Whether the first costs are no higher in anything, and lower in something."""
    return first != second and all(low <= high for low, high in zip(first, second, strict=True))
