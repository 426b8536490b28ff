"""Which variants nothing else beats: the Pareto front of speed, memory and quality."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarker.comparison.rows import Row
from benchmarker.core.stats import SAME_WITHIN


def front(rows: Sequence[Row]) -> list[Row]:
    """The rows that no other row beats: as good in everything that is known, and better in something.

    Speed and peak memory must be known. They count in levels of two per cent, the first from the best value, so that
    hardly less memory is worth no slowness; at the edge of a level less can decide. Divergence from the baseline counts
    where every row has one; the baseline's own is none. Judged by the measured values: the intervals say how sure they
    are.

    Args:
        rows: Of one cell.
    """
    able = [row for row in rows if row.rate and row.peak_memory_bytes is not None]
    with_quality = all(row.is_baseline or row.kl_divergence is not None for row in able)
    times = _levels([1 / row.rate.value for row in able if row.rate])
    peaks = _levels([float(row.peak_memory_bytes or 0) for row in able])
    divergences = [(row.kl_divergence or 0.0) if with_quality and not row.is_baseline else 0.0 for row in able]
    costs = list(zip(times, peaks, divergences, strict=True))
    return [row for row, own in zip(able, costs, strict=True) if not any(_beats(other, own) for other in costs)]


def _levels(values: Sequence[float]) -> list[int]:
    """Which place each has, the least first; a place is shared by all within two per cent of its best."""
    bests: list[float] = []
    for value in sorted(values):
        if not bests or value > bests[-1] * (1 + SAME_WITHIN):
            bests.append(value)
    return [sum(best <= value for best in bests) for value in values]


def _beats(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(mine <= theirs for mine, theirs in zip(one, other, strict=True))
