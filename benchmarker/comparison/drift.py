"""Did the machine itself become slower or faster while it was measured?

Every process gives one median a cell. Within a variant and a cell these should differ by chance alone; where their
logarithms follow the time at which they were taken, the machine drifted: it warmed up, or others came to use it.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import stdtr

from benchmarker.comparison.comparing import keys_of
from benchmarker.comparison.rows import CellKey
from benchmarker.schema.record import RunRecord

SMALLEST_CHANGE = 0.01
LARGEST_P = 0.01


@dataclass(frozen=True)
class Drift:
    """A trend that all variants share."""

    change: float
    """Of the latency, over the whole time: 0.02 is 2 % slower at the end."""
    span_s: float
    p: float
    """Two-sided, for no trend."""


def find_drift(records: Sequence[RunRecord]) -> Drift | None:
    """The trend, where it is more than 1 % over the whole time and no chance (p < 0.01); None otherwise.

    A straight line through the logarithms of the medians over time, with a level of its own for every variant and
    cell (analysis of covariance): slope = sum(t y) / sum(t t) of the deviations from each group's means.
    """
    groups: dict[tuple[str, CellKey], list[tuple[float, float]]] = defaultdict(list)
    for record in records:
        for key, cell in zip(keys_of(record), record.cells, strict=True):
            if cell.status == "ok" and cell.timed_at and cell.samples:
                latency_s = statistics.median(sample.latency_s for sample in cell.samples)
                groups[record.variant.name, key].append((cell.timed_at[0], math.log(latency_s)))
    moments = [moment for points in groups.values() for moment, _ in points]
    freedom = len(moments) - len(groups) - 1
    if freedom < 1:
        return None
    deviations = [pair for points in groups.values() for pair in _from_means(points)]
    spread = sum(moment * moment for moment, _ in deviations)
    if spread == 0:
        return None
    slope = sum(moment * log for moment, log in deviations) / spread
    rest = sum((log - slope * moment) ** 2 for moment, log in deviations)
    error = math.sqrt(rest / freedom / spread)
    p = float(2 * stdtr(freedom, -abs(slope) / error)) if error else 0.0
    span_s = max(moments) - min(moments)
    change = math.expm1(slope * span_s)
    return Drift(change, span_s, p) if abs(change) > SMALLEST_CHANGE and p < LARGEST_P else None


def _from_means(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    middle, level = (statistics.fmean(values) for values in zip(*points, strict=True))
    return [(moment - middle, log - level) for moment, log in points]
