"""Largest batch at which a quantization is faster than the unquantized variant, and shortest prompt at which it is
slower.

Both are measured at a few sizes. Between two sizes the logarithm of the speed-up is interpolated over the logarithm of
the size, and the crossing is at 0:

    ln N = ln a + (ln b - ln a) * ln r(a) / (ln r(a) - ln r(b))

Its interval extends from the crossing of the lower bounds to that of the upper bounds. For r = y / x with intervals x *
exp(+-u) and y * exp(+-v), the interval of r is r * exp(+-sqrt(u^2 + v^2)). A size whose interval contains 1 is
undecided.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarker.comparison.rows import CellKey, is_wide, number_text
from benchmarker.core.formatting import times
from benchmarker.core.stats import Estimate, Ratio
from benchmarker.core.tables import plain_line
from benchmarker.workloads.generation.reading.baseline import peer_of
from benchmarker.workloads.generation.reading.generation_rows import GenerationRow, over_batches

TIMES: dict[str, Callable[[GenerationRow], Estimate | None]] = {
    "the whole request": lambda row: row.latency,
    "decode": lambda row: row.tpot,
}

PREFILL_TOKENS = 256
"""Shortest prompt for which prefill is compared: shorter ones wait for the weights or the host, as decoding does."""


@dataclass(frozen=True)
class SpeedUp:
    """Speed-up of a variant relative to its peer at one size."""

    value: float
    spread: float | None  # Half of its interval, as a logarithm; None for fewer than three rounds.

    @property
    def is_open(self) -> bool:
        return self.spread is not None and abs(math.log(self.value)) <= self.spread

    def __str__(self) -> str:
        half = math.exp(self.spread or 0.0)
        ratio = Ratio(self.value, 0, self.value / half, self.value * half)
        return number_text(ratio, times(ratio), None) if self.is_open or is_wide(ratio) else f"{self.value:.2f}x"


@dataclass(frozen=True)
class Crossover:
    """Size at which a speed-up falls below 1, with its interval; None for an end beyond the measured sizes."""

    size: float
    low: float | None
    high: float | None
    has_interval: bool


def crossover_words(rows: Sequence[GenerationRow], baseline: str | None) -> list[str]:
    """Return sentences for each quantization: on batches for request and decode, and on prompts for prefill."""
    lines = []
    for (variant, peer, cell), per_batch in _series(over_batches(rows), baseline, "batch_size").items():
        for what, time in TIMES.items():
            if words := _batches(variant, peer, what, _speed_ups(per_batch, time)):
                lines.append(f"{words} ({_shape(cell)}).")
    # A prefill does not depend on the number of new tokens.
    for (variant, peer, cell), per_prompt in _series(rows, baseline, "prompt_tokens", "new_tokens").items():
        if max(per_prompt) >= PREFILL_TOKENS and (
            words := _prompts(variant, peer, _speed_ups(per_prompt, lambda row: row.ttft))
        ):
            lines.append(f"{words} (batch {cell.batch_size}{_prompt_words(cell)}).")
    return list(dict.fromkeys(lines))


Pairs = dict[int, tuple[GenerationRow, GenerationRow]]


def _series(
    rows: Sequence[GenerationRow], baseline: str | None, axis: str, *ignored: str
) -> Mapping[tuple[str, str, CellKey], Pairs]:
    bases = {row.cell: row for row in rows if row.variant == baseline}
    series: dict[tuple[str, str, CellKey], Pairs] = {}
    for row in rows:
        peer = peer_of(row, bases[row.cell], rows) if row.cell and row.cell in bases else None
        if row.cell and peer:
            place = row.variant, peer.variant, row.cell.without(axis, *ignored)
            series.setdefault(place, {})[row.cell[axis]] = row, peer
    return series


def _speed_ups(pairs: Pairs, time: Callable[[GenerationRow], Estimate | None]) -> dict[int, SpeedUp]:
    speed_ups = {}
    for size, (row, peer) in sorted(pairs.items()):
        row_time, peer_time = time(row), time(peer)
        if row_time and peer_time:
            halves = [math.log(side.high / side.value) for side in (row_time, peer_time) if side.high is not None]
            spread = math.hypot(*halves) if len(halves) == 2 else None
            speed_ups[size] = SpeedUp(peer_time.value / row_time.value, spread)
    return speed_ups


def crossover(speed_ups: Mapping[int, SpeedUp]) -> Crossover | None:
    """Return the size at which a speed-up falls below 1, if it does so once. The sizes are sorted."""
    logs = {size: math.log(ratio.value) for size, ratio in speed_ups.items()}
    signs = [value > 0 for value in logs.values()]
    if len(signs) < 2 or not signs[0] or signs[-1] or signs != sorted(signs, reverse=True):
        return None
    size_at_1 = _first_fall(logs)
    assert size_at_1 is not None
    if any(ratio.spread is None for ratio in speed_ups.values()):
        return Crossover(size_at_1, None, None, has_interval=False)
    spreads = {size: ratio.spread or 0.0 for size, ratio in speed_ups.items()}
    low = _first_fall({size: value - spreads[size] for size, value in logs.items()})
    high = _first_fall({size: value + spreads[size] for size, value in logs.items()})
    return Crossover(size_at_1, low, high, has_interval=True)


def _first_fall(logs: Mapping[int, float]) -> float | None:
    for (before, upper), (after, lower) in pairwise(logs.items()):
        if upper > 0 >= lower:
            return math.exp(math.log(before) + math.log(after / before) * upper / (upper - lower))
    return None


def _batches(variant: str, peer: str, what: str, speed_ups: Mapping[int, SpeedUp]) -> str | None:
    if len(speed_ups) < 2:
        return None
    start = f"{plain_line(variant)} wins against {plain_line(peer)} in {what}"
    words = _Words(start, "batch", "batch ", "", speed_ups)
    fall = crossover(speed_ups)
    until = f"until batch {math.floor(fall.size):,}{_interval(fall, list(speed_ups), math.floor)}" if fall else None
    return words.said([size for size, ratio in speed_ups.items() if ratio.value > 1], until, "best", max)


def _prompts(variant: str, peer: str, speed_ups: Mapping[int, SpeedUp]) -> str | None:
    if len(speed_ups) < 2:
        return None
    words = _Words(f"{plain_line(variant)} loses to {plain_line(peer)} in prefill", "prompt", "", " tokens", speed_ups)
    fall = crossover(speed_ups)
    since = f"from {math.ceil(fall.size):,} tokens on{_interval(fall, list(speed_ups), math.ceil)}" if fall else None
    return words.said([size for size, ratio in speed_ups.items() if ratio.value <= 1], since, "worst", min)


@dataclass(frozen=True)
class _Words:
    """Sentence on the sizes at which a comparison is won, lost or undecided."""

    start: str  # Beginning of the sentence: `int8 wins against fp16 in decode`.
    axis: str
    before: str
    after: str  # Text before and after the sizes.
    speed_ups: Mapping[int, SpeedUp]

    def said(self, holding: Sequence[int], crossing: str | None, end: str, furthest: Callable[..., int]) -> str:
        """Return the sentence.

        Args:
            holding: Sizes at which it holds by the value alone.
            crossing: Start or end, for speed-ups that fall below 1 once.
            end: `best` or `worst` if it holds at no size; `furthest` returns the size.
        """
        undecided = [size for size, ratio in self.speed_ups.items() if ratio.is_open]
        decided = [size for size in self.speed_ups if size not in undecided]
        held = [size for size in decided if size in holding]
        if not decided:
            return f"it is not decided whether {self.start}: {self._named(undecided)}"
        if held and len(held) < len(decided) and crossing:
            return f"{self.start} {crossing}"
        doubt = f"; at {self._named(undecided)} it is not decided" if undecided else ""
        if not held:
            most = furthest(decided, key=lambda size: self.speed_ups[size].value)
            return f"{self.start} at no {self.axis}: at {end} {self._named([most])}{doubt}"
        if len(held) < len(decided):
            return f"{self.start} only at {self._named(held)}{doubt}"
        every = "" if undecided else f"at every {self.axis}, "
        return f"{self.start} {every}{self._span(held)}{doubt}"

    def _span(self, sizes: Sequence[int]) -> str:
        measured = list(self.speed_ups)
        if len(sizes) > 1 and measured.index(sizes[-1]) - measured.index(sizes[0]) == len(sizes) - 1:
            return f"from {self._at(sizes[0])} to {self._at(sizes[-1])}{self.after}"
        return f"at {self._named(sizes)}"

    def _named(self, sizes: Sequence[int]) -> str:
        return ", ".join(map(self._at, sizes)) + self.after

    def _at(self, size: int) -> str:
        return f"{self.before}{size:,} ({self.speed_ups[size]})"


def _interval(fall: Crossover, sizes: Sequence[int], whole: Callable[[float], int]) -> str:
    if not fall.has_interval:
        return " (no interval: fewer than three rounds)"
    low = f"under {sizes[0]:,}" if fall.low is None else f"{whole(fall.low):,}"
    high = f"over {sizes[-1]:,}" if fall.high is None else f"{whole(fall.high):,}"
    return f" [{low}, {high}]"


def _shape(cell: CellKey) -> str:
    depth = f", depth {cell.depth}" if cell.depth else ""
    return f"prompt {cell.prompt_tokens}, {cell.new_tokens} new tokens{depth}{_prompt_words(cell)}"


def _prompt_words(cell: CellKey) -> str:
    return ", distinct prompts" if cell.has_distinct_prompts else ""
