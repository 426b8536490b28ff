"""Evaluation of attention's records: the floor of a call's time, and sentences on how the time grows with the length.

    floor = max(FLOPs / matmul rate, bytes / bandwidth)

The bytes are those of inputs and outputs; the variant `naive` also reads and writes the scores.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

from benchmarker.comparison.crossing import SpeedUps, constant_verdict, crossings
from benchmarker.comparison.roofline import Floor, floor_of
from benchmarker.comparison.rows import Row, listed
from benchmarker.core.formatting import percent, seconds
from benchmarker.core.tables import plain_line
from benchmarker.explain.verdict import ADVICE
from benchmarker.explain.waterfall import NotExplained, Timed
from benchmarker.profiling.kernel_categories import Category, seconds_by_category
from benchmarker.workloads.attention.attention_flops import scores_passes
from benchmarker.workloads.attention.record import NAIVE, AttentionCell, AttentionRecord
from benchmarker.workloads.operation import operation_reading as operation

IMPOSSIBLE_SHARE = 1.02  # Share of the matmul rate above which FLOP count, time or matmul rate must be wrong.


def timed_attention(name: str, records: Sequence[AttentionRecord]) -> Timed | NotExplained:
    if (call := operation.largest_call(name, records)) is None:
        return NotExplained(name, "no cell of it was measured")
    record, cell = cast("AttentionRecord", call.record), cast("AttentionCell", call.cell)
    floor = _floor(record, cell)
    if call.on_cpu and floor is None:
        return NotExplained(name, "on a CPU the operators of a call cannot be identified, and no limits were measured")
    notes = operation.kernels_note(cell.kernels)
    if record.limits and cell.demand:
        share = cell.demand.flops / call.latency_s / record.limits.matmul_flops_per_s
        rate = f"{percent(share)} of the measured {record.limits.matmul_dtype} matmul rate"
        notes.append(f"impossible: {rate}" if share > IMPOSSIBLE_SHARE else f"it reaches {rate}")
    categories, busy_s = _kernel_times(call)
    advice = {**operation.CALL_ADVICE, "bandwidth": _fewer_bytes}
    return operation.timed_call(call, categories, floor=floor, busy_s=busy_s, notes=notes, advice=advice)


def _floor(record: AttentionRecord, cell: AttentionCell) -> Floor | None:
    limits, demand = record.limits, cell.demand
    floor = floor_of(demand, limits)
    if floor is None or limits is None or demand is None or record.variant.variant != NAIVE:
        return floor
    passes = scores_passes(is_causal=record.subject.causal, is_backward=cell.mode == "forward_backward")
    moving_s = (demand.bytes + passes * demand.scores_bytes) / limits.bytes_per_s
    return Floor(moving_s, "bytes", fewer=1 - floor.seconds / moving_s) if moving_s > floor.seconds else floor


def _kernel_times(call: operation.LargestCall) -> tuple[dict[Category, float], float]:
    """Return the seconds of a call in each category of kernels, and the seconds in which any kernel ran.

    On a CPU the whole call counts as attention. A GPU at its power limit has lower clocks in the timed calls than in
    the single profiled call: the kernels' times are scaled up until they fill the timed call.
    """
    if call.on_cpu:
        return {"attention": call.latency_s}, call.latency_s
    times = seconds_by_category((kernel.name, kernel.total_s) for kernel in call.cell.kernels)
    busy_s = sum(times.values())
    is_slowed = "power_limited" in call.cell.flags and 0 < busy_s < call.latency_s
    stretch = call.latency_s / busy_s if is_slowed else 1.0
    return {category: stretch * time_s for category, time_s in times.items()}, stretch * busy_s


def _fewer_bytes(timed: Timed) -> str:
    if cast("AttentionRecord", timed.record).variant.variant == NAIVE:
        return "A fused kernel never writes the scores: flash, efficient, cudnn or flex."
    return ADVICE["bandwidth"]


MIN_LENGTHS = 4  # Minimum number of lengths: a fit of three parameters passes through any three points.

Times = Sequence[tuple[int, float]]  # Pairs (length, seconds of one call).


@dataclass(frozen=True)
class Growth:
    """Fit of t = fixed_s + factor_s * S ** exponent, with fixed_s >= 0."""

    fixed_s: float  # Constant cost of a call. Without this term, linear growth would get the exponent 0.9.
    factor_s: float
    exponent: float
    lengths: int
    worst: float  # Largest relative distance of a measured time from the fit.

    def __str__(self) -> str:
        return (
            f"t = {seconds(self.fixed_s)} + {self.factor_s * 1e6:.2g} us * S^{self.exponent:.2f} over {self.lengths} "
            f"lengths, at most {percent(self.worst)} off"
        )


def growth(times: Times) -> Growth | None:
    """Return the fit with the least sum of squared relative differences; None for fewer than four lengths."""
    from scipy.optimize import minimize_scalar

    if len(times) < MIN_LENGTHS:
        return None
    fits = [
        minimize_scalar(lambda exponent: _fit(times, exponent)[2], bounds=bounds, method="bounded")
        for bounds in ((0.05, 1.0), (1.0, 2.0), (2.0, 4.0))
    ]
    exponent = float(min(fits, key=lambda fit: float(fit.fun)).x)
    fixed_s, factor_s, _ = _fit(times, exponent)
    worst = max(abs(fixed_s + factor_s * length**exponent - time_s) / time_s for length, time_s in times)
    return Growth(fixed_s, factor_s, exponent, len(times), worst)


def _fit(times: Times, exponent: float) -> tuple[float, float, float]:
    import numpy
    from scipy.optimize import nnls

    longest = max(length for length, _ in times)
    rows = [[1 / time_s, (length / longest) ** exponent / time_s] for length, time_s in times]
    (fixed_s, factor_s), distance = nnls(numpy.array(rows), numpy.ones(len(times)))
    return float(fixed_s), float(factor_s) / longest**exponent, float(distance) ** 2


def length_remarks(rows: Sequence[Row], baseline: str | None, *, brief: bool = False) -> list[str]:
    """Return sentences on the length from which a variant is faster than the baseline, and on its time's growth."""
    if brief:
        return []
    series = operation.length_series([row.cell for row in rows if row.cell and row.latency])
    faster = [sentence for line in series for sentence in _faster(line, rows, baseline)] if baseline else []
    grown = []
    # In the other series, the batch shrinks while the length grows: their times do not show the growth.
    for line in (line for line in series if line.has_one_batch_size):
        for name, measured in _variants(line, rows):
            times = [(operation.length_of(row), row.latency.value) for row in measured if row.latency]
            fitted = f"; {fit}" if (fit := growth(times)) else ""
            grown.append(f"{line.label}: the time of {plain_line(name)} grows as {exponents_text(times)}{fitted}")
    return [f"{sentence}." for sentence in (*faster, *grown)]


def _variants(line: operation.LengthSeries, rows: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    for name in dict.fromkeys(row.variant for row in rows):
        measured = [row for row in rows if row.variant == name and row.cell in line.keys and row.latency]
        if len(measured) > 1:
            yield name, sorted(measured, key=operation.length_of)


def _faster(line: operation.LengthSeries, rows: Sequence[Row], baseline: str) -> Iterator[str]:
    uniform: dict[str, list[str]] = {}
    for name, measured in _variants(line, rows):
        speed_ups = [(operation.length_of(row), row.speed_up) for row in measured if row.speed_up]
        for crossing in crossings(speed_ups):
            yield (
                f"{line.label}: {plain_line(name)} is {crossing.verdict} than {plain_line(baseline)} from between "
                f"{crossing.after:,} and {crossing.before:,} on"
            )
        if text := always_text(baseline, speed_ups):
            uniform.setdefault(text, []).append(name)
    for text, names in uniform.items():
        yield f"{line.label}: {listed(names)} {'are' if len(names) > 1 else 'is'} {text}"


def always_text(baseline: str, speed_ups: SpeedUps) -> str | None:
    """Return `faster than naive at all measured lengths, from 256 to 4,096`; None if not all lengths agree."""
    verdict = constant_verdict(speed_ups)
    if verdict is None or len(speed_ups) < 2:
        return None
    lengths = [length for length, _ in speed_ups]
    span = f"from {min(lengths):,} to {max(lengths):,}"
    return f"{verdict} than {plain_line(baseline)} at all measured lengths, {span}"


def exponents_text(times: Times) -> str:
    """Return log(t2 / t1) / log(S2 / S1) for adjacent lengths: `S^1.93 from 4,096 to 8,192`."""
    return ", ".join(
        f"S^{math.log(longer_s / shorter_s) / math.log(longer / shorter):.2f} from {shorter:,} to {longer:,}"
        for (shorter, shorter_s), (longer, longer_s) in pairwise(sorted(times))
    )
