"""Sentences about attention: how its time grows, where a variant begins to win."""

from __future__ import annotations

from benchmarker.core.formatting import percent, seconds
from benchmarker.core.stats import Ratio
from benchmarker.workloads.attention.metrics import Crossing, Exponent, Growth


def crossing_in_words(variant: str, baseline: str, crossing: Crossing) -> str:
    """`flash is faster than naive from between 256 and 512 on`."""
    what = "faster" if crossing.is_faster else "slower"
    return f"{variant} is {what} than {baseline} from between {crossing.after:,} and {crossing.before:,} on"


def always_in_words(baseline: str, ratios: list[tuple[int, Ratio]]) -> str | None:
    """`faster than naive at all measured lengths, from 256 to 4,096`, or slower. None where that is not so."""
    lengths = [length for length, _ in ratios]
    if len(lengths) < 2:
        return None
    span = f"from {min(lengths):,} to {max(lengths):,}"
    if all(ratio.low is not None and ratio.low > 1 for _, ratio in ratios):
        return f"faster than {baseline} at all measured lengths, {span}"
    if all(ratio.high is not None and ratio.high < 1 for _, ratio in ratios):
        return f"slower than {baseline} at all measured lengths, {span}"
    return None


def exponents_in_words(exponents: tuple[Exponent, ...]) -> str:
    """`time grows as S^1.93 from 4,096 to 8,192, S^1.98 from 8,192 to 16,384`."""
    parts = [f"S^{step.value:.2f} from {step.shorter:,} to {step.longer:,}" for step in exponents]
    return f"time grows as {', '.join(parts)}"


def growth_in_words(fit: Growth) -> str:
    """`t = 12.30 us + 1.4e-05 us * S^1.99 over 5 lengths, at most 2 % off`."""
    return (
        f"t = {seconds(fit.fixed_s)} + {fit.factor_s * 1e6:.2g} us * S^{fit.exponent:.2f} over {fit.lengths} lengths, "
        f"at most {percent(fit.worst)} off"
    )
