"""A recommendation for a reader, and for a program."""

from __future__ import annotations

from typing import Any

from benchmarker.comparison.comparing import comparing_of
from benchmarker.comparison.recommend import Candidate, Check, Recommendation, Rival
from benchmarker.comparison.words import cell_words
from benchmarker.core.numbers import percent, times
from benchmarker.core.stats import MIN_ROUNDS
from benchmarker.core.tables import escaped, plain_line


def recommendation_to_markdown(found: Recommendation) -> str:
    """The answer first, then every variant against the budget."""
    lines = [f"- {_against_budget(one)}" for one in found.candidates]
    budget = plain_line(found.budget).replace("`", "'")
    meanings = dict.fromkeys(check.limit.what.meaning for one in found.candidates[:1] for check in one.checks)
    answer = " ".join(filter(None, (_answer(found), *meanings)))
    return "\n".join([f"**For the budget `{budget}`, at {cell_words(found.cell)}**: {answer}", "", *lines])


def recommendation_to_dict(found: Recommendation) -> dict[str, Any]:
    """Plain values; `variant` is null where nothing is recommended, and `why` says why."""
    chosen = found.chosen.row if found.chosen else None
    return {
        "budget": found.budget,
        "variant": chosen.variant if chosen else None,
        **{name: of(chosen) if chosen else None for name, of in comparing_of(found.cell.workload).labels.items()},
        "why": _answer(found),
        "nearest": found.nearest.row.variant if chosen is None and found.nearest else None,
        "fits": [one.row.variant for one in found.candidates if one.fits],
        "not_measured": [limit.metric for limit in found.unmeasured],
    }


def _answer(found: Recommendation) -> str:
    if found.unmeasured:
        said = "; ".join(f"{one.metric} was not measured: {one.what.how}" for one in found.unmeasured)
        return f"it cannot be answered; {said}."
    if found.chosen:
        return _recommended(found, found.chosen)
    if found.undecided and found.fastest:
        return _undecided(found.fastest, found.undecided)
    nearest = found.nearest
    open_ones = [one for one in found.candidates if not one.breaks]
    if open_ones or nearest is None:
        names = " and ".join(escaped(one.row.variant) for one in open_ones) or "no variant"
        return f"none is known to fit; {names} may, and more rounds or measurements would tell."
    return f"none fits; the nearest is {_named(nearest)}: {', '.join(_margin(one) for one in nearest.checks)}."


def _recommended(found: Recommendation, chosen: Candidate) -> str:
    margins = ", ".join(_margin(check) for check in chosen.checks)
    said = f"{_named(chosen)}, {margins}"
    if not found.rivals:
        may = [escaped(one.row.variant) for one in found.candidates if not one.fits and not one.breaks]
        return f"{said}; {' and '.join(may)} may fit too." if may else f"{said}; no other variant fits."
    same = [one for one in found.rivals if one.verdict == "same"]
    if same:
        others = [found.fastest, *(one.candidate for one in same)]
        names = " and ".join(escaped(one.row.variant) for one in others if one and one is not chosen)
        return f"{said}; it is as fast as {names} within the band, and needs least memory."
    second = found.rivals[0]
    return f"{said}; {times(second.ratio)} as fast as {escaped(second.candidate.row.variant)}, the next that fits."


def _undecided(fastest: Candidate, undecided: tuple[Rival, ...]) -> str:
    others = " and ".join(escaped(one.candidate.row.variant) for one in undecided)
    verdicts = " and ".join(dict.fromkeys(one.verdict for one in undecided))
    return (
        f"no recommendation: {escaped(fastest.row.variant)} and {others} fit, and their difference is {verdicts}; more "
        "rounds would tell (`benchmarker sweep --rounds 5`)."
    )


def _against_budget(one: Candidate) -> str:
    word = "fits" if one.fits else "does not fit" if one.breaks else "is not known to fit"
    return f"{_named(one)} {word}: {', '.join(_margin(check) for check in one.checks)}"


def _margin(check: Check) -> str:
    """`memory 4.10 GiB (32 % below the limit)`."""
    limit = check.limit
    if check.value is None:
        return f"{limit.metric} not measured"
    excess = limit.excess(check.value)
    side = ("above" if limit.is_upper else "below") if excess > 0 else ("below" if limit.is_upper else "above")
    close = {"close": ", too close to call", "untested": f", of fewer than {MIN_ROUNDS} rounds"}.get(check.fit, "")
    return f"{limit.metric} {limit.shown(check.value)} ({percent(abs(excess), places=0)} {side} the limit{close})"


def _named(one: Candidate) -> str:
    return comparing_of(one.row.workload).form_words(one.row)
