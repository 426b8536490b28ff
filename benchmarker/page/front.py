"""Which variants nothing else beats: the Pareto front of speed, memory and quality."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarker.report.rows import Row


def front(rows: Sequence[Row]) -> list[Row]:
    """The rows that no other row beats or equals in everything that is known and beats in something.

    Speed and peak memory must be known. Divergence from the baseline counts where every row has one; the baseline's
    own is none. Judged by the measured values, however close: the intervals say how sure they are.

    Args:
        rows: Of one cell.
    """
    able = [row for row in rows if row.rate and row.peak_memory_bytes is not None]
    with_quality = all(row.is_baseline or row.kl_divergence is not None for row in able)
    costs = {row.variant: _costs(row, with_quality=with_quality) for row in able}
    return [row for row in able if not any(_beats(costs[other.variant], costs[row.variant]) for other in able)]


def _costs(row: Row, *, with_quality: bool) -> tuple[float, ...]:
    """Less is better in each."""
    assert row.rate
    assert row.peak_memory_bytes is not None
    divergence = 0.0 if row.is_baseline else row.kl_divergence or 0.0
    return (-row.rate.value, row.peak_memory_bytes, divergence if with_quality else 0.0)


def _beats(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(mine <= theirs for mine, theirs in zip(one, other, strict=True))
