"""Columns of tables, the first table of a comparison, and the table of the fastest variants in the other cells.

A column appears only if a row has a value for it, or if its values vary.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar

from benchmarker.comparison.ranking import Ranking, ranking_of
from benchmarker.comparison.rows import CellKey, Results, Row, cell_words, is_wide, listed, shown_value
from benchmarker.comparison.speed_up import SpeedUp
from benchmarker.core.formatting import GIB, MIB, MISSING, decimal, percent, seconds, times
from benchmarker.core.stats import CONFIDENCE, MIN_ROUNDS, Estimate, Ratio
from benchmarker.core.tables import Column, Sheet
from benchmarker.report.caveats import reference_note, round_notes
from benchmarker.schema.record import status_words
from benchmarker.schema.registry import Metric, workload_of

AnyRow = TypeVar("AnyRow", bound=Row)
Columns = list[Column[Row]]
LIMITS_TITLE = "Against the limits of the device"
OUTLIER_NOTE = "Outlier round N: this round differs so much from the others that the interval is too wide for a number."
WIDE_NOTE = "Wide: the ends of the interval differ by more than a factor of two, too much for a number."
OPEN_NOTE = "An interval that excludes 1 can be inconclusive: within 2 % of 1, or after Holm's correction."
MOST_CELLS = 12  # Largest number of other cells for which `other_cells` returns a table.
MOST_NAMES = 3


class InCell(Protocol):
    """Object that belongs to a cell, such as a row or a change."""

    @property
    def cell(self) -> CellKey | None: ...


def names(rows: Sequence[Row]) -> Columns:
    """Return columns of the variant's name, and of its sweep and engine (`Row.surroundings`) if they vary."""
    columns = [Column[Row]("variant", lambda row: row.name_in_sweep, "left")]
    if any(row.sweep for row in rows):
        columns.append(Column("sweep", lambda row: row.sweep, "left"))
    if len({row.surroundings for row in rows}) > 1:
        heading = rows[0].described.surroundings_noun
        columns.append(Column(heading, lambda row: row.surroundings or MISSING, "left"))
    return columns


def axis_columns(rows: Sequence[InCell], *, always: bool = False) -> list[Column[InCell]]:
    """Return a column for each axis that varies; with `always`, for all axes."""
    keys = [row.cell for row in rows if row.cell]
    axes = workload_of(keys[0].workload).axes if keys else ()
    varying = [axis for axis in axes if always or len({key[axis.name] for key in keys}) > 1]
    return [axis_column(axis.heading, operator.itemgetter(axis.name)) for axis in varying]


def axis_column(heading: str, value_of: Callable[[CellKey], Any]) -> Column[InCell]:
    def number(row: InCell) -> float | None:
        value = value_of(row.cell) if row.cell else None
        return float(value) if isinstance(value, int | float) else None

    return Column(heading, lambda row: str(value_of(row.cell)) if row.cell else MISSING, sort=number)


def metric_columns(rows: Sequence[Row]) -> Columns:
    """Return a column per metric of a timed repeat. Rows without numbers show their status in the first column."""
    metrics = [metric for metric in rows[0].described.metrics if not metric.of_cell]
    measured = [metric for metric in metrics if any(metric.name in row.metrics for row in rows)] or metrics[:1]
    first, *others = map(metric_column, measured)
    return [replace(first, text=lambda row: first.text(row) if row.rate else status_words(row.status)), *others]


def metric_column(metric: Metric) -> Column[Row]:
    return Column(
        metric.heading,
        lambda row: row.spread_text(row.metrics.get(metric.name), scale=metric.scale),
        sort=lambda row: shown_value(row.metrics.get(metric.name), scale=metric.scale),
        is_more_better=metric.better == "higher",
        help=metric.formula,
    )


def speed_up(rows: Sequence[Row]) -> Columns:
    """Return the column of the speed-up with its verdict; no column if no row has a speed-up."""
    if not any(row.speed_up for row in rows):
        return []
    return _ratio_column(
        "speed-up",
        lambda row: "baseline" if row.is_reference and row.pace else with_verdict(row.speed_up),
        lambda row: 1.0 if row.is_reference and row.pace else _number(row.speed_up),
        f"ratio of {rows[0].ranking.name} rates: the row's divided by its reference's",
    )


def against_named(rows: Sequence[Row], named: str | None, *, is_short: bool = False) -> Columns:
    """Return a column of ratios to variant `named`, if given and unlike the speed-ups. `is_short`: no intervals."""
    if named is None or all(row.speed_up == row.against_named for row in rows):
        return []

    def text(row: Row) -> str:
        gain = row.against_named
        if is_short and gain and not is_wide(gain.ratio):
            return times(Ratio(gain.ratio.value, gain.ratio.rounds))
        return "1" if row.variant == named and row.pace else with_verdict(gain)

    help = f"ratio of {rows[0].ranking.name} rates: the row's divided by that of {named}"
    return _ratio_column(f"vs {named}", text, lambda row: _number(row.against_named), help)


def changes(rows: Sequence[Row]) -> Columns:
    """Return the column of ratios to the same variant in the first sweep; no column if no row has such a ratio."""
    sweeps = {row.variant: row.sweep for row in rows}
    first = next((sweeps[row.change.reference] for row in rows if row.change), None)
    if first is None:
        return []
    help = f"ratio of {rows[0].ranking.name} rates: the row's divided by that of the same variant in {first}"
    return _ratio_column(f"vs {first}", lambda row: with_verdict(row.change), lambda row: _number(row.change), help)


def whole_call(rows: Sequence[Row], baseline: str | None) -> Columns:
    """Return the column of ratios of whole-call latencies; no column if it repeats the speed-ups."""

    def is_equal(call: SpeedUp | None, speed_up: SpeedUp | None) -> bool:
        if call is None or speed_up is None or speed_up.reference != call.reference:
            return call is None
        return math.isclose(speed_up.ratio.value, call.ratio.value, rel_tol=1e-9)

    def text(row: Row) -> str:
        return "1" if row.is_baseline and row.latency else row.call.text if row.call else MISSING

    if all(is_equal(row.call, row.speed_up) for row in rows):
        return []
    help = f"latency of a whole call of {baseline} divided by the row's"
    return _ratio_column(f"whole call vs {baseline}", text, lambda row: _number(row.call), help)


def _ratio_column(
    heading: str, text: Callable[[Row], str], number: Callable[[Row], float | None], help: str
) -> Columns:
    return [Column(heading, text, "left", sort=number, is_more_better=True, help=help)]


def with_verdict(speed_up: SpeedUp | None) -> str:
    """Return `1.87x [1.83, 1.91] faster`, `1.87x` if there is no interval, or `outlier round 3`."""
    if speed_up is None:
        return MISSING
    has_verdict = speed_up.ratio.low is not None and not speed_up.outlier
    return f"{speed_up.text} {speed_up.verdict}" if has_verdict else speed_up.text


def _number(speed_up: SpeedUp | None) -> float | None:
    return shown_value(speed_up.ratio) if speed_up else None


def memory(rows: Sequence[Row], unit: str | None = None) -> Columns:
    return byte_columns(rows, "peak", lambda row: row.peak_memory_bytes, unit)


def plain_costs(rows: Sequence[Row]) -> Columns:
    """Return columns of peak memory and of metrics measured once per process; all bytes are in the same unit."""
    facts = [metric for metric in rows[0].described.metrics if metric.of_cell]
    units = [metric.shown_unit for metric in facts if any(metric.name in row.facts for row in rows)]
    unit = next((unit for unit in units if unit in ("MiB", "GiB")), None)
    return [*memory(rows, unit), *(column for metric in facts for column in fact_columns(rows, metric))]


def fact_columns(rows: Sequence[Row], metric: Metric) -> Columns:
    return number_columns(
        rows, metric.heading, lambda row: row.facts.get(metric.name), lambda value: decimal(value * metric.scale)
    )


def estimate_columns(
    rows: Sequence[AnyRow], heading: str, estimate_of: Callable[[AnyRow], Estimate | None], *, scale: float
) -> list[Column[AnyRow]]:
    """Return a column of values without their intervals; no column if no row has a value."""

    def text(row: AnyRow) -> str:
        return measured_text(row, measured, scale=scale) if (measured := estimate_of(row)) else MISSING

    column = Column(heading, text, sort=lambda row: shown_value(estimate_of(row), scale=scale))
    return [column] if any(map(estimate_of, rows)) else []


def number_columns(
    rows: Sequence[AnyRow], heading: str, value_of: Callable[[AnyRow], float | None], form: Callable[[float], str]
) -> list[Column[AnyRow]]:
    """Return a column of numbers formatted by `form`; no column if no row has a number."""
    return [] if all(value_of(row) is None for row in rows) else [number_column(heading, value_of, form)]


def number_column(
    heading: str,
    value_of: Callable[[AnyRow], float | None],
    form: Callable[[float], str],
    *,
    is_more_better: bool = False,
) -> Column[AnyRow]:
    def text(row: AnyRow) -> str:
        return MISSING if (number := value_of(row)) is None else form(number)

    return Column(heading, text, sort=value_of, is_more_better=is_more_better)


def byte_columns(
    rows: Sequence[AnyRow], name: str, bytes_of: Callable[[AnyRow], int | None], unit: str | None = None
) -> list[Column[AnyRow]]:
    """Return a column of bytes in `unit`; by default in GiB, or in MiB if all values are below 1 GiB."""
    largest = max((size for row in rows if (size := bytes_of(row)) is not None), default=0)
    if unit == "MiB" or (unit is None and largest < GIB):
        return number_columns(rows, f"{name} MiB", bytes_of, lambda size: f"{size / MIB:.1f}")

    def text(size: float) -> str:
        return f"{size / GIB:.2f}" if size >= GIB else decimal(size / GIB)

    return number_columns(rows, f"{name} GiB", bytes_of, text)


def latency_columns(rows: Sequence[Row]) -> Columns:
    has_parts = any(row.ranking.of_sample for row in rows)
    return [] if has_parts else estimate_columns(rows, "ms", lambda row: row.latency, scale=1e3)


def quality_columns(rows: Sequence[Row]) -> Columns:
    facts = [metric for metric in rows[0].described.metrics if metric.is_quality]
    return [column for metric in facts for column in fact_columns(rows, metric)]


def bound(rows: Sequence[Row]) -> Columns:
    """Return the column of each row's bottleneck; no column if no row was explained."""
    column = Column[Row]("bound by", lambda row: row.bound_by or MISSING, "left")
    return [column] if any(row.bound_by for row in rows) else []


def floors(rows: Sequence[Row]) -> list[Sheet]:
    """Return the table of latencies and shortest possible times (floors); no table if no row has a floor."""
    measured = [row for row in rows if row.floor_s is not None and row.latency]
    if not measured:
        return []

    def share(row: Row) -> float | None:
        return None if not row.floor_s or not row.latency or is_wide(row.latency) else row.floor_s / row.latency.value

    columns: list[Column[Row]] = [
        *(axis_columns(measured) if len({row.cell for row in measured}) > 1 else []),
        *names(measured),
        Column(
            "latency ms", lambda row: row.spread_text(row.latency, scale=1e3), sort=lambda row: shown_value(row.latency)
        ),
        Column("floor", lambda row: seconds(row.floor_s), sort=lambda row: row.floor_s),
        number_column("floor / latency", share, partial(percent, places=0), is_more_better=True),
    ]
    source = "from its arithmetic and the matmul rate measured in the same process"
    if any(row.demand and row.demand.bytes is not None for row in measured):
        source = (
            "from its bytes and the memory bandwidth measured in the same process, or from its arithmetic, if that "
            "takes longer"
        )
    note = f"Floor: the shortest possible time of a {measured[0].described.unit}, {source}."
    return [Sheet(LIMITS_TITLE, columns, measured, (note,))]


def first_table(ranking: Ranking, without_why: str = "") -> Sheet:
    """Return the table of the ranking's rows. `without_why`: note of a table in which no row has a reason."""
    rows = ranking.rows
    leader = ranking.leader.variant if ranking.leader else None
    title = f"At {cell_words(ranking.cell)}" if ranking.cell else ""
    brief, exactness = workload_of(rows[0].workload).brief_columns(rows)
    metric = rows[0].ranking
    named = against_named(rows, ranking.named.variant if ranking.named else None, is_short=True)
    columns = [
        Column[Row]("variant", lambda row: row.name_in_sweep + "*" * bool(row.mark), "left"),
        *names(rows)[1:],
        *brief,
        replace(metric_column(metric), text=pace_text, sort=lambda row: shown_value(row.pace, scale=metric.scale)),
        *speed_up(rows),
        *changes(rows),
        *named,
        *memory(rows),
        *exactness,
    ]
    if any(row.bound_by for row in rows):
        help = "largest avoidable part of the time"
        columns.append(Column("why", lambda row: re.split(" and | or ", row.bound_by or MISSING)[0], "left", help=help))
    notes = reference_note(rows)
    notes += [without_why] if without_why and not any(row.bound_by for row in rows) else []
    is_tested = {row.speed_up.ratio.low is not None for row in rows if row.speed_up}
    if True in is_tested:
        notes.append("[low, high] is the 95 % interval over rounds of fresh processes.")
        notes += [f"A speed-up without it has fewer than {MIN_ROUNDS} rounds."] * (False in is_tested)
    if named and any(row.against_named and row.against_named.ratio.low is not None for row in rows):
        notes.append(f"--all: the intervals of '{named[0].heading}'.")
    notes += round_notes(rows) + withheld_notes(rows)
    notes += [f"* {mark}." for mark in dict.fromkeys(row.mark for row in rows if row.mark)]
    return Sheet(title, columns, rows, tuple(notes), lambda row: row.variant == leader)


def pace_text(row: Row) -> str:
    """Return the ranking metric: `36.15`; `outlier round 3` or `wide` for a wide interval; a failed row's status."""
    return status_words(row.status) if row.pace is None else measured_text(row, row.pace, scale=row.ranking.scale)


def measured_text(row: Row, measured: Estimate, *, scale: float) -> str:
    """Return a value without its interval: `36.15`; if the interval is wide, `outlier round 3` or `wide`."""
    if not is_wide(measured):
        return decimal(measured.value * scale)
    return row.spread_text(measured, scale=scale) if row.outlier else "wide"


def withheld_notes(rows: Sequence[Row]) -> list[str]:
    """Return the notes that explain `outlier round N`, `wide`, and `inconclusive` beside an interval without 1."""
    outliers = [row.outlier for row in rows if row.is_withheld]
    speed_ups = [each for row in rows for each in (row.speed_up, row.against_named, row.change) if each]
    outliers += [each.outlier for each in speed_ups if is_wide(each.ratio)]
    open_p = [each.ratio.p for each in speed_ups if each.verdict == "inconclusive" and each.ratio.p is not None]
    has_open = any(p < 1 - CONFIDENCE for p in open_p)
    return [OUTLIER_NOTE] * any(outliers) + [WIDE_NOTE] * (None in outliers) + [OPEN_NOTE] * has_open


def other_cells(results: Results, shown: CellKey | None) -> list[Sheet]:
    """Return a table of the fastest variant in each cell except `shown`; no table for more than 12 such cells."""
    measured = results.measured_cells
    cells = [cell for cell in measured if cell != shown]
    if results.sides or not 0 < len(cells) <= MOST_CELLS:
        return []
    rankings = [
        ranking_of(replace(results, rows=tuple(row for row in results.rows if row.cell == cell))) for cell in cells
    ]
    alike = [name for name, value in cells[0].pairs if all(dict(cell.pairs).get(name) == value for cell in measured)]
    leaders = [row for ranking in rankings if (row := ranking.leader or ranking.fastest)]
    notes = reference_note(leaders)
    if any(len(contenders(ranking)) > 1 for ranking in rankings):
        notes.insert(0, "Numbers are those of the first variant: `and` joins equal variants, `or` undecided ones.")
    notes += round_notes(leaders) + withheld_notes(leaders)
    headings = dict.fromkeys(ranking.rows[0].ranking.heading for ranking in rankings)
    by_leader = [*speed_up(leaders), *against_named(leaders, results.named)]
    columns = [
        Column[Ranking]("cell", lambda ranking: ranking.cell.without(*alike).words if ranking.cell else "", "left"),
        Column[Ranking]("fastest", may_lead, "left"),
        *(Column[Ranking](heading, partial(_pace_of_leader, heading)) for heading in headings),
        *(_of_leader(column) for column in by_leader),
    ]
    return [Sheet("The fastest in the other cells", columns, rankings, tuple(notes))]


def _pace_of_leader(heading: str, ranking: Ranking) -> str:
    return next((pace_text(row) for row in contenders(ranking)[:1] if row.ranking.heading == heading), MISSING)


def _of_leader(column: Column[Row]) -> Column[Ranking]:
    return Column(column.heading, lambda ranking: next(map(column.text, contenders(ranking)), MISSING), "left")


def contenders(ranking: Ranking) -> list[Row]:
    """Return the leader and the rows that are as fast; if there is no leader, the rows that may be the fastest."""
    others = (ranking.fastest, *(rival.row for rival in ranking.undecided or ranking.same))
    first = ranking.leader or ranking.fastest
    return [row for row in (first, *(row for row in others if row is not first)) if row]


def may_lead(ranking: Ranking) -> str:
    """Return the names of `contenders(ranking)`: `int8 and gptq` if equally fast, `int8, gptq or bnb4` if undecided."""
    names = [row.label for row in contenders(ranking)]
    if len(names) > MOST_NAMES:
        names = [*names[: MOST_NAMES - 1], f"{len(names) - MOST_NAMES + 1} more"]
    return listed(names, "and" if ranking.leader else "or")
