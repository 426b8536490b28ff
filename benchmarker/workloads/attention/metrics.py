"""What is computed from the times of attention: rates, shares, how time grows with the length, and where two cross."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarker.core.stats import Ratio

LEAST_LENGTHS = 4
"""Three parameters through three points fit anything."""


@dataclass(frozen=True)
class Exponent:
    """How the time grew between two neighbouring lengths: by length ** value."""

    shorter: int
    longer: int
    value: float


@dataclass(frozen=True)
class Growth:
    """t = fixed_s + factor_s * S ** exponent, with fixed_s >= 0."""

    fixed_s: float
    """What each call costs at any length. Left out, a line of 1.0 would read as 0.9."""
    factor_s: float
    exponent: float
    lengths: int
    worst: float
    """The largest relative distance of a measured time from the fit."""


@dataclass(frozen=True)
class Crossing:
    """Where one variant begins to win or to lose: between two neighbouring measured lengths, never outside them."""

    after: int
    """The last length with the earlier verdict."""
    before: int
    """The first length with the later one. Lengths between the two, where there are any, were undecided."""
    is_faster: bool
    """Whether the variant is the faster one from `before` on."""


def share_of_matmul(flops: int, latency_s: float, matmul_flops_per_s: float) -> float:
    """Share of the rate that a large matrix product reached in the same process and type."""
    return flops / latency_s / matmul_flops_per_s


def local_exponents(times: Sequence[tuple[int, float]]) -> tuple[Exponent, ...]:
    """log(t2 / t1) / log(S2 / S1) for neighbouring lengths; for a doubling it is log2(t(2S) / t(S))."""
    ordered = sorted(times)
    return tuple(
        Exponent(shorter, longer, math.log(later_s / earlier_s) / math.log(longer / shorter))
        for (shorter, earlier_s), (longer, later_s) in pairwise(ordered)
    )


def growth(times: Sequence[tuple[int, float]]) -> Growth | None:
    """The fit with the least sum of squared relative distances. None for fewer than four lengths."""
    from scipy.optimize import minimize_scalar

    if len(times) < LEAST_LENGTHS:
        return None
    best = min(
        (
            minimize_scalar(lambda exponent: _fit(times, exponent)[2], bounds=bounds, method="bounded")
            for bounds in ((0.05, 1.0), (1.0, 2.0), (2.0, 4.0))
        ),
        key=lambda result: float(result.fun),
    )
    exponent = float(best.x)
    fixed_s, factor_s, _ = _fit(times, exponent)
    worst = max(abs(fixed_s + factor_s * length**exponent - time_s) / time_s for length, time_s in times)
    return Growth(fixed_s, factor_s, exponent, len(times), worst)


def _fit(times: Sequence[tuple[int, float]], exponent: float) -> tuple[float, float, float]:
    """The best fixed_s >= 0 and factor_s >= 0 for an exponent, and the sum of squared relative distances."""
    import numpy
    from scipy.optimize import nnls

    longest = max(length for length, _ in times)
    rows = [[1 / time_s, (length / longest) ** exponent / time_s] for length, time_s in times]
    (fixed_s, factor_s), distance = nnls(numpy.array(rows), numpy.ones(len(times)))
    return float(fixed_s), float(factor_s) / longest**exponent, float(distance) ** 2


def crossings(ratios: Sequence[tuple[int, Ratio]]) -> tuple[Crossing, ...]:
    """Where the verdict of a variant against another turns.

    A length counts as faster or slower where the ratio's interval leaves out 1; the others, and those of fewer than
    three rounds, are undecided and lie inside the interval that is given.

    Args:
        ratios: By length, how many times as fast the variant is.
    """
    by_length = sorted((length, ratio.value > 1) for length, ratio in ratios if _is_decided(ratio))
    return tuple(
        Crossing(shorter, longer, is_later_faster)
        for (shorter, is_earlier_faster), (longer, is_later_faster) in pairwise(by_length)
        if is_earlier_faster != is_later_faster
    )


def _is_decided(ratio: Ratio) -> bool:
    return ratio.low is not None and ratio.high is not None and (ratio.low > 1 or ratio.high < 1)
