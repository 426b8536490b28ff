"""Which variant is fastest in the cells that the first table does not show, a row each."""

from __future__ import annotations

from dataclasses import replace

from benchmarker.comparison.ranking import Ranking, ranking_of
from benchmarker.comparison.rows import CellKey, Results, Row
from benchmarker.core.tables import Column, Sheet
from benchmarker.report.captions import reference_note
from benchmarker.report.columns import against_named, speed_up
from benchmarker.report.first_table import OUTLIER_NOTE, pace

MOST_CELLS = 12
"""More would hide the first table; `--all` has them."""
MOST_NAMES = 3


def other_cells(results: Results, shown: CellKey | None) -> Sheet | None:
    """A table of the other cells; None where there are none, or too many.

    Args:
        shown: The cell of the first table.
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
        notes.append("Where several are named, nothing tells them apart yet, or they are equally fast.")
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
    """Return the labels of the other rows that are as fast as the leader, or may be."""
    rows = [rival.row for rival in ranking.undecided or ranking.same]
    fastest = [ranking.fastest] if ranking.fastest else []
    return list(dict.fromkeys(row.label for row in (*fastest, *rows) if row is not _leader(ranking)))


def _names(ranking: Ranking) -> str:
    """Return `bnb4`, or `int8, gptq or 2 more` if several are equally good."""
    names = [_leader(ranking).label, *_as_good(ranking)]
    if len(names) > MOST_NAMES:
        names = [*names[: MOST_NAMES - 1], f"{len(names) - MOST_NAMES + 1} more"]
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last
