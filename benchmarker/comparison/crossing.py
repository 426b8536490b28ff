"""Sizes between which one variant becomes faster or slower than another.

A size counts as faster or slower if the interval of the ratio excludes 1. Other sizes, and those with fewer than three
rounds, are undecided: they widen the span of a crossing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarker.core.stats import Ratio

Ratios = Sequence[tuple[int, Ratio]]


@dataclass(frozen=True)
class Crossing:
    """Span of sizes in which the verdict changes."""

    after: int
    before: int  # First size with the later verdict. Measured sizes between the two are undecided.
    is_faster: bool  # True if the variant is faster from `before` on.

    @property
    def verdict(self) -> str:
        return verdict_text(is_faster=self.is_faster)


def crossings(ratios: Ratios) -> tuple[Crossing, ...]:
    return tuple(
        Crossing(smaller, larger, is_faster)
        for (smaller, was_faster), (larger, is_faster) in pairwise(_verdicts(ratios))
        if was_faster != is_faster
    )


def always_faster(ratios: Ratios) -> bool | None:
    """Return True if the variant is faster at every size, False if slower at every size, else None."""
    verdicts = _verdicts(ratios)
    distinct = {is_faster for _, is_faster in verdicts}
    return distinct.pop() if len(verdicts) == len(ratios) and len(distinct) == 1 else None


def _verdicts(ratios: Ratios) -> list[tuple[int, bool]]:
    return [
        (size, ratio.value > 1)
        for size, ratio in sorted(ratios, key=lambda pair: pair[0])
        if ratio.low is not None and ratio.high is not None and (ratio.low > 1 or ratio.high < 1)
    ]


def verdict_text(*, is_faster: bool) -> str:
    return "faster" if is_faster else "slower"
