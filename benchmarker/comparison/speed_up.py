"""The speed-up: how many times as fast a variant is as its reference. Every output uses this definition.

    speed-up = rate of the variant / rate of the reference, in the same cell

The rate is the metric by which the workload ranks its rows: the decode rate for text generation, or the one rate of a
cell without a decode step. If an engine of the cell prefills some sequences while it decodes others, its decode rate
has another meaning, and every row of the cell is ranked by the rate of the whole call. The reference is the baseline
that the user named; without one, the unquantized variant in the same engine (`Row.is_plain` and `Row.surroundings`). A
row without such a reference has no speed-up.

The interval and the test are those of `core.stats`, paired by rounds. Holm's correction covers all cells of a
comparison, so that a row has one verdict in every table. A ratio whose interval spans more than a factor of two is not
shown as a number, but as the outlier round or, if no round is an outlier, as the interval alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarker.comparison.rows import KeyT, Row, RowT, headline, is_wide, number_text, outlier_round
from benchmarker.core.formatting import times
from benchmarker.core.stats import Ratio, Verdict, paired_ratio, unpaired_ratio, verdicts
from benchmarker.schema.record import Moment

Circumstances = Mapping[str, object] | None
"""Device and settings by variant; rounds are paired if they are equal. None for sweeps that share no rounds."""


@dataclass(frozen=True)
class SpeedUp:
    """Ratio of a row's rate to that of another row of its cell."""

    reference: str
    ratio: Ratio
    verdict: Verdict  # After Holm's correction over all speed-ups of this kind in the comparison.
    outlier: int | None = None  # Outlier round of a ratio with a wide interval, counted from 1.

    @property
    def text(self) -> str:
        """`1.87x [1.83, 1.91]`, or for a wide interval `outlier round 3` or `wide [1.17, 3.00]`."""
        return number_text(self.ratio, times(self.ratio), self.outlier)


def rate_ratio(reference: Row, row: Row, circumstances: Circumstances, *, of_call: bool = False) -> Ratio | None:
    """Return the row's rate divided by the reference's; None if a rate is missing or the ranking metrics differ.

    Args:
        of_call: Compare whole calls instead of the ranking metric.
    """
    times, reference_times = row.time_by_round, reference.time_by_round
    if of_call:
        times, reference_times = row.latency_by_round, reference.latency_by_round
    elif reference.ranking.name != row.ranking.name:
        return None
    if not times or not reference_times:
        return None
    if circumstances is not None and circumstances.get(reference.variant) == circumstances.get(row.variant):
        return paired_ratio(reference_times, times)
    return unpaired_ratio(list(reference_times.values()), list(times.values()))


def speed_ups(
    rows: Sequence[Row], references: Mapping[str, str | None], circumstances: Circumstances, *, of_call: bool = False
) -> list[SpeedUp | None]:
    """Return the speed-up of each row relative to its variant's reference. Holm's correction covers all speed-ups."""
    by_name = {(row.variant, row.cell): row for row in rows}
    compared: dict[int, tuple[Row, Ratio]] = {}
    for index, row in enumerate(rows):
        name = references.get(row.variant)
        reference = by_name.get((name, row.cell)) if name and name != row.variant else None
        if reference and (ratio := rate_ratio(reference, row, circumstances, of_call=of_call)):
            compared[index] = reference, ratio
    speed_ups: list[SpeedUp | None] = [None] * len(rows)
    tested = verdicts([ratio for _, ratio in compared.values()])
    for (index, (reference, ratio)), verdict in zip(compared.items(), tested, strict=True):
        speed_ups[index] = SpeedUp(reference.variant, ratio, verdict, outlier_of(reference, rows[index], ratio))
    return speed_ups


def paired_speed_ups(
    pairs: Mapping[KeyT, tuple[RowT, RowT]], times_of: Callable[[RowT], Mapping[Moment, float]]
) -> dict[KeyT, SpeedUp]:
    """Return the speed-up of each pair (reference, row) by times other than those of the tables, such as TTFT.

    Holm's correction covers all pairs, as it covers all rows of the tables. Pairs without these times are left out.
    """
    ratios = {
        key: paired_ratio(times_of(reference), times_of(row))
        for key, (reference, row) in pairs.items()
        if times_of(reference) and times_of(row)
    }
    tested = zip(ratios.items(), verdicts([*ratios.values()]), strict=True)
    return {key: SpeedUp(pairs[key][0].variant, ratio, verdict) for (key, ratio), verdict in tested}


def with_changes(rows: Sequence[Row], sweeps: Sequence[str]) -> tuple[Row, ...]:
    """Return the rows of several sweeps, each with its `change` relative to the same variant in the first sweep."""
    references = {row.variant: f"{row.name_in_sweep} ({sweeps[0]})" for row in rows if row.sweep != sweeps[0]}
    changes = speed_ups(rows, references, None)
    return tuple(replace(row, change=change) for row, change in zip(rows, changes, strict=True))


def outlier_of(reference: Row, row: Row, ratio: Ratio) -> int | None:
    """Return the outlier round of a ratio with a wide interval; None for other ratios or if no round is an outlier."""
    if not is_wide(ratio):
        return None
    ratios = {
        moment: reference.time_by_round[moment] / time_s
        for moment, time_s in row.time_by_round.items()
        if moment in reference.time_by_round
    }
    return outlier_round(ratios) if ratios else reference.outlier or row.outlier


def ranked_alike(rows: Sequence[Row]) -> list[Row]:
    """Return the rows. Rows of a cell with several engines are ranked by the whole call if an engine mixes prefill."""
    engines: dict[object, set[str | None]] = defaultdict(set)
    for row in rows:
        engines[row.cell].add(row.surroundings)
    mixed = {row.cell for row in rows if row.mixes_prefill and len(engines[row.cell]) > 1}
    return [
        replace(row, is_ranked_by_call=True, time_by_round=row.latency_by_round) if row.cell in mixed else row
        for row in rows
    ]


def _references(rows: Sequence[Row], baseline: str) -> dict[str, str | None]:
    first: dict[object, str] = {}
    for row in unquantized(rows):
        if row.variant == baseline:
            first[row.surroundings] = baseline
        first.setdefault(row.surroundings, row.variant)
    return {row.variant: first.get(row.surroundings) for row in rows}


def unquantized(rows: Sequence[Row]) -> list[Row]:
    """Return the measured rows of unquantized variants: first those of the cell `headline(rows)`, fastest first."""
    cell = headline(rows)
    return sorted([row for row in rows if row.pace and row.is_plain], key=lambda row: (row.cell != cell, -row.speed))


def with_speed_ups(
    rows: Sequence[Row], *, baseline: str, named: str | None, circumstances: Circumstances
) -> tuple[Row, ...]:
    """Return the rows with `speed_up`, `against_named` and `call`. `named`, if not None, is every row's reference."""
    rows = [replace(row, is_baseline=row.variant == baseline) for row in ranked_alike(rows)]
    names = {row.variant for row in rows}
    references = dict.fromkeys(names, named) if named else _references(rows, baseline)
    fastest = next((row.variant for row in unquantized(rows)), None)
    by_kind = (
        speed_ups(rows, references, circumstances),
        speed_ups(rows, dict.fromkeys(names, named or fastest), circumstances),
        speed_ups(rows, dict.fromkeys(names, baseline), circumstances, of_call=True),
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
