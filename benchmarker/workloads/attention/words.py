"""Sentences about attention: what limits a row, how it grows, where it begins to win."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarker.core.numbers import decimal, percent
from benchmarker.core.stats import Ratio
from benchmarker.core.units import gib, seconds
from benchmarker.schema.roofline import Limits
from benchmarker.workloads.attention.metrics import Crossing, Exponent, Growth

HOST_BOUND = 0.7
"""With kernels for less than this of the time, the device waits for the host."""
NEAR = 0.5
"""From half of a limit on, that limit is what the time is spent on."""
MATMUL_LIMIT = 1.02
"""A row above it is impossible: the FLOPs, the time or the rate is wrong."""


@dataclass(frozen=True)
class Call:
    """What is known of one cell's call, in values."""

    latency_s: float
    flops: int
    bytes: int
    scores_moved_bytes: int | None
    """What an implementation in separate steps moves of the matrix of scores. None for a fused one."""
    kernel_s: float | None
    """Time of the kernels of one profiled call. None on CPU."""
    dtype: str


def what_limits(call: Call, limits: Limits) -> str:
    """What the call's time is spent on, by the limits measured in the same process."""
    compute = call.flops / call.latency_s / limits.matmul_flops_per_s
    if call.kernel_s is not None and call.kernel_s < HOST_BOUND * call.latency_s:
        return f"bound by the host: its kernels run for {percent(call.kernel_s / call.latency_s)} of the time"
    if call.scores_moved_bytes is not None:
        moving = call.scores_moved_bytes / limits.bytes_per_s / call.latency_s
        if moving >= NEAR:
            return (
                f"bound by bandwidth: {percent(moving)} of its time is what moving "
                f"{gib(call.scores_moved_bytes)} of scores through memory takes"
            )
    moved = call.bytes / limits.bytes_per_s / call.latency_s
    if moved >= NEAR and moved > compute:
        return f"bound by bandwidth: reading its inputs and writing its outputs takes {percent(moved)} of the time"
    if compute > MATMUL_LIMIT:
        return f"impossible: {percent(compute)} of the measured matmul rate"
    if compute >= NEAR:
        return f"bound by compute: {percent(compute)} of the measured {call.dtype} matmul rate"
    return (
        f"at no limit: {percent(compute)} of the measured {call.dtype} matmul rate, {percent(moved)} of the bandwidth"
    )


def crossing_in_words(variant: str, baseline: str, crossing: Crossing) -> str:
    """`flash is faster than naive from between 256 and 512 on`."""
    what = "faster" if crossing.is_faster else "slower"
    return f"{variant} is {what} than {baseline} from between {crossing.after:,} and {crossing.before:,} on"


def always_in_words(variant: str, baseline: str, ratios: list[tuple[int, Ratio]]) -> str | None:
    """Where nothing crosses: faster, or slower, at all measured lengths. None where that is not so."""
    lengths = [length for length, _ in ratios]
    if len(lengths) < 2:
        return None
    span = f"from {min(lengths):,} to {max(lengths):,}"
    if all(ratio.low is not None and ratio.low > 1 for _, ratio in ratios):
        return f"{variant} is faster than {baseline} at all measured lengths, {span}"
    if all(ratio.high is not None and ratio.high < 1 for _, ratio in ratios):
        return f"{variant} is slower than {baseline} at all measured lengths, {span}"
    return None


def exponents_in_words(exponents: tuple[Exponent, ...]) -> str:
    """`time grows as S^1.93 from 4,096 to 8,192, S^1.98 from 8,192 to 16,384`."""
    parts = [f"S^{one.value:.2f} from {one.shorter:,} to {one.longer:,}" for one in exponents]
    return f"time grows as {', '.join(parts)}"


def growth_in_words(fit: Growth) -> str:
    """`t = 12.30 us + 1.4e-05 us * S^1.99 over 5 lengths, at most 2 % off`."""
    return (
        f"t = {seconds(fit.fixed_s)} + {fit.factor_s * 1e6:.2g} us * S^{fit.exponent:.2f} over {fit.lengths} lengths, "
        f"at most {percent(fit.worst)} off"
    )


def does_not_fit(variant: str, seq_len: int, need: int | None, free: int | None) -> str:
    """`at 32,768 naive does not fit: it wanted 32.00 GiB and 12.10 GiB were free`."""
    if need is None or free is None:
        return f"at {seq_len:,} {variant} does not fit"
    return f"at {seq_len:,} {variant} does not fit: it wanted {gib(need)} and {gib(free)} were free"


def error_in_words(tensor: str, error: float, ratio: float | None) -> str:
    """`dq 4.3e-03, 1.6x math's`."""
    return f"{tensor} {error:.1e}" + (f", {decimal(ratio, digits=2)}x math's" if ratio is not None else "")
