"""The first table of a comparison, and the table of the fastest variants in the other cells."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from benchmarker.comparison.ranking import Ranking, ranking_of
from benchmarker.comparison.rows import CellKey, Results, Row, cell_words
from benchmarker.comparison.speed_up import is_wide, own_outlier
from benchmarker.core.formatting import decimal
from benchmarker.core.stats import Ratio
from benchmarker.core.tables import Column, Sheet
from benchmarker.report.captions import reference_note
from benchmarker.report.columns import against_named, bound, memory, names, outlier_words, speed_up
from benchmarker.schema.record import status_words
from benchmarker.schema.registry import workload_of

Columns = list[Column[Row]]
OUTLIER_NOTE = "Outlier round N: this round differs so much from the others that the interval is too wide for a number."


def first_table(ranking: Ranking) -> Sheet:
    """Return the rows of the ranking in at most nine columns. The leader is bold."""
    leader = ranking.leader.variant if ranking.leader else None
    title = f"At {cell_words(ranking.cell)}" if ranking.cell else ""
    notes = _notes(ranking.rows)
    return Sheet(title, columns(ranking), ranking.rows, notes, lambda row: row.variant == leader)


def columns(ranking: Ranking) -> Columns:
    rows = ranking.rows
    if not rows:
        return []
    workload = workload_of(rows[0].workload)
    brief, exactness = workload.brief_columns(rows)
    variant = Column[Row]("variant", lambda row: row.label, "left")
    return [
        variant,
        *names(rows)[1:],
        *brief,
        _pace(rows[0]),
        *speed_up(rows),
        *against_named(rows, ranking.named.variant if ranking.named else None, is_bare=True),
        *memory(rows),
        *exactness,
        *(_why(column) for column in bound(rows)),
    ]


def pace(row: Row) -> str:
    """Return the ranking metric, the status of a failed row, or the outlier round."""
    if row.pace is None:
        return status_words(row.status)
    if row.pace.low is not None and row.pace.high is not None and is_wide(Ratio(1, 3, row.pace.low, row.pace.high)):
        return outlier_words(own_outlier(row))
    return decimal(row.pace.value * row.ranking.scale)


def _pace(first: Row) -> Column[Row]:
    metric = first.ranking
    return Column(
        metric.heading,
        pace,
        sort=lambda row: row.pace.value * metric.scale if row.pace else None,
        is_more_better=metric.better == "higher",
        help=metric.formula,
    )


def _why(column: Column[Row]) -> Column[Row]:
    return Column("why", lambda row: _first_of(column.text(row)), "left", help="largest avoidable part of the time")


def _first_of(reasons: str) -> str:
    return re.split(" and | or ", reasons)[0]


def _notes(rows: Sequence[Row]) -> tuple[str, ...]:
    if not rows:
        return ()
    notes = [*reference_note(rows)]
    if any(row.speed_up and row.speed_up.ratio.low is not None for row in rows):
        notes.append("[low, high] is the 95 % interval over rounds of fresh processes.")
    if any(row.speed_up and row.speed_up.outlier for row in rows):
        notes.append(OUTLIER_NOTE)
    marks = dict.fromkeys(row.mark for row in rows if row.mark)
    return (*notes, *(f"* {mark}." for mark in marks))


MOST_CELLS = 12
"""Largest number of other cells in the table. `--all` prints more."""
MOST_NAMES = 3


def other_cells(results: Results, shown: CellKey | None) -> Sheet | None:
    """Return the table of the other cells; None if there are none or too many.

    Args:
        shown: Cell of the first table.
    """
    measured = results.measured_cells
    cells = [cell for cell in measured if cell != shown]
    if not 0 < len(cells) <= MOST_CELLS:
        return None
    rankings = [
        ranking_of(replace(results, rows=tuple(row for row in results.rows if row.cell == cell))) for cell in cells
    ]
    alike = [name for name, value in cells[0].pairs if all(dict(cell.pairs).get(name) == value for cell in measured)]
    notes = []
    if any(_as_good(ranking) for ranking in rankings):
        notes.append("If several are named, they are equally fast, or more rounds would decide.")
    leaders = [_leader(ranking) for ranking in rankings]
    notes += reference_note(leaders)
    if any(leader.speed_up and leader.speed_up.outlier for leader in leaders):
        notes.append(OUTLIER_NOTE)
    by_leader = [*speed_up(leaders), *against_named(leaders, results.named)]
    columns = [
        Column[Ranking]("cell", lambda ranking: ranking.cell.without(*alike).words if ranking.cell else "", "left"),
        Column[Ranking]("fastest", _names, "left"),
        Column[Ranking](leaders[0].ranking.heading, lambda ranking: pace(_leader(ranking))),
        *(_of_leader(column) for column in by_leader),
    ]
    return Sheet("The fastest in the other cells", columns, rankings, tuple(notes))


def _of_leader(column: Column[Row]) -> Column[Ranking]:
    return Column(column.heading, lambda ranking: column.text(_leader(ranking)), "left")


def _leader(ranking: Ranking) -> Row:
    assert ranking.leader is not None, "a measured cell has a leader"
    return ranking.leader


def _as_good(ranking: Ranking) -> list[str]:
    rows = [rival.row for rival in ranking.undecided or ranking.same]
    fastest = [ranking.fastest] if ranking.fastest else []
    return list(dict.fromkeys(row.label for row in (*fastest, *rows) if row is not _leader(ranking)))


def _names(ranking: Ranking) -> str:
    names = [_leader(ranking).label, *_as_good(ranking)]
    if len(names) > MOST_NAMES:
        names = [*names[: MOST_NAMES - 1], f"{len(names) - MOST_NAMES + 1} more"]
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last
