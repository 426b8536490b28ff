"""The answer in at most three lines: the variant, its gain with the interval, its costs, and the command that runs it.

A variant is called the fastest only if the statistics separate it from the next. Otherwise the answer states how many
rounds would decide.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any

from benchmarker.comparison.ranking import Ranking
from benchmarker.comparison.recommend import Candidate, LimitCheck, Recommendation
from benchmarker.comparison.rows import Results, Row, cell_words, listed
from benchmarker.core.formatting import approximate_duration, decimal, gib, percent, plural, times
from benchmarker.core.stats import MIN_ROUNDS, SAME_WITHIN, rounds_to_decide
from benchmarker.core.tables import Block, bold, bullets, code, plain_line, unmarked
from benchmarker.schema.record import RunRecord
from benchmarker.schema.registry import workload_of


def answer(results: Results, ranking: Ranking) -> tuple[str, ...]:
    """Return at most three sentences; none if nothing was measured."""
    leader = ranking.leader
    if leader is None:
        return ()
    where = f"At {cell_words(ranking.cell)}, " if len(results.measured_cells) > 1 else ""
    name, rate = bold(plain_line(leader.label)), f"{_rate(leader)}{_gain(results, ranking, leader)}"
    if not ranking.rivals:
        first = f"{name}: {rate}."
    elif ranking.undecided:
        first = f"{name} leads: {rate}."
    elif ranking.same:
        as_fast = (ranking.fastest, *(rival.row for rival in ranking.same))
        others = listed(row.label for row in as_fast if row and row is not leader)
        within = percent(SAME_WITHIN, places=0)
        first = f"{name} is best: {rate}; as fast as {others} within {within}, in least memory."
    else:
        second = ranking.rivals[0].row
        following = "" if ranking.named is second else f"; next is {plain_line(second.label)}, {_rate(second)}"
        first = f"{name} is fastest: {rate}{following}."
    return (f"{where}{first}", *_rest_of_answer(results, ranking))


def _rest_of_answer(results: Results, ranking: Ranking) -> tuple[str, ...]:
    if ranking.leader is None:
        return ()
    records = results.members.get(ranking.leader.variant, ())
    command = workload_of(results.workload).command(records) if records else ""
    middle = " ".join(filter(None, (_decides(results, ranking), _costs(ranking.leader, ranking.named))))
    return tuple(filter(None, (middle, f"Run it: {code(command)}" if command else "")))


def _gain(results: Results, ranking: Ranking, leader: Row) -> str:
    noun = "baseline" if results.has_named_baseline else workload_of(leader.workload).baseline_noun
    if ranking.named is None or leader.against_named is None:
        return f", the {noun} itself" if ranking.named is leader and len(ranking.measured) > 1 else ""
    reference = f"{plain_line(ranking.named.label)} ({noun if noun == 'baseline' else f'fastest {noun}'})"
    if leader.against_named.outlier:
        return f"; relative to {reference}, round {leader.against_named.outlier} is an outlier"
    return f", {times(leader.against_named.ratio)} {reference}"


def _decides(results: Results, ranking: Ranking) -> str:
    """Return `Not decided: int8 is 0.5 % behind; 2 more rounds would decide, about 4 min.`, or nothing.

    With fewer rounds than a test needs the spread is unknown, and the count is a minimum.
    """
    if not ranking.undecided:
        return ""
    nearest = ranking.undecided[0]
    behind = f"is {percent(1 - 1 / nearest.ratio.value)} behind"
    if nearest.outlier:
        behind = f"may be as fast, round {nearest.outlier} is an outlier"
    opening = f"Not decided: {plain_line(nearest.row.label)} {behind}"
    more = [rounds_to_decide(rival.ratio, tests=len(ranking.rivals)) for rival in ranking.undecided]
    rounds = max((count for count in more if count), default=0)
    if not rounds:
        return f"{opening}, and more rounds would hardly decide."
    is_minimum = any(rival.ratio.rounds < MIN_ROUNDS for rival in ranking.undecided)
    counted = f"{'at least ' if is_minimum else ''}{plural(rounds, 'more round', 'more rounds')}"
    round_time_s = round_s(results.records)
    how_long = f", {approximate_duration(rounds * round_time_s)}" if round_time_s else ""
    return f"{opening}; {counted} would decide{how_long}."


def _costs(row: Row, named: Row | None) -> str:
    size, instead = gib(row.peak_memory_bytes), ""
    if named and named is not row and named.peak_memory_bytes:
        named_size = gib(named.peak_memory_bytes)
        instead = f", like {plain_line(named.label)}" if size == named_size else f" instead of {named_size}"
    costs = [f"{size}{instead}" if row.peak_memory_bytes is not None else "", row.quality_text]
    return f"Costs {'; '.join(filter(None, costs))}." if any(costs) else ""


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
    return (_recommendation_line(recommendation), *_rest_of_answer(results, recommendation.ranking))


def recommendation_blocks(recommendation: Recommendation) -> list[Block]:
    return [_recommendation_line(recommendation), bullets(budget_lines(recommendation))]


def _recommendation_line(recommendation: Recommendation) -> str:
    budget = code(plain_line(recommendation.budget))
    checks = recommendation.candidates[0].checks if recommendation.candidates else ()
    meanings = filter(None, dict.fromkeys(check.limit.what.meaning for check in checks))
    first = f"For the budget {budget}, at {cell_words(recommendation.ranking.cell)}: {_recommended(recommendation)}"
    return " ".join((first, *meanings))


def budget_lines(recommendation: Recommendation) -> list[str]:
    lines = []
    for candidate in sorted(recommendation.candidates, key=lambda candidate: -candidate.row.speed):
        word = "fits" if candidate.fits else "does not fit" if candidate.breaks else "is not known to fit"
        lines.append(f"{candidate.row.variant_text} {word}{_margins(candidate, ': ')}")
    return lines


def recommendation_to_dict(recommendation: Recommendation) -> dict[str, Any]:
    """Return plain values. `variant` is null if nothing is recommended, and `why` contains the reason."""
    chosen = recommendation.chosen.row if recommendation.chosen else None
    nearest = recommendation.nearest if chosen is None else None
    has_engines = any("engine" in candidate.row.form for candidate in recommendation.candidates)
    return {
        "budget": recommendation.budget,
        "variant": chosen.variant if chosen else None,
        **({"engine": chosen.form["engine"] if chosen else None} if has_engines else {}),
        "why": unmarked(_recommended(recommendation)),
        "leading": recommendation.fastest.row.variant if recommendation.fastest else None,
        "nearest": nearest.row.variant if nearest else None,
        "fits": [candidate.row.variant for candidate in recommendation.candidates if candidate.fits],
        "not_measured": [limit.metric for limit in recommendation.unmeasured],
    }


def _recommended(recommendation: Recommendation) -> str:
    if recommendation.unmeasured:
        reasons = "; ".join(f"{limit.metric} was not measured: {limit.what.how}" for limit in recommendation.unmeasured)
        return f"it cannot be answered; {reasons}."
    if recommendation.chosen:
        chosen = recommendation.chosen
        return f"{chosen.row.variant_text}{_margins(chosen, ', ')}; {_why_chosen(recommendation, chosen)}."
    fastest, undecided = recommendation.fastest, recommendation.ranking.undecided
    if undecided and fastest:
        second = undecided[0].row
        more = f" and {len(undecided) - 1} more that fit" if len(undecided) > 1 else ""
        return (
            f"{fastest.row.variant_text} leads, not decided: {_rate(fastest.row)}{_margins(fastest, ', ')}; "
            f"{plain_line(second.variant)}, {_rate(second)}{more}: {undecided[0].verdict}."
        )
    nearest = recommendation.nearest
    unsure = [candidate for candidate in recommendation.candidates if not candidate.breaks]
    if not unsure and nearest:
        return f"none fits; the nearest is {nearest.row.variant_text}: {_margins(nearest)}."
    inside = [
        candidate
        for candidate in unsure
        if all(check.value is not None and check.limit.allows(check.value) for check in candidate.checks)
    ]
    if not inside:
        names = _names(unsure) if unsure else "no variant"
        return f"none is known to fit; {names} may fit, and more rounds or measurements would decide."
    first, *others = sorted(inside, key=lambda candidate: -candidate.row.speed)
    too = f"; {_names(others)} too" if others else ""
    return (
        f"none is known to fit before there are more rounds. As measured {first.row.variant_text} does, "
        f"{_rate(first.row)}{_margins(first, ', ')}{too}."
    )


def _why_chosen(recommendation: Recommendation, chosen: Candidate) -> str:
    ranking = recommendation.ranking
    if not ranking.rivals:
        unsure = [candidate for candidate in recommendation.candidates if not candidate.fits and not candidate.breaks]
        return f"{_names(unsure)} may fit too" if unsure else "no other variant fits"
    if ranking.same and ranking.fastest:
        as_fast = [ranking.fastest, *(rival.row for rival in ranking.same)]
        names = listed(row.variant for row in as_fast if row is not chosen.row)
        return f"it is as fast as {names} within the band, and needs least memory"
    second = ranking.rivals[0]
    return f"{times(second.ratio)} as fast as {plain_line(second.row.variant)}, the next that fits"


def _names(candidates: Iterable[Candidate]) -> str:
    return listed(candidate.row.variant for candidate in candidates)


def _margins(candidate: Candidate, opening: str = "") -> str:
    return f"{opening}{', '.join(map(_margin, candidate.checks))}" if candidate.checks else ""


def _margin(check: LimitCheck) -> str:
    limit = check.limit
    if check.value is None:
        return f"{limit.metric} not measured"
    excess = limit.excess(check.value)
    side = "above" if (excess > 0) == limit.is_upper else "below"
    close = {"close": ", too close to call", "untested": f", of fewer than {MIN_ROUNDS} rounds"}.get(check.fit, "")
    return f"{limit.metric} {limit.what.form(check.value)} ({percent(abs(excess), places=0)} {side} the limit{close})"
