"""Sizes, such as batch sizes, between which one variant becomes faster or slower than another.

Sizes at which the verdict of the tables is neither faster nor slower widen the span of a `Crossing`.

A `Crossover` is the single size N at which the ratio r is 1. Between measured sizes a and b, ln r is interpolated
linearly in ln N:

    ln N = ln a + (ln b - ln a) * ln r(a) / (ln r(a) - ln r(b))

The interval of N extends from the crossover of the ratios' lower bounds to the crossover of their upper bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarker.comparison.rows import is_wide
from benchmarker.comparison.speed_up import SpeedUp
from benchmarker.core.stats import Ratio, Verdict

SpeedUps = Sequence[tuple[int, SpeedUp]]
DECIDED: frozenset[Verdict] = frozenset({"faster", "slower"})
UNTESTED = " (no interval: fewer than three rounds)"


@dataclass(frozen=True)
class Crossing:
    """Two sizes between which the verdict changes. Measured sizes between them are undecided."""

    after: int
    before: int
    verdict: str  # Verdict at `before`: "faster" or "slower"; at `after` it is the reverse.


def crossings(speed_ups: SpeedUps) -> tuple[Crossing, ...]:
    decided = sorted((size, speed_up.verdict) for size, speed_up in speed_ups if speed_up.verdict in DECIDED)
    return tuple(
        Crossing(smaller, larger, verdict)
        for (smaller, former), (larger, verdict) in pairwise(decided)
        if former != verdict
    )


def constant_verdict(speed_ups: SpeedUps) -> str | None:
    """Return "faster" or "slower" if that is the verdict at every size, else None."""
    distinct = {speed_up.verdict for _, speed_up in speed_ups}
    return distinct.pop() if len(distinct) == 1 and distinct <= DECIDED else None


@dataclass(frozen=True)
class Crossover:
    """Size at which a ratio falls below 1, with its interval. An end beyond the measured sizes is None."""

    size: float
    low: float | None
    high: float | None
    has_interval: bool


def crossover(ratios: Mapping[int, Ratio]) -> Crossover | None:
    """Return the size at which the ratio falls below 1; None if it does not cross 1 exactly once. Keys are sorted."""
    signs = [ratio.value > 1 for ratio in ratios.values()]
    if len(signs) < 2 or not signs[0] or signs[-1] or signs != sorted(signs, reverse=True):
        return None
    fall = _first_fall({size: ratio.value for size, ratio in ratios.items()})
    assert fall is not None
    lows = {size: ratio.low for size, ratio in ratios.items() if ratio.low is not None}
    highs = {size: ratio.high for size, ratio in ratios.items() if ratio.high is not None}
    if len(lows) < len(ratios):
        return Crossover(fall, None, None, has_interval=False)
    return Crossover(fall, _first_fall(lows), _first_fall(highs), has_interval=True)


def inverse(ratios: Mapping[int, Ratio]) -> dict[int, Ratio]:
    return {
        size: Ratio(1 / ratio.value, ratio.rounds, ratio.high and 1 / ratio.high, ratio.low and 1 / ratio.low)
        for size, ratio in ratios.items()
    }


def _first_fall(ratios: Mapping[int, float]) -> float | None:
    for (before, upper), (after, lower) in pairwise(ratios.items()):
        if upper > 1 >= lower:
            share = math.log(upper) / math.log(upper / lower)
            return math.exp(math.log(before) + math.log(after / before) * share)
    return None


@dataclass(frozen=True)
class SizeWords:
    """Sentence on the sizes at which a comparison is won, lost or undecided."""

    start: str  # Beginning of the sentence: `int8 wins against fp16 in decode`.
    axis: str
    before: str  # Text before each size, such as `batch `.
    after: str  # Text after a list of sizes, such as ` tokens`.
    speed_ups: Mapping[int, SpeedUp]
    is_gain: bool = True  # True if `start` is true for ratios above 1, False if for all others.
    falling: str = ""  # End of the sentence if the ratios fall below 1 once: `until batch {}{}`, of size and interval.
    rising: str = ""  # The same if they rise above 1.

    def sentence(self) -> str | None:
        """Return the sentence; None for fewer than two sizes."""
        ratios = self.ratios
        if len(ratios) < 2:
            return None
        same = [size for size, speed_up in self.speed_ups.items() if speed_up.verdict == "same"]
        undecided = [size for size, speed_up in self.speed_ups.items() if speed_up.verdict == "inconclusive"]
        decided = [size for size in ratios if size not in (*same, *undecided)]
        held = [size for size in decided if (ratios[size].value > 1) == self.is_gain]
        doubt = f"; at {self._named(same)} both are equally fast" if same else ""
        if not decided:
            is_open = f"it is not decided whether {self.start}: {self._named(undecided)}"
            return f"{is_open if undecided else f'{self.start} at no {self.axis}'}{doubt}"
        if held and len(held) < len(decided) and (crossing := self._crossing()):
            return f"{self.start} {crossing}"
        doubt += f"; at {self._named(undecided)} it is not decided" if undecided else ""
        doubt = doubt if all(ratios[size].low is not None for size in decided) else UNTESTED + doubt
        if not held:
            end, furthest = ("highest", max) if self.is_gain else ("lowest", min)
            most = furthest(decided, key=lambda size: ratios[size].value)
            return f"{self.start} at no {self.axis}; the {end} ratio is that of {self._named([most])}{doubt}"
        if len(held) < len(decided):
            return f"{self.start} only at {self._named(held)}{doubt}"
        every = "" if same or undecided else f"at every {self.axis}, "
        return f"{self.start} {every}{self._span(held)}{doubt}"

    @property
    def ratios(self) -> dict[int, Ratio]:
        return {size: speed_up.ratio for size, speed_up in self.speed_ups.items()}

    def _crossing(self) -> str:
        if self.falling and (fall := crossover(self.ratios)):
            return self.falling.format(*self.size(fall, math.floor if self.is_gain else math.ceil))
        rise = crossover(inverse(self.ratios)) if self.rising else None
        return self.rising.format(*self.size(rise, math.ceil)) if rise else ""

    def size(self, fall: Crossover, whole: Callable[[float], int]) -> tuple[str, str]:
        """Return a crossover and its interval, rounded by `whole`: `("6", " [4, 9]")`."""

        def text(size: float) -> str:
            # An exact crossing at 8 is 7.999... after exp and log.
            return f"{whole(round(size, 6)):,}"

        if not fall.has_interval:
            return text(fall.size), UNTESTED
        sizes = list(self.speed_ups)
        low = f"under {sizes[0]:,}" if fall.low is None else text(fall.low)
        high = f"over {sizes[-1]:,}" if fall.high is None else text(fall.high)
        return text(fall.size), f" [{low}, {high}]"

    def _span(self, sizes: Sequence[int]) -> str:
        measured = list(self.speed_ups)
        if len(sizes) > 1 and measured.index(sizes[-1]) - measured.index(sizes[0]) == len(sizes) - 1:
            return f"from {self._at(sizes[0])} to {self._at(sizes[-1])}{self.after}"
        return f"at {self._named(sizes)}"

    def _named(self, sizes: Sequence[int]) -> str:
        return ", ".join(map(self._at, sizes)) + self.after

    def _at(self, size: int) -> str:
        speed_up = self.speed_ups[size]
        has_interval = speed_up.verdict in ("same", "inconclusive") or is_wide(speed_up.ratio)
        return f"{self.before}{size:,} ({speed_up.text if has_interval else f'{speed_up.ratio.value:.2f}x'})"
