"""The answer in at most three lines: the variant, its gain with the interval, its costs, and the command that runs it.

A variant is called the fastest only if the statistics separate it from the next. Otherwise the answer states how many
rounds would decide.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any

from benchmarker.comparison.ranking import Ranking, Rival
from benchmarker.comparison.recommend import Candidate, LimitCheck, Recommendation
from benchmarker.comparison.rows import Results, Row, cell_words, listed
from benchmarker.core.formatting import approximate_duration, decimal, gib, percent, plural, times
from benchmarker.core.stats import MIN_ROUNDS, SAME_WITHIN, rounds_to_tell
from benchmarker.core.tables import Block, bold, bullets, code, plain_line, unmarked
from benchmarker.schema.record import RunRecord
from benchmarker.schema.registry import workload_of


def answer(results: Results, ranking: Ranking) -> tuple[str, ...]:
    """Return at most three sentences; none if nothing was measured."""
    if ranking.leader is None:
        return ()
    where = f"At {cell_words(ranking.cell)}, " if len(results.measured_cells) > 1 else ""
    return (f"{where}{_which(results, ranking)}", *rest_of_answer(results, ranking))


def rest_of_answer(results: Results, ranking: Ranking) -> tuple[str, ...]:
    """Return the rounds that would decide, the costs of the leader, and its command."""
    if ranking.leader is None:
        return ()
    row = ranking.leader
    records = results.members.get(row.variant, ())
    command = workload_of(results.workload).command(records) if records else ""
    middle = " ".join(filter(None, (_decides(results, ranking), _costs(row, ranking))))
    return tuple(filter(None, (middle, f"Run it: {code(command)}" if command else "")))


def _which(results: Results, ranking: Ranking) -> str:
    leader = ranking.leader
    assert leader is not None
    rate = f"{_rate(leader)}{_gain(results, ranking, leader)}"
    if not ranking.rivals:
        return f"{_name(leader)}: {rate}."
    if ranking.undecided:
        return f"{_name(leader)} leads: {rate}."
    if ranking.same:
        others = listed(row.label for row in _as_fast(ranking))
        within = percent(SAME_WITHIN, places=0)
        return f"{_name(leader)} is best: {rate}; as fast as {others} within {within}, in least memory."
    second = ranking.rivals[0].row
    following = "" if ranking.named is second else f"; next is {plain_line(second.label)}, {_rate(second)}"
    return f"{_name(leader)} is fastest: {rate}{following}."


def _as_fast(ranking: Ranking) -> list[Row]:
    assert ranking.leader is not None
    assert ranking.fastest is not None
    rows = [ranking.fastest, *(rival.row for rival in ranking.same)]
    return [row for row in rows if row is not ranking.leader]


def _gain(results: Results, ranking: Ranking, leader: Row) -> str:
    plain = workload_of(leader.workload).baseline_noun
    kind = "baseline" if results.has_named_baseline else plain
    if ranking.named is None or leader.against_named is None:
        return f", the {kind} itself" if ranking.named is leader and len(ranking.measured) > 1 else ""
    title = kind if kind == "baseline" else f"fastest {kind}"
    reference = f"{plain_line(ranking.named.label)} ({title})"
    if leader.against_named.outlier:
        return f"; relative to {reference}, round {leader.against_named.outlier} is an outlier"
    return f", {times(leader.against_named.ratio)} {reference}"


def _behind(rival: Rival) -> str:
    if rival.outlier:
        return f"{plain_line(rival.row.label)} may be as fast, round {rival.outlier} is an outlier"
    return f"{plain_line(rival.row.label)} is {percent(1 - 1 / rival.ratio.value)} behind"


def _decides(results: Results, ranking: Ranking) -> str:
    """Return `Not decided: int8 is 0.5 % behind; 2 more rounds would decide, about 4 min.`, or nothing.

    With fewer rounds than a test needs the spread is unknown, and the count is a minimum.
    """
    if not ranking.undecided:
        return ""
    more = [rounds_to_tell(rival.ratio, tests=len(ranking.rivals)) for rival in ranking.undecided]
    rounds = max((count for count in more if count), default=0)
    opening = f"Not decided: {_behind(ranking.undecided[0])}"
    if not rounds:
        return f"{opening}, and more rounds would hardly decide."
    round_time_s = round_s(results.records)
    how_long = f", {approximate_duration(rounds * round_time_s)}" if round_time_s else ""
    counted = plural(rounds, "more round", "more rounds")
    if any(rival.ratio.rounds < MIN_ROUNDS for rival in ranking.undecided):
        return f"{opening}; at least {counted} would decide{how_long}."
    return f"{opening}; {counted} would decide{how_long}."


def _costs(row: Row, ranking: Ranking) -> str:
    plain = ranking.named if ranking.named is not row else None
    size, instead = gib(row.peak_memory_bytes), ""
    if plain and plain.peak_memory_bytes:
        plain_size = gib(plain.peak_memory_bytes)
        instead = f", like {plain_line(plain.label)}" if size == plain_size else f" instead of {plain_size}"
    parts = [f"{size}{instead}"] if row.peak_memory_bytes is not None else []
    quality = row.quality_text
    parts += [quality] if quality else []
    return f"Costs {'; '.join(parts)}." if parts else ""


def _name(row: Row) -> str:
    return bold(plain_line(row.label))


def _rate(row: Row) -> str:
    assert row.pace
    return f"{decimal(row.pace.value * row.ranking.scale)} {row.ranking.shown_unit}"


def round_s(records: Sequence[RunRecord]) -> float | None:
    """Return seconds per round of all variants: the median time between two processes, times the variants.

    The median ignores pauses, such as before a resumed sweep. None if no sweep has two processes.
    """
    starts: dict[str, list[float]] = defaultdict(list)
    for record in records:
        if record.sweep:
            starts[record.sweep].append(datetime.fromisoformat(record.started_at).timestamp())
    spans = [later - earlier for times in starts.values() for earlier, later in pairwise(sorted(times))]
    variants = len({record.variant.name for record in records})
    return variants * statistics.median(spans) if spans else None


def recommendation_lines(results: Results, recommendation: Recommendation) -> tuple[str, ...]:
    """Return at most three lines: the variant within the budget, its costs, its command."""
    budget = plain_line(recommendation.budget)
    first = f"For the budget {code(budget)}, at {cell_words(recommendation.ranking.cell)}: {_answer(recommendation)}"
    return (" ".join((first, *_meanings(recommendation))), *rest_of_answer(results, recommendation.ranking))


def budget_lines(recommendation: Recommendation) -> list[str]:
    """Return every variant with its margins, the fastest first."""
    candidates = sorted(recommendation.candidates, key=lambda candidate: -candidate.row.speed)
    return [_against_budget(candidate) for candidate in candidates]


def recommendation_blocks(recommendation: Recommendation) -> list[Block]:
    first = f"For the budget {code(plain_line(recommendation.budget))}, at {cell_words(recommendation.ranking.cell)}"
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
    if recommendation.fastest:
        return _undecided(recommendation.fastest, recommendation.ranking.undecided)
    nearest = recommendation.nearest
    unsure = [candidate for candidate in recommendation.candidates if not candidate.breaks]
    if unsure or nearest is None:
        return _unsure(unsure)
    return f"none fits; the nearest is {_form(nearest)}: {_margins(nearest)}."


def _recommended(recommendation: Recommendation, chosen: Candidate) -> str:
    words = f"{_form(chosen)}{_margins(chosen, opening=', ')}"
    ranking = recommendation.ranking
    if not ranking.rivals:
        unsure = [candidate for candidate in recommendation.candidates if not candidate.fits and not candidate.breaks]
        if unsure:
            return f"{words}; {listed(candidate.row.variant for candidate in unsure)} may fit too."
        return f"{words}; no other variant fits."
    if ranking.same:
        names = listed(row.variant for row in _as_fast(ranking))
        return f"{words}; it is as fast as {names} within the band, and needs least memory."
    second = ranking.rivals[0]
    return f"{words}; {times(second.ratio)} as fast as {plain_line(second.row.variant)}, the next that fits."


def _undecided(fastest: Candidate, undecided: Sequence[Rival]) -> str:
    second, others = undecided[0], len(undecided) - 1
    more = f" and {others} more that fit" if others else ""
    return (
        f"{_form(fastest)} leads, not decided: {_rate(fastest.row)}{_margins(fastest, opening=', ')}; "
        f"{plain_line(second.row.variant)}, {_rate(second.row)}{more}: {second.verdict}."
    )


def _unsure(candidates: Sequence[Candidate]) -> str:
    inside = [candidate for candidate in candidates if _is_inside(candidate)]
    if not inside:
        names = listed(candidate.row.variant for candidate in candidates) or "no variant"
        return f"none is known to fit; {names} may fit, and more rounds or measurements would decide."
    first, *others = sorted(inside, key=lambda candidate: -candidate.row.speed)
    more = f"; {listed(candidate.row.variant for candidate in others)} too" if others else ""
    return (
        f"none is known to fit before there are more rounds. As measured {_form(first)} does, {_rate(first.row)}"
        f"{_margins(first, opening=', ')}{more}."
    )


def _is_inside(candidate: Candidate) -> bool:
    return all(check.value is not None and check.limit.allows(check.value) for check in candidate.checks)


def _against_budget(candidate: Candidate) -> str:
    word = "fits" if candidate.fits else "does not fit" if candidate.breaks else "is not known to fit"
    return f"{_form(candidate)} {word}{_margins(candidate, opening=': ')}"


def _margins(candidate: Candidate, *, opening: str = "") -> str:
    return f"{opening}{', '.join(map(_margin, candidate.checks))}" if candidate.checks else ""


def _margin(check: LimitCheck) -> str:
    limit = check.limit
    if check.value is None:
        return f"{limit.metric} not measured"
    excess = limit.excess(check.value)
    side = ("above" if limit.is_upper else "below") if excess > 0 else ("below" if limit.is_upper else "above")
    close = {"close": ", too close to call", "untested": f", of fewer than {MIN_ROUNDS} rounds"}.get(check.fit, "")
    return f"{limit.metric} {limit.what.form(check.value)} ({percent(abs(excess), places=0)} {side} the limit{close})"


def _form(candidate: Candidate) -> str:
    return candidate.row.variant_text
