"""Which variant is fastest in the cells that the first table does not show, a row each."""

from __future__ import annotations

from dataclasses import replace

from benchmarker.comparison.ranking import Ranking, ranking_of
from benchmarker.comparison.rows import CellKey, Results
from benchmarker.core.numbers import decimal
from benchmarker.core.tables import Column, Sheet
from benchmarker.report.first_table import against_words
from benchmarker.report.presentation import presentation_of

MOST_CELLS = 12
"""More would hide the first table; `--all` has them."""


def other_cells(results: Results, shown: CellKey | None) -> Sheet | None:
    """A table of the other cells; None where there are none, or too many.

    Args:
        shown: The cell of the first table.
    """
    measured = dict.fromkeys(row.cell for row in results.rows if row.cell and row.pace)
    cells = [cell for cell in measured if cell != shown]
    if not 0 < len(cells) <= MOST_CELLS:
        return None
    rankings = [
        ranking_of(replace(results, rows=tuple(row for row in results.rows if row.cell == cell))) for cell in cells
    ]
    alike = [name for name, value in cells[0].pairs if all(dict(cell.pairs).get(name) == value for cell in measured)]
    plain = presentation_of(results.workload).plain
    note = (
        f"Where several are named, nothing tells them apart yet. Speed-up is of the first, against the fastest {plain}."
    )
    return Sheet("The fastest in the other cells", _columns(rankings[0], alike), rankings, (note,))


def _columns(first: Ranking, alike: list[str]) -> list[Column[Ranking]]:
    """Args:
    alike: Axes that are the same in all cells.
    """
    assert first.leader is not None
    return [
        Column("cell", lambda ranking: ranking.cell.without(*alike).words if ranking.cell else "", "left"),
        Column("fastest", _leaders, "left", is_foreign=True),
        Column(first.leader.row.ranking.heading, _pace),
        Column("speed-up", _gain, "left"),
    ]


def _leaders(ranking: Ranking) -> str:
    """`bnb4`, or `int8 or gptq` where nothing tells the two apart."""
    leader = ranking.leader
    assert leader is not None
    *names, last = dict.fromkeys([leader.row.label, *(rival.row.label for rival in ranking.undecided)])
    return f"{', '.join(names)} or {last}" if names else last


def _pace(ranking: Ranking) -> str:
    leader = ranking.leader
    assert leader is not None
    assert leader.row.pace is not None
    return decimal(leader.row.pace.value * leader.row.ranking.scale)


def _gain(ranking: Ranking) -> str:
    """Against the fastest plain form."""
    leader = ranking.leader
    assert leader is not None
    return against_words(leader.overall) if leader.overall else "baseline"
