"""Statistics of speed: medians, intervals, ratios and verdicts.

The unit of replication is the process: two processes of the same variant differ by more than the repeats inside one
process (memory layout, autotuning, clocks). Every process gives one number per cell, the median of its repeats, and one
round (each variant once, in a fresh process) gives one ratio. Times are skewed to the right and ratios multiply, so all
intervals are computed on logarithms: a t interval over R rounds, transformed back with exp.

Sources: Kalibera & Jones, "Rigorous benchmarking in reasonable time" (ISMM 2013) for the unit; Hoefler & Belli,
"Scientific benchmarking of parallel computing systems" (SC 2015) for logarithms and keeping outliers; Holm (Scand. J.
Statist. 6, 1979); Welch (Biometrika 34, 1947).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, TypeVar

CONFIDENCE = 0.95
POWER = 0.80
MIN_ROUNDS = 3  # With two rounds the t interval is 13 standard errors wide on each side.
SAME_WITHIN = 0.02
NORMAL_95 = 1.959964  # 97.5 % quantile of the normal distribution.

Round = TypeVar("Round", bound=Hashable)
Verdict = Literal["faster", "slower", "same", "inconclusive", "not tested"]


@dataclass(frozen=True)
class Estimate:
    value: float
    low: float | None = None
    high: float | None = None
    deviation: float | None = None
    """Sample standard deviation over the timed repeats, not the uncertainty of the value."""


@dataclass(frozen=True)
class Ratio:
    """Speed relative to the baseline: above 1 is faster.

    `standard_error` is the standard error of ln(value), `freedom` its degrees of freedom, and `p` the uncorrected
    two-sided p value for a true ratio of 1. These three and the interval are None below three rounds.
    """

    value: float
    rounds: int
    low: float | None = None
    high: float | None = None
    p: float | None = None
    standard_error: float | None = None
    freedom: float | None = None
    common: tuple[Any, ...] = ()  # Rounds of a paired ratio if the variant or the baseline has others, else empty.

    def detectable(self, tests: int = 1) -> float | None:
        """Return the smallest true ratio above 1 detected with 80 % power at 5 % / `tests`; None below 3 rounds."""
        if self.standard_error is None or self.freedom is None:
            return None
        # exp(c * SE); c is the noncentrality at which a two-sided t test at 5 % / `tests` has 80 % power.
        return math.exp(_noncentrality(self.freedom, tests) * self.standard_error)


def geometric_mean(values: Sequence[float]) -> float:
    if len(values) == 1:
        return values[0]  # exp(ln x) is not x in the last digit
    return math.exp(statistics.fmean(map(math.log, values))) if all(values) else 0.0


def wilson(right: int, total: int) -> tuple[float, float, float]:
    """Return right / total and its 95 % Wilson score interval, as (share, low, high)."""
    share, square = right / total, NORMAL_95**2
    middle = (share + square / (2 * total)) / (1 + square / total)
    half = NORMAL_95 / (1 + square / total) * math.sqrt(share * (1 - share) / total + square / (4 * total**2))
    return share, max(0.0, middle - half), min(1.0, middle + half)


def deviation(values: Sequence[float]) -> float | None:
    if len(values) < 2:
        return None
    # statistics.stdev computes in exact fractions and took half the time of the command `compare`.
    mean = statistics.fmean(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def estimate(medians: Sequence[float], repeats: Sequence[float] = ()) -> Estimate:
    """Return a value and interval from per-round medians m: exp( mean ln m +- t(R-1, 0.975) * sd(ln m) / sqrt(R) )."""
    value, spread = geometric_mean(medians), deviation(repeats)
    if len(medians) < MIN_ROUNDS:
        return Estimate(value, deviation=spread)
    half = _critical(len(medians) - 1) * _standard_error(list(map(math.log, medians)))
    return Estimate(value, value * math.exp(-half), value * math.exp(half), spread)


def paired_ratio(baseline: Mapping[Round, float], variant: Mapping[Round, float]) -> Ratio:
    """Return the speed-up from times by round: d_r = ln(baseline_r) - ln(variant_r), ratio = exp(mean d).

    The interval is exp( mean d +- t(R-1, 0.975) * sd(d) / sqrt(R) ). A slowdown of a whole round is in both times and
    cancels. If the baseline and the variant share no round, the result is that of `unpaired_ratio`.
    """
    common = [cell for cell in baseline if cell in variant]
    if not common:
        return unpaired_ratio(list(baseline.values()), list(variant.values()))
    logs = [math.log(baseline[number] / variant[number]) for number in common]
    centre = statistics.fmean(logs)
    ratio = Ratio(math.exp(centre), rounds=len(logs))
    if len(logs) >= MIN_ROUNDS:
        ratio = _ratio(centre, _standard_error(logs), freedom=len(logs) - 1, rounds=len(logs))
    return replace(ratio, common=tuple(common)) if len(common) < max(len(baseline), len(variant)) else ratio


def unpaired_ratio(baseline: Sequence[float], variant: Sequence[float]) -> Ratio:
    """Return the speed-up between sweeps without common rounds: Welch's t on logarithms of per-process medians.

    SE^2 = s1^2/n1 + s2^2/n2; degrees of freedom SE^4 / ( (s1^2/n1)^2/(n1-1) + (s2^2/n2)^2/(n2-1) ).
    """
    value = geometric_mean(baseline) / geometric_mean(variant)
    fewer = min(len(baseline), len(variant))
    if fewer < MIN_ROUNDS:
        return Ratio(value, rounds=fewer)
    first, second = (_standard_error(list(map(math.log, side))) ** 2 for side in (baseline, variant))
    weight = first**2 / (len(baseline) - 1) + second**2 / (len(variant) - 1)
    freedom = (first + second) ** 2 / weight if weight else fewer - 1
    return _ratio(math.log(value), math.sqrt(first + second), freedom=freedom, rounds=fewer)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p values: the i-th smallest of m is max over j <= i of min(1, (m - j + 1) * p_(j))."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted, highest = [0.0] * len(p_values), 0.0
    for position, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - position) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def verdict(ratio: Ratio, adjusted_p: float | None, *, band: float = SAME_WITHIN) -> Verdict:
    """Return the verdict on a ratio; "same" if its whole interval lies between 1 / (1 + band) and 1 + band."""
    if ratio.low is None or ratio.high is None or adjusted_p is None:
        return "not tested"
    bottom, top = 1 / (1 + band), 1 + band
    if bottom <= ratio.low and ratio.high <= top:
        return "same"
    if adjusted_p >= 1 - CONFIDENCE or bottom <= ratio.value <= top:
        return "inconclusive"
    return "faster" if ratio.value > 1 else "slower"


def verdicts(ratios: Sequence[Ratio], *, band: float = SAME_WITHIN) -> list[Verdict]:
    tested = [ratio.p for ratio in ratios if ratio.p is not None]
    adjusted = iter(holm(tested))
    return [verdict(ratio, None if ratio.p is None else next(adjusted), band=band) for ratio in ratios]


def rounds_to_decide(ratio: Ratio, *, tests: int = 1) -> int | None:
    """Return the number of additional rounds that would decide at the present spread; None if 40 in total would not."""
    if ratio.rounds < MIN_ROUNDS or ratio.standard_error is None:
        return max(1, MIN_ROUNDS - ratio.rounds)
    distance, edge = abs(math.log(ratio.value)), math.log(1 + SAME_WITHIN)
    spread = ratio.standard_error * math.sqrt(ratio.rounds)
    for count in range(ratio.rounds + 1, 41):
        half = spread / math.sqrt(count)
        if distance > edge and _critical(count - 1, tests) * half < distance:
            return count - ratio.rounds
        if distance + _critical(count - 1) * half < edge:
            return count - ratio.rounds
    return None


def _ratio(centre: float, standard_error: float, *, freedom: float, rounds: int) -> Ratio:
    from scipy.special import stdtr

    half = _critical(freedom) * standard_error
    # The standard error is 0 if all rounds have equal times: the clock is too coarse, or it is a unit test.
    p = 2 * float(stdtr(freedom, -abs(centre) / standard_error)) if standard_error else float(centre == 0)
    low, high = math.exp(centre - half), math.exp(centre + half)
    return Ratio(math.exp(centre), rounds, low, high, p, standard_error, freedom)


def _standard_error(values: Sequence[float]) -> float:
    return (deviation(values) or 0.0) / math.sqrt(len(values))


@cache
def _critical(freedom: float, tests: int = 1) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 1 - (1 - CONFIDENCE) / 2 / tests))


@cache
def _noncentrality(freedom: float, tests: int) -> float:
    from scipy.special import nctdtr, nctdtrinc

    critical = _critical(freedom, tests)
    effect = float(nctdtrinc(freedom, 1 - POWER, critical))
    small = 1e-4
    # scipy is accurate to about six digits; two Newton steps with a numerical slope add the remaining digits.
    for _ in range(2):
        power, next_power = nctdtr(freedom, effect, critical), nctdtr(freedom, effect + small, critical)
        effect -= float((power - (1 - POWER)) * small / (next_power - power))
    return effect
