"""The answer in a few sentences: which variant was fastest, which needs least memory, which nothing else beats.

A name is put first alone only where the statistics tell it from the next; otherwise the sentence says that they do not.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarker.comparison.pareto import front
from benchmarker.comparison.rows import Row
from benchmarker.comparison.words import cell_words, listed
from benchmarker.core.numbers import decimal, percent, times
from benchmarker.core.stats import SAME_WITHIN, against_each
from benchmarker.core.tables import escaped
from benchmarker.core.units import gib
from benchmarker.report.presentation import presentation_of


def answer(rows: Sequence[Row]) -> tuple[str, ...]:
    """Markdown sentences; none where nothing was measured.

    Args:
        rows: Of the headline's cell.
    """
    able = sorted((row for row in rows if row.rate), key=_speed, reverse=True)
    if not able:
        return ()
    if len(able) == 1:
        made = presentation_of(able[0].workload).made
        return (f"{_name(able[0])} {made} {_rate(able[0])} at {cell_words(able[0].cell)}.",)
    return tuple(filter(None, (_fastest(able), _smallest(able), _choice(able))))


def _fastest(able: Sequence[Row]) -> str:
    first, second = able[:2]
    where = f"At {cell_words(first.cell)}"
    lead, word = _lead(able)
    against = f", {times(first.ratio)} {_baseline(able)}" if first.ratio and not first.is_baseline else ""
    if word == "faster":
        return (
            f"{where}, **{_name(first)} was fastest**: {_rate(first)}{against}. The next is {_name(second)}, "
            f"{_rate(second)}."
        )
    if word == "not tested":
        ahead = "" if second.is_baseline else f", {percent(lead - 1, places=0)} ahead of {_name(second)}"
        return (
            f"{where}, **{_name(first)} was fastest in this look**: {_rate(first)}{against}{ahead}; too few rounds to "
            "tell that from chance."
        )
    return (
        f"{where}, **{_name(first)} and {_name(second)} were fastest**: {_rate(first)} and {_rate(second)}, and these "
        "rounds do not tell them apart."
    )


def _lead(able: Sequence[Row]) -> tuple[float, str]:
    """How far the first is ahead of the second, and whether that is real.

    Where the second is the baseline, the comparison's own verdict stands.
    """
    first, second, *_ = able
    ahead, word = against_each(first.latency_by_round, [row.latency_by_round for row in able[1:]])[0]
    return ahead.value, first.verdict if second.is_baseline and first.verdict else word


def _smallest(able: Sequence[Row]) -> str:
    known = [row for row in able if row.peak_memory_bytes is not None]
    if len(known) < 2:
        return ""
    least = min(known, key=_peak)
    as_small = [row for row in known if _peak(row) <= _peak(least) * (1 + SAME_WITHIN)]
    base = next((row for row in known if row.is_baseline), None)
    instead = f" instead of {gib(base.peak_memory_bytes)}" if base and base is not least else ""
    peak = gib(least.peak_memory_bytes)
    said = f"**{_name(least)} needs least memory**: {peak} at its peak{instead}, at {_rate(least)}"
    fastest = max(as_small, key=_speed)
    if fastest.is_baseline or _speed(fastest) <= _speed(least) * (1 + SAME_WITHIN):
        return f"{said}."
    return f"{said}; {_name(fastest)} hardly more, {gib(fastest.peak_memory_bytes)}, at {_rate(fastest)}."


def _speed(row: Row) -> float:
    return row.speed


def _peak(row: Row) -> int:
    return row.peak_memory_bytes or 0


def _choice(able: Sequence[Row]) -> str:
    best = front(able)
    if not 0 < len(best) < len(able):
        return ""
    beaten = [row for row in able if row not in best]
    names = listed(row.variant for row in best)
    verb = "is" if len(best) == 1 else "are"
    others = "the other is" if len(beaten) == 1 else "each of the others is"
    return (
        f"Worth a look {verb} {names}: {others} matched or beaten by one of these in all that was measured, to within "
        f"{percent(SAME_WITHIN, places=0)}."
    )


def _baseline(rows: Sequence[Row]) -> str:
    return next((_name(row) for row in rows if row.is_baseline), "the baseline")


def _name(row: Row) -> str:
    return escaped(row.variant)


def _rate(row: Row) -> str:
    assert row.rate
    return f"{decimal(row.rate.value * row.headline.scale)} {row.headline.shown_unit}"
