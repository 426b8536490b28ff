"""The first table: the variants of one cell in their order, each with its speed, what it costs and why."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from benchmarker.comparison.ranking import Against, Ranked, Ranking, is_wide, odd_process
from benchmarker.comparison.rows import Row
from benchmarker.comparison.words import cell_words
from benchmarker.core.formatting import MISSING, decimal, times
from benchmarker.core.stats import Ratio
from benchmarker.core.tables import Column, Sheet, escaped
from benchmarker.report.columns import bound, memory
from benchmarker.report.presentation import presentation_of
from benchmarker.schema.status_words import status_words

Columns = list[Column[Row]]
ROUND_APART = "Round N apart: that round differs so much from the others that there is no number."


def first_table(ranking: Ranking) -> Sheet:
    """The variants of the ranking's cell in their order, in at most nine columns; the leader is bold."""
    rows = [ranked.row for ranked in ranking.rows]
    leader = ranking.leader.row.variant if ranking.leader else None
    title = f"At {cell_words(ranking.cell)}" if ranking.cell else ""
    return Sheet(title, columns(ranking), rows, _notes(ranking, rows), lambda row: row.variant == leader)


def columns(ranking: Ranking) -> Columns:
    """The columns of the first table."""
    rows = [ranked.row for ranked in ranking.rows]
    if not rows:
        return []
    presentation, by_name = presentation_of(rows[0].workload), {ranked.row.variant: ranked for ranked in ranking.rows}
    variant = Column[Row]("variant", lambda row: row.label, "left", is_foreign=True)
    return [
        variant,
        *presentation.names(rows)[1:],
        *presentation.brief(rows),
        _pace(rows[0]),
        *_beside(by_name, presentation.plain),
        *_overall(by_name, ranking.plain),
        *memory(rows),
        *presentation.quality(rows),
        *(_why(column) for column in bound(rows)),
    ]


def pace(row: Row) -> str:
    """The metric that ranks; why it was not measured; or the round that stands apart for no number."""
    if row.pace is None:
        return status_words(row.status)
    if row.pace.low is not None and row.pace.high is not None and is_wide(Ratio(1, 3, row.pace.low, row.pace.high)):
        return _round_words(odd_process(row))
    return decimal(row.pace.value * row.ranking.scale)


def _pace(first: Row) -> Column[Row]:
    """The column of the metric that ranks."""
    metric = first.ranking
    return Column(
        metric.heading,
        pace,
        sort=lambda row: row.pace.value * metric.scale if row.pace else None,
        is_more_better=metric.better == "higher",
        help=metric.formula,
    )


def _beside(by_name: Mapping[str, Ranked], plain: str) -> Columns:
    """The speed-up against the plain form in the same surroundings, with its verdict."""
    if not any(ranked.beside for ranked in by_name.values()):
        return []

    def text(row: Row) -> str:
        ranked = by_name[row.variant]
        if ranked.beside is None:
            return "baseline" if ranked.is_peer else MISSING
        return against_words(ranked.beside)

    return [
        Column(
            "speed-up",
            text,
            "left",
            sort=lambda row: _value(by_name[row.variant].beside),
            is_more_better=True,
            help=f"how many times as fast as the {plain} beside it",
        )
    ]


def _overall(by_name: Mapping[str, Ranked], plain: Row | None) -> Columns:
    """The speed-up against the fastest plain form, where that is not the one that `_beside` is against."""
    is_other = [
        bool(ranked.overall) and (ranked.beside is None or ranked.beside.row is not plain)
        for ranked in by_name.values()
        if ranked.row.pace
    ]
    if plain is None or not any(is_other):
        return []

    def text(row: Row) -> str:
        against = by_name[row.variant].overall
        if against is None:
            return "1" if row is plain else MISSING
        return _round_words(against.odd_round) if against.odd_round else f"{times(_bare(against.ratio))}"

    return [
        Column(
            "overall",
            text,
            sort=lambda row: _value(by_name[row.variant].overall),
            is_more_better=True,
            help=f"how many times as fast as {plain.variant}",
        )
    ]


def against_words(against: Against) -> str:
    """`1.41x [1.30, 1.53] faster`; a ratio that was not tested alone; the round that stands apart for no number."""
    if against.odd_round:
        return _round_words(against.odd_round)
    return times(against.ratio) if against.ratio.low is None else f"{times(against.ratio)} {against.verdict}"


def _bare(ratio: Ratio) -> Ratio:
    return Ratio(ratio.value, ratio.rounds)


def _round_words(number: int) -> str:
    return f"round {number} apart"


def _why(column: Column[Row]) -> Column[Row]:
    return Column(
        "why", lambda row: _first_of(column.text(row)), "left", is_foreign=True, help="what most of the time is lost to"
    )


def _first_of(reasons: str) -> str:
    """The first of several reasons, which is the largest: `benchmarker explain` names them all."""
    return re.split(" and | or ", reasons)[0]


def _value(against: Against | None) -> float | None:
    return against.ratio.value if against and not against.odd_round else None


def _notes(ranking: Ranking, rows: Sequence[Row]) -> tuple[str, ...]:
    """How to read it, in as few words as it takes."""
    if not rows:
        return ()
    presentation, by_name = presentation_of(rows[0].workload), {ranked.row.variant: ranked for ranked in ranking.rows}
    others = {ranked.beside.row.variant for ranked in ranking.rows if ranked.beside}
    notes = []
    if len(others) == 1:
        notes.append(f"Speed-up is against {escaped(*others)}.")
    elif others:
        notes.append(f"Speed-up is against the {presentation.plain} in the same {presentation.surroundings}.")
    if ranking.plain and _overall(by_name, ranking.plain):
        notes.append(f"Overall is against {escaped(ranking.plain.label)}, the fastest {presentation.plain}.")
    if any(ranked.beside and ranked.beside.ratio.low is not None for ranked in ranking.rows):
        notes.append("[low, high] is the 95 % interval over rounds of fresh processes.")
    if any(ranked.beside and ranked.beside.odd_round for ranked in ranking.rows):
        notes.append(ROUND_APART)
    marks = dict.fromkeys(row.mark for row in rows if row.mark)
    return (*notes, *(f"\\* {mark}." for mark in marks))
