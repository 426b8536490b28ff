"""Sentences on several lengths: which variant is faster from which length on, and how time grows with the length."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarker.comparison.crossing import Ratios, always_faster, crossings, verdict_text
from benchmarker.comparison.rows import Row
from benchmarker.comparison.words import listed
from benchmarker.core.formatting import percent, seconds
from benchmarker.core.tables import escaped
from benchmarker.workloads.operation.operation_metrics import mode_text
from benchmarker.workloads.operation.reading.length_series import LengthSeries, length_series

MIN_LENGTHS = 4
"""Lengths that a fit of three parameters needs at least: three points fit any parameters."""

Times = Sequence[tuple[int, float]]
"""Seconds of one call by length."""


@dataclass(frozen=True)
class Growth:
    """Fit of t = fixed_s + factor_s * S ** exponent, with fixed_s >= 0."""

    fixed_s: float
    """Constant cost of a call. Without it, a linear growth would seem to have the exponent 0.9."""
    factor_s: float
    exponent: float
    lengths: int
    worst: float
    """Largest relative distance of a measured time from the fit."""

    def __str__(self) -> str:
        return (
            f"t = {seconds(self.fixed_s)} + {self.factor_s * 1e6:.2g} us * S^{self.exponent:.2f} over {self.lengths} "
            f"lengths, at most {percent(self.worst)} off"
        )


def local_exponents(times: Times) -> list[float]:
    """Return log(t2 / t1) / log(S2 / S1) for adjacent lengths; for a doubling it is log2(t2 / t1)."""
    return [
        math.log(longer_s / shorter_s) / math.log(longer / shorter)
        for (shorter, shorter_s), (longer, longer_s) in pairwise(sorted(times))
    ]


def growth(times: Times) -> Growth | None:
    """Return the fit with the least sum of squared relative distances; None for fewer than four lengths."""
    from scipy.optimize import minimize_scalar

    if len(times) < MIN_LENGTHS:
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


def _fit(times: Times, exponent: float) -> tuple[float, float, float]:
    """Return fixed_s, factor_s and the sum of squared relative distances of the best fit with an exponent."""
    import numpy
    from scipy.optimize import nnls

    longest = max(length for length, _ in times)
    rows = [[1 / time_s, (length / longest) ** exponent / time_s] for length, time_s in times]
    (fixed_s, factor_s), distance = nnls(numpy.array(rows), numpy.ones(len(times)))
    return float(fixed_s), float(factor_s) / longest**exponent, float(distance) ** 2


def length_remarks(rows: Sequence[Row], baseline: str | None) -> list[str]:
    """Return where variants are faster than the baseline, and how their times grow with the length."""
    series = length_series([row.cell for row in rows if row.cell and row.latency], mode_text=mode_text)
    faster = [sentence for line in series for sentence in _faster(line, rows, baseline)] if baseline else []
    # A batch that shrinks with the length would hide the growth.
    grown = [sentence for line in series if line.has_one_batch_size for sentence in _grown(line, rows)]
    return [f"{sentence}." for sentence in (*faster, *grown)]


def _variants(line: LengthSeries, rows: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    """Yield each variant with its measured rows of the series, by length."""
    for name in dict.fromkeys(row.variant for row in rows):
        measured = [row for row in rows if row.variant == name and row.cell in line.keys and row.latency]
        if len(measured) > 1:
            yield name, sorted(measured, key=_length)


def _length(row: Row) -> int:
    return int(row.cell["seq_len"]) if row.cell else 0


def _faster(line: LengthSeries, rows: Sequence[Row], baseline: str) -> Iterator[str]:
    uniform: dict[str, list[str]] = {}
    for name, measured in _variants(line, rows):
        ratios = [(_length(row), row.ratio) for row in measured if row.ratio and name != baseline]
        yield from (f"{line.label}: {text}" for text in crossing_texts(name, baseline, ratios))
        if text := always_text(baseline, ratios):
            uniform.setdefault(text, []).append(name)
    for text, names in uniform.items():
        yield f"{line.label}: {listed(names)} {'are' if len(names) > 1 else 'is'} {text}"


def crossing_texts(variant: str, baseline: str, ratios: Ratios) -> list[str]:
    """Return `flash is faster than naive from between 256 and 512 on` for each crossing."""
    return [
        f"{escaped(variant)} is {crossing.verdict} than {escaped(baseline)} from between {crossing.after:,} and "
        f"{crossing.before:,} on"
        for crossing in crossings(ratios)
    ]


def always_text(baseline: str, ratios: Ratios) -> str | None:
    """Return `faster than naive at all measured lengths, from 256 to 4,096`; None if the verdicts differ."""
    is_faster = always_faster(ratios)
    if is_faster is None or len(ratios) < 2:
        return None
    lengths = [length for length, _ in ratios]
    span = f"from {min(lengths):,} to {max(lengths):,}"
    return f"{verdict_text(is_faster=is_faster)} than {escaped(baseline)} at all measured lengths, {span}"


def _grown(line: LengthSeries, rows: Sequence[Row]) -> Iterator[str]:
    for name, measured in _variants(line, rows):
        times = [(_length(row), row.latency.value) for row in measured if row.latency]
        fit = growth(times)
        fitted = f"; {fit}" if fit else ""
        yield f"{line.label}: the time of {escaped(name)} grows as {exponents_text(times)}{fitted}"


def exponents_text(times: Times) -> str:
    """Return `S^1.93 from 4,096 to 8,192, S^1.98 from 8,192 to 16,384`."""
    lengths = sorted(length for length, _ in times)
    return ", ".join(
        f"S^{exponent:.2f} from {shorter:,} to {longer:,}"
        for exponent, (shorter, longer) in zip(local_exponents(times), pairwise(lengths), strict=True)
    )
