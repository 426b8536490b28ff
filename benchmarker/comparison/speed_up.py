"""The speed-up: how many times as fast a variant is as its reference. Every output uses this definition.

    speed-up = rate of the variant / rate of the reference, in the same cell

The rate is the metric by which the workload ranks its rows: the decode rate for text generation, or the one rate of a
cell without a decode step. The reference is the baseline that the user named; without one, the unquantized variant in
the same engine (`Row.is_plain` and `Row.surroundings`). A row without such a reference has no speed-up.

The interval and the test are those of `core.stats`, paired by rounds. Holm's correction covers all cells of a
comparison, so that a row has one verdict in every table. A ratio whose interval spans more than a factor of two is not
shown as a number; the outlier round is named instead.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarker.comparison.rows import Row, headline
from benchmarker.core.stats import Ratio, Verdict, paired_ratio, unpaired_ratio, verdicts
from benchmarker.schema.record import Moment

WIDEST = 2.0
"""Largest quotient of an interval's ends at which a ratio is shown as a number."""
Circumstances = Mapping[str, object]
"""Device and settings by variant. Rounds pair only if both variants ran in equal circumstances."""


@dataclass(frozen=True)
class SpeedUp:
    """How many times as fast a row is as another row of its cell."""

    reference: str
    ratio: Ratio
    verdict: Verdict
    """After Holm's correction over all speed-ups of this kind in the comparison."""
    outlier: int | None = None


def rate_ratio(reference: Row, row: Row, *, is_paired: bool) -> Ratio | None:
    """Return the row's rate divided by the reference's rate; None if the two rows are not ranked by one metric."""
    if not reference.pace or not row.pace or reference.ranking.name != row.ranking.name:
        return None
    return _ratio(reference.pace_by_round, row.pace_by_round, is_paired=is_paired)


def _ratio(reference: Mapping[Moment, float], row: Mapping[Moment, float], *, is_paired: bool) -> Ratio:
    if is_paired:
        return paired_ratio(reference, row)
    return unpaired_ratio(list(reference.values()), list(row.values()))


def _speed_ups(
    rows: Sequence[Row], references: Mapping[str, str | None], circumstances: Circumstances, *, of_call: bool = False
) -> list[SpeedUp | None]:
    """Return the speed-up of each row relative to its variant's reference, with verdicts corrected over all of them."""
    by_name = {(row.variant, row.cell): row for row in rows}
    compared: dict[int, tuple[Row, Ratio]] = {}
    for index, row in enumerate(rows):
        name = references.get(row.variant)
        reference = by_name.get((name, row.cell)) if name and name != row.variant else None
        if reference is None:
            continue
        is_paired = circumstances.get(reference.variant) == circumstances.get(row.variant)
        ratio = None if of_call else rate_ratio(reference, row, is_paired=is_paired)
        if of_call and reference.latency and row.latency:
            ratio = _ratio(reference.latency_by_round, row.latency_by_round, is_paired=is_paired)
        if ratio:
            compared[index] = reference, ratio
    speed_ups: list[SpeedUp | None] = [None] * len(rows)
    tested = verdicts([ratio for _, ratio in compared.values()])
    for (index, (reference, ratio)), verdict in zip(compared.items(), tested, strict=True):
        outlier = outlier_round(reference, rows[index]) if is_wide(ratio) else None
        speed_ups[index] = SpeedUp(reference.variant, ratio, verdict, outlier)
    return speed_ups


def _references(rows: Sequence[Row], baseline: str) -> dict[str, str | None]:
    """Return the unquantized variant in each variant's engine, the baseline if possible; None if there is none."""
    first: dict[object, str] = {}
    for row in unquantized(rows):
        if row.variant == baseline:
            first[row.surroundings] = baseline
        first.setdefault(row.surroundings, row.variant)
    return {row.variant: first.get(row.surroundings) for row in rows}


def unquantized(rows: Sequence[Row]) -> list[Row]:
    """Return the measured rows of unquantized variants: those of the first table's cell first, the fastest first."""
    cell = headline(rows)
    measured = [row for row in rows if row.pace and row.is_plain]
    return sorted(measured, key=lambda row: (row.cell != cell, -row.speed))


def with_speed_ups(
    rows: Sequence[Row], *, baseline: str, named: str | None, circumstances: Circumstances
) -> tuple[Row, ...]:
    """Return the rows with all their ratios. The named baseline, if any, is the reference of every variant."""
    rows = [replace(row, is_baseline=row.variant == baseline) for row in rows]
    names = {row.variant for row in rows}
    references = dict.fromkeys(names, named) if named else _references(rows, baseline)
    fastest = next((row.variant for row in unquantized(rows)), None)
    by_kind = (
        _speed_ups(rows, references, circumstances),
        _speed_ups(rows, dict.fromkeys(names, named or fastest), circumstances),
        _speed_ups(rows, dict.fromkeys(names, baseline), circumstances, of_call=True),
    )
    return tuple(
        replace(
            row,
            is_reference=references.get(row.variant) == row.variant,
            speed_up=speed_up,
            against_named=against_named,
            call=call,
        )
        for row, speed_up, against_named, call in zip(rows, *by_kind, strict=True)
    )


def is_wide(ratio: Ratio) -> bool:
    return ratio.low is not None and ratio.high is not None and ratio.high > WIDEST * ratio.low


def outlier_round(reference: Row, row: Row) -> int:
    """Return the round, counted from 1, whose ratio is farthest from the median ratio.

    Without a common round it is the round that is farthest from its own variant's median, in the less steady variant.
    """
    ratios = {
        moment: reference.pace_by_round[moment] / pace
        for moment, pace in row.pace_by_round.items()
        if moment in reference.pace_by_round
    }
    if ratios:
        return _farthest(ratios)
    return own_outlier(
        max((reference, row), key=lambda each: max(each.pace_by_round.values()) / min(each.pace_by_round.values()))
    )


def own_outlier(row: Row) -> int:
    return _farthest(row.pace_by_round)


def _farthest(paces: Mapping[Moment, float]) -> int:
    logs = {moment: math.log(pace) for moment, pace in paces.items()}
    median = statistics.median(logs.values())
    return 1 + max(logs, key=lambda moment: abs(logs[moment] - median))[1]
