"""Sentences about mixers: from which length on one pays, what it keeps for each token, and what did not fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarker.core.formatting import decimal, gib, percent
from benchmarker.core.stats import Ratio
from benchmarker.workloads.attention.metrics import Crossing, crossings

SLOPE_LENGTHS = 3
"""A line through two lengths fits both."""


@dataclass(frozen=True)
class Against:
    """One length: how a mixer compares with the best softmax there."""

    seq_len: int
    ratio: Ratio
    """How many times as fast the mixer is."""
    best: str
    """Name of the fastest softmax at this length."""


@dataclass(frozen=True)
class Slope:
    """bytes = fixed + per_token * tokens, by least squares over lengths."""

    fixed_bytes: float
    per_token_bytes: float
    worst: float
    """The largest distance of a measured size from the line, over that size."""


def turns_of(series: Sequence[Against]) -> tuple[Crossing, ...]:
    """Between which lengths a mixer begins to be faster than the best softmax, or slower."""
    return crossings([(point.seq_len, point.ratio) for point in series])


def crossover_in_words(variant: str, series: Sequence[Against]) -> str | None:
    """From which length on a mixer beats the best softmax. None for fewer than two lengths."""
    if len(series) < 2:
        return None
    ordered = sorted(series, key=lambda point: point.seq_len)
    turns = turns_of(ordered)
    best = {point.seq_len: point.best for point in ordered}
    if turns:
        return "; ".join(
            f"{variant} is {_verdict(turn.is_faster)} than the best softmax from between "
            f"{turn.after:,} and {turn.before:,} positions on ({best[turn.before]} at {turn.before:,})"
            for turn in turns
        )
    return _everywhere(variant, ordered)


def kernels_in_words(series: Sequence[Against]) -> str:
    """`; its kernels alone are faster from between 4,096 and 8,192 on`. Empty where that cannot be told.

    Args:
        series: By the time of the kernels alone, without the host that launches them.
    """
    start = "; its kernels alone are"
    turns = turns_of(series)
    if turns:
        spans = (f"{_verdict(turn.is_faster)} from between {turn.after:,} and {turn.before:,} on" for turn in turns)
        return f"{start} {', '.join(spans)}"
    if _all_faster(series) or _all_slower(series):
        return f"{start} {_verdict(_all_faster(series))} at all measured lengths"
    return ""


def _verdict(is_faster: bool) -> str:
    return "faster" if is_faster else "slower"


def _all_faster(series: Sequence[Against]) -> bool:
    return bool(series) and all(point.ratio.low is not None and point.ratio.low > 1 for point in series)


def _all_slower(series: Sequence[Against]) -> bool:
    return bool(series) and all(point.ratio.high is not None and point.ratio.high < 1 for point in series)


def _everywhere(variant: str, ordered: Sequence[Against]) -> str:
    """Where nothing crosses: faster or slower at all lengths that were measured, or undecided."""
    shortest, longest = ordered[0], ordered[-1]
    span = f"from {shortest.seq_len:,} to {longest.seq_len:,} positions"
    which = " and ".join(dict.fromkeys(point.best for point in ordered))
    ends = f"{_times(shortest.ratio)} at {shortest.seq_len:,}, {_times(longest.ratio)} at {longest.seq_len:,}"
    if _all_faster(ordered) or _all_slower(ordered):
        verdict = _verdict(_all_faster(ordered))
        return f"{variant} is {verdict} than the best softmax ({which}) at all measured lengths, {span}: {ends}"
    return f"{variant} against the best softmax ({which}): {ends}; no crossing can be told, {span}"


def _times(ratio: Ratio) -> str:
    return f"{decimal(ratio.value, digits=3)}x"


def slope(sizes: Sequence[tuple[int, int]]) -> Slope | None:
    """The line through bytes by tokens. None for fewer than three lengths.

    Args:
        sizes: Tokens of the whole batch, and bytes.
    """
    import numpy

    if len({tokens for tokens, _ in sizes}) < SLOPE_LENGTHS:
        return None
    tokens, measured = (numpy.array(part, dtype=float) for part in zip(*sizes, strict=True))
    per_token, fixed = numpy.polyfit(tokens, measured, 1)
    worst = float(numpy.max(numpy.abs(fixed + per_token * tokens - measured) / measured))
    return Slope(float(fixed), float(per_token), worst)


def slope_in_words(variant: str, line: Slope, what: str) -> str:
    """`gdn-fla-chunk keeps 16.1 KiB a token for the backward pass, at most 1 % off a line`."""
    per_token = line.per_token_bytes / 1024
    return f"{variant} {what} {per_token:.1f} KiB a token, at most {percent(line.worst)} off a straight line"


def does_not_fit(variant: str, seq_len: int, least: int | None, free: int | None) -> str:
    """`at 65,536 softmax-naive does not fit: it needs 128.00 GiB at least and 78.90 GiB were free`."""
    text = f"at {seq_len:,} positions {variant} does not fit"
    if least is None or free is None:
        return text
    more = " at least" if least > free else " for inputs, output and scores alone"
    return f"{text}: it needs {gib(least)}{more}, and {gib(free)} were free"
