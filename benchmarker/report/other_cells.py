"""Which variant is fastest in the cells that the first table does not show, a row each."""

from __future__ import annotations

from dataclasses import replace

from benchmarker.comparison.ranking import Ranked, Ranking, ranking_of
from benchmarker.comparison.rows import CellKey, Results
from benchmarker.core.formatting import MISSING
from benchmarker.core.tables import Column, Sheet, escaped
from benchmarker.report.first_table import ROUND_APART, against_words, pace
from benchmarker.report.presentation import presentation_of

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
    has_gains = any(leader.overall for leader in leaders)
    if has_gains:
        plain = presentation_of(results.workload).plain
        notes.append(f"Speed-up is of the first that is named, against the fastest {plain} of the cell.")
    if any(leader.overall and leader.overall.odd_round for leader in leaders):
        notes.append(ROUND_APART)
    columns = [
        Column[Ranking]("cell", lambda ranking: ranking.cell.without(*alike).words if ranking.cell else "", "left"),
        Column[Ranking]("fastest", _names, "left"),
        Column[Ranking](leaders[0].row.ranking.heading, lambda ranking: pace(_leader(ranking).row)),
        *([Column[Ranking]("speed-up", _gain, "left")] if has_gains else []),
    ]
    return Sheet("The fastest in the other cells", columns, rankings, tuple(notes))


def _leader(ranking: Ranking) -> Ranked:
    assert ranking.leader is not None, "a cell that was measured has a leader"
    return ranking.leader


def _as_good(ranking: Ranking) -> list[str]:
    """Labels of the others that may be as fast as the leader, or are."""
    rows = [against.row for against in ranking.undecided or ranking.same]
    fastest = [ranking.fastest.row] if ranking.fastest else []
    return list(dict.fromkeys(row.label for row in (*fastest, *rows) if row is not _leader(ranking).row))


def _names(ranking: Ranking) -> str:
    """`bnb4`, or `int8, gptq or 2 more` where several are equally good."""
    names = [escaped(name) for name in (_leader(ranking).row.label, *_as_good(ranking))]
    if len(names) > MOST_NAMES:
        names = [*names[: MOST_NAMES - 1], f"{len(names) - MOST_NAMES + 1} more"]
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def _gain(ranking: Ranking) -> str:
    """Against the fastest plain form."""
    leader = _leader(ranking)
    if leader.overall is None:
        return "baseline" if leader.row is ranking.plain else MISSING
    return against_words(leader.overall)
