"""Recommendations as sentences and for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarker.comparison.recommend import Candidate, Check, Recommendation, Rival
from benchmarker.comparison.rows import Results, cell_words, listed
from benchmarker.core.formatting import decimal, percent, times
from benchmarker.core.stats import MIN_ROUNDS
from benchmarker.core.tables import Block, bullets, code, escaped, plain_line, unmarked
from benchmarker.report.answer import rest_of_answer


def recommendation_lines(results: Results, recommendation: Recommendation) -> tuple[str, ...]:
    """Return at most three lines: the variant within the budget, its costs, its command."""
    budget = plain_line(recommendation.budget)
    first = f"For the budget {code(budget)}, at {cell_words(recommendation.cell)}: {_answer(recommendation)}"
    rest = rest_of_answer(results, recommendation.ranking) if recommendation.ranking else ()
    return (" ".join((first, *_meanings(recommendation))), *rest)


def budget_lines(recommendation: Recommendation) -> list[str]:
    """Return every variant with its margins, the fastest first."""
    candidates = sorted(recommendation.candidates, key=lambda candidate: -candidate.row.speed)
    return [_against_budget(candidate) for candidate in candidates]


def recommendation_blocks(recommendation: Recommendation) -> list[Block]:
    first = f"For the budget {code(plain_line(recommendation.budget))}, at {cell_words(recommendation.cell)}"
    answer = " ".join((_answer(recommendation), *_meanings(recommendation)))
    return [f"{first}: {answer}", bullets(budget_lines(recommendation))]


def _meanings(recommendation: Recommendation) -> list[str]:
    checks = recommendation.candidates[0].checks if recommendation.candidates else ()
    return list(filter(None, dict.fromkeys(check.limit.what.meaning for check in checks)))


def recommendation_to_dict(recommendation: Recommendation) -> dict[str, Any]:
    """Return plain values. `variant` is null if nothing is recommended, and `why` contains the reason."""
    chosen = recommendation.chosen.row if recommendation.chosen else None
    nearest = recommendation.nearest if chosen is None else None
    has_engines = any("engine" in candidate.row.form for candidate in recommendation.candidates)
    return {
        "budget": recommendation.budget,
        "variant": chosen.variant if chosen else None,
        **({"engine": chosen.form["engine"] if chosen else None} if has_engines else {}),
        "why": unmarked(_answer(recommendation)),
        "leading": recommendation.fastest.row.variant if recommendation.fastest else None,
        "nearest": nearest.row.variant if nearest else None,
        "fits": [candidate.row.variant for candidate in recommendation.candidates if candidate.fits],
        "not_measured": [limit.metric for limit in recommendation.unmeasured],
    }


def _answer(recommendation: Recommendation) -> str:
    if recommendation.unmeasured:
        reasons = "; ".join(f"{limit.metric} was not measured: {limit.what.how}" for limit in recommendation.unmeasured)
        return f"it cannot be answered; {reasons}."
    if recommendation.chosen:
        return _recommended(recommendation, recommendation.chosen)
    if recommendation.undecided and recommendation.fastest:
        return _undecided(recommendation.fastest, recommendation.undecided)
    nearest = recommendation.nearest
    unsure = [candidate for candidate in recommendation.candidates if not candidate.breaks]
    if unsure or nearest is None:
        return _unsure(unsure)
    return f"none fits; the nearest is {_form(nearest)}: {_margins(nearest)}."


def _recommended(recommendation: Recommendation, chosen: Candidate) -> str:
    words = f"{_form(chosen)}{_margins(chosen, opening=', ')}"
    if not recommendation.rivals:
        unsure = [candidate for candidate in recommendation.candidates if not candidate.fits and not candidate.breaks]
        if unsure:
            return f"{words}; {listed(candidate.row.variant for candidate in unsure)} may fit too."
        return f"{words}; no other variant fits."
    same = [rival.candidate for rival in recommendation.rivals if rival.verdict == "same"]
    if same and recommendation.fastest:
        equals = [candidate for candidate in (recommendation.fastest, *same) if candidate is not chosen]
        names = listed(candidate.row.variant for candidate in equals)
        return f"{words}; it is as fast as {names} within the band, and needs least memory."
    second = recommendation.rivals[0]
    return f"{words}; {times(second.ratio)} as fast as {escaped(second.candidate.row.variant)}, the next that fits."


def _undecided(fastest: Candidate, undecided: tuple[Rival, ...]) -> str:
    second, others = undecided[0], len(undecided) - 1
    more = f" and {others} more that fit" if others else ""
    return (
        f"{_form(fastest)} leads, not decided: {_rate(fastest)}{_margins(fastest, opening=', ')}; "
        f"{escaped(second.candidate.row.variant)}, {_rate(second.candidate)}{more}: {second.verdict}."
    )


def _unsure(candidates: Sequence[Candidate]) -> str:
    inside = [candidate for candidate in candidates if _is_inside(candidate)]
    if not inside:
        names = listed(candidate.row.variant for candidate in candidates) or "no variant"
        return f"none is known to fit; {names} may fit, and more rounds or measurements would decide."
    first, *others = sorted(inside, key=lambda candidate: -candidate.row.speed)
    more = f"; {listed(candidate.row.variant for candidate in others)} too" if others else ""
    return (
        f"none is known to fit before there are more rounds. As measured {_form(first)} does, {_rate(first)}"
        f"{_margins(first, opening=', ')}{more}."
    )


def _is_inside(candidate: Candidate) -> bool:
    return all(check.value is not None and check.limit.allows(check.value) for check in candidate.checks)


def _rate(candidate: Candidate) -> str:
    row = candidate.row
    assert row.pace
    return f"{decimal(row.pace.value * row.ranking.scale)} {row.ranking.shown_unit}"


def _against_budget(candidate: Candidate) -> str:
    word = "fits" if candidate.fits else "does not fit" if candidate.breaks else "is not known to fit"
    return f"{_form(candidate)} {word}{_margins(candidate, opening=': ')}"


def _margins(candidate: Candidate, *, opening: str = "") -> str:
    return f"{opening}{', '.join(map(_margin, candidate.checks))}" if candidate.checks else ""


def _margin(check: Check) -> str:
    limit = check.limit
    if check.value is None:
        return f"{limit.metric} not measured"
    excess = limit.excess(check.value)
    side = ("above" if limit.is_upper else "below") if excess > 0 else ("below" if limit.is_upper else "above")
    close = {"close": ", too close to call", "untested": f", of fewer than {MIN_ROUNDS} rounds"}.get(check.fit, "")
    return f"{limit.metric} {limit.shown(check.value)} ({percent(abs(excess), places=0)} {side} the limit{close})"


def _form(candidate: Candidate) -> str:
    return candidate.row.variant_text
