"""The speed-up: how many times as fast a variant is as its reference. Every output uses this definition.

    speed-up = rate of the variant / rate of the reference, in the same cell

The rate is the metric by which the workload ranks its rows: the decode rate for text generation, or the one rate of a
cell without a decode step. The reference is the baseline that the user named; without one, the unquantized variant in
the same engine (`Workload.is_plain` and `surroundings`). A row without such a reference has no speed-up.

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
    """Name of the other row's variant."""
    ratio: Ratio
    verdict: Verdict
    """After Holm's correction over all speed-ups of this kind in the comparison."""
    outlier: int | None = None
    """Round, counted from 1, to name if the interval is too wide for a number."""


def rate_ratio(reference: Row, row: Row, *, is_paired: bool) -> Ratio | None:
    """Return the row's rate divided by the reference's rate; None if the two rows are not ranked by one metric."""
    if not reference.pace or not row.pace or reference.ranking.name != row.ranking.name:
        return None
    return _ratio(reference.pace_by_round, row.pace_by_round, is_paired=is_paired)


def call_ratio(reference: Row, row: Row, *, is_paired: bool) -> Ratio | None:
    """Return the reference's latency of a whole call divided by the row's."""
    if not reference.latency or not row.latency:
        return None
    return _ratio(reference.latency_by_round, row.latency_by_round, is_paired=is_paired)


def _ratio(reference: Mapping[Moment, float], row: Mapping[Moment, float], *, is_paired: bool) -> Ratio:
    if is_paired:
        return paired_ratio(reference, row)
    return unpaired_ratio(list(reference.values()), list(row.values()))


def speed_ups(
    rows: Sequence[Row], references: Mapping[str, str | None], circumstances: Circumstances, *, of_call: bool = False
) -> list[SpeedUp | None]:
    """Return the speed-up of each row, with verdicts corrected over all of them.

    Args:
        references: Name of each variant's reference. A variant that is its own reference has no speed-up.
        of_call: Compare latencies of whole calls in place of rates.
    """
    by_name = {(row.variant, row.cell): row for row in rows}
    ratio_of = call_ratio if of_call else rate_ratio
    ratios: dict[int, tuple[Row, Ratio]] = {}
    for index, row in enumerate(rows):
        name = references.get(row.variant)
        reference = by_name.get((name, row.cell)) if name and name != row.variant else None
        if reference is None:
            continue
        is_paired = circumstances.get(reference.variant) == circumstances.get(row.variant)
        if ratio := ratio_of(reference, row, is_paired=is_paired):
            ratios[index] = reference, ratio
    tested = dict(zip(ratios, verdicts([ratio for _, ratio in ratios.values()]), strict=True))
    return [
        SpeedUp(
            ratios[index][0].variant,
            ratios[index][1],
            tested[index],
            outlier_round(ratios[index][0], row) if is_wide(ratios[index][1]) else None,
        )
        if index in ratios
        else None
        for index, row in enumerate(rows)
    ]


def references_of(rows: Sequence[Row], baseline: str, named: str | None) -> dict[str, str | None]:
    """Return the name of each variant's reference; None for a variant without one.

    Args:
        baseline: The comparison's baseline, which is preferred among several unquantized variants of its engine.
        named: The baseline that the user named. It is the reference of every variant.
    """
    if named is not None:
        return dict.fromkeys((row.variant for row in rows), named)
    by_place: dict[object, list[Row]] = {}
    for row in unquantized(rows):
        by_place.setdefault(row.surroundings, []).append(row)
    first = {
        place: next((row.variant for row in members if row.variant == baseline), members[0].variant)
        for place, members in by_place.items()
    }
    return {row.variant: first.get(row.surroundings) for row in rows}


def unquantized(rows: Sequence[Row]) -> list[Row]:
    """Return the measured rows of unquantized variants: those of the first table's cell first, the fastest first."""
    cell = headline(rows)
    measured = [row for row in rows if row.pace and row.is_plain]
    return sorted(measured, key=lambda row: (row.cell != cell, -row.speed))


def with_speed_ups(
    rows: Sequence[Row], *, baseline: str, named: str | None, circumstances: Circumstances
) -> tuple[Row, ...]:
    """Return the rows with all their ratios.

    Args:
        baseline: The comparison's baseline, to which whole calls are compared.
        named: The baseline that the user named, if any.
    """
    rows = [replace(row, is_baseline=row.variant == baseline) for row in rows]
    references = references_of(rows, baseline, named)
    fastest = next((row.variant for row in unquantized(rows)), None)
    names = {row.variant for row in rows}
    by_kind = (
        speed_ups(rows, references, circumstances),
        speed_ups(rows, dict.fromkeys(names, named or fastest), circumstances),
        speed_ups(rows, dict.fromkeys(names, baseline), circumstances, of_call=True),
    )
    return tuple(
        replace(
            row, is_reference=references.get(row.variant) == row.variant, speed_up=own, against_named=other, call=call
        )
        for row, own, other, call in zip(rows, *by_kind, strict=True)
    )


def is_wide(ratio: Ratio) -> bool:
    """Return whether the interval spans more than a factor of two."""
    return ratio.low is not None and ratio.high is not None and ratio.high > WIDEST * ratio.low


def outlier_round(reference: Row, row: Row) -> int:
    """Return the round, counted from 1, whose ratio is farthest from the median ratio.

    Without a common round it is the round that is farthest from its own variant's median, in the less steady variant.
    """
    common = [moment for moment in reference.pace_by_round if moment in row.pace_by_round]
    if not common:
        return own_outlier(max((reference, row), key=_spread))
    return _farthest(
        {moment: math.log(reference.pace_by_round[moment] / row.pace_by_round[moment]) for moment in common}
    )


def own_outlier(row: Row) -> int:
    """Return the round, counted from 1, in which the variant is farthest from its own median."""
    return _farthest({moment: math.log(pace) for moment, pace in row.pace_by_round.items()})


def _farthest(logs: Mapping[Moment, float]) -> int:
    median = statistics.median(logs.values())
    return 1 + max(logs, key=lambda moment: abs(logs[moment] - median))[1]


def _spread(row: Row) -> float:
    return max(row.pace_by_round.values()) / min(row.pace_by_round.values())
