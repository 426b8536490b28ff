"""Answer in at most three lines: the fastest variant with its gain, its costs, and the command that runs it.

A variant is called the fastest only if it is significantly faster than every other. Otherwise the answer lists the
significant differences and the command that measures more rounds. It contains only numbers that the table shows.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any

from benchmarker.comparison.ranking import UNDECIDED, Ranking, ranking_of
from benchmarker.comparison.recommend import Candidate, LimitCheck, Recommendation
from benchmarker.comparison.rows import Results, Row, cell_words, grouped, is_wide, listed, number_text
from benchmarker.core.formatting import approximate_duration, gib, percent, plural, times
from benchmarker.core.stats import MIN_ROUNDS, SAME_WITHIN, rounds_to_decide
from benchmarker.core.tables import Block, bold, bullets, code, plain_line, unmarked
from benchmarker.report.columns import contenders, may_lead, pace_text, with_verdict
from benchmarker.schema.record import DISTURBING, RunRecord
from benchmarker.schema.registry import workload_of


def answer(results: Results, ranking: Ranking) -> tuple[str, ...]:
    if results.sides:
        return _answer_of_sides(results, ranking)
    if ranking.fastest is None:
        return ("No variant has a number; the caveats give the reasons.",)
    where = f"At {cell_words(ranking.cell)}, " if len(results.measured_cells) > 1 else ""
    if (leader := ranking.leader) is None:
        return _undecided(results, ranking, ranking.fastest, where)
    name, rate = bold(plain_line(leader.label)), f"{_rate(leader)}{_gain(results, ranking, leader)}"
    of_calls = _of_calls(ranking)
    if not ranking.rivals:
        first = f"{name}: {rate}."
    elif ranking.same:
        others = listed(row.label for row in contenders(ranking)[1:])
        within = percent(SAME_WITHIN, places=0)
        first = f"{name} is best: {rate}; as fast as {others} within {within}, in least memory."
    else:
        second = ranking.rivals[0].row
        rate_of_second = "" if second.is_withheld else f", {_rate(second)}"
        following = "" if ranking.named is second else f"; next is {plain_line(second.label)}{rate_of_second}"
        first = f"{name} is fastest: {rate}{following}."
    doubt = " Other programs disturbed it: its times may be too long." if DISTURBING & {*leader.flags} else ""
    return (f"{where}{first}{of_calls}{doubt}", *_rest_of_answer(results, ranking, leader))


def _answer_of_sides(results: Results, ranking: Ranking) -> tuple[str, ...]:
    firsts = ((name, answer(side, ranking_of(side))) for name, side in results.sides.items())
    sentences = [f"{plain_line(name)}: {lines[0]}" for name, lines in firsts]
    first, *others = results.sides
    where = f", at {cell_words(ranking.cell)}" if len({row.cell for row in results.rows}) > 1 else ""
    for name in others:
        changes = [(row.name_in_sweep, row.change) for row in ranking.rows if row.sweep == name and row.change]
        words = (f"{plain_line(variant)} {with_verdict(change)}" for variant, change in changes)
        sentence = "; ".join(words) or f"no variant has a number in both; {code('--pool')} makes one table of all"
        sentences.append(f"From {plain_line(first)} to {plain_line(name)}{where}: {sentence}.")
    return tuple(sentences)


def _rest_of_answer(results: Results, ranking: Ranking, leader: Row) -> tuple[str, ...]:
    command = workload_of(results.workload).command(results.members[leader.variant])
    return tuple(filter(None, (_costs(leader, ranking.named), f"Run it: {code(command)}" if command else "")))


def _gain(results: Results, ranking: Ranking, leader: Row) -> str:
    noun = "baseline" if results.has_named_baseline else workload_of(leader.workload).baseline_noun
    gain = leader.against_named
    if ranking.named is None or gain is None:
        return f", the {noun} itself" if ranking.named is leader and len(ranking.measured) > 1 else ""
    reference = f"{plain_line(ranking.named.label)} ({noun if noun == 'baseline' else f'fastest {noun}'})"
    if gain.verdict in UNDECIDED:
        return f"; not separated from {reference}"
    return f", {gain.verdict} than {reference}" if is_wide(gain.ratio) else f", {gain.text} {reference}"


def _of_calls(ranking: Ranking) -> str:
    """Return ` A whole call of int8 is not faster than that of fp16.` if only the rate is; else an empty string."""
    if not (fastest := ranking.fastest) or not (rivals := ranking.slower_by_rate_only):
        return ""
    others = listed(rival.row.label for rival in rivals)
    return f" A whole call of {plain_line(fastest.label)} is not faster than that of {others}."


def _undecided(results: Results, ranking: Ranking, fastest: Row, where: str) -> tuple[str, ...]:
    slower = [rival.row.label for rival in ranking.rivals if rival.verdict == "faster"]
    of_calls = _of_calls(ranking)
    in_rate = f" in {fastest.ranking.heading}" if of_calls else ""
    known = f"{plain_line(fastest.label)} is faster than {listed(slower)}{in_rate}" if slower else ""
    claim = f"{may_lead(ranking)} may be the fastest"
    if ranking.undecided and (rounds := max(rival.ratio.rounds for rival in ranking.undecided)) < MIN_ROUNDS:
        rounds = max(rounds, 1)
        claim = f"{plain_line(fastest.label)} was the fastest in {plural(rounds, 'round', 'rounds')}"
    elif not ranking.undecided:
        known = f"{known}, but" if slower else plain_line(fastest.label)
        return f"{where}{known} has no number: {fastest.pace_spread}.{of_calls}", _to_decide(results, ranking)
    first = f"{where}{bold('not decided:' if where else 'Not decided:')} {claim}; {_doubt(ranking, fastest)}."
    decided = f"Known: {known}.{of_calls}" if slower else ""
    return tuple(filter(None, (first, decided, _to_decide(results, ranking))))


def _doubt(ranking: Ranking, fastest: Row) -> str:
    for row in (fastest, *(rival.row for rival in ranking.undecided[:1])):
        if row.is_withheld:
            return f"{plain_line(row.label)}: {row.pace_spread}"
    nearest = ranking.undecided[0]
    if nearest.ratio.rounds < MIN_ROUNDS:
        return f"fewer than {MIN_ROUNDS} rounds cannot rule out chance"
    compared = f"{plain_line(fastest.label)} relative to {plain_line(nearest.row.label)}"
    if is_wide(nearest.ratio):
        return f"{compared}: {number_text(nearest.ratio, times(nearest.ratio), nearest.outlier)}"
    return f"{compared}: {times(nearest.ratio).partition(' ')[2]} {nearest.verdict}"


def _to_decide(results: Results, ranking: Ranking) -> str:
    """Return `4 more rounds would decide, about 11 min: benchmarker sweep CONFIG --resume FOLDER --rounds 9`.

    Below three rounds the spread is unknown, and the text begins `At least 2 more rounds are needed`.
    """
    more = [rounds_to_decide(rival.ratio, tests=len(ranking.rivals)) for rival in ranking.undecided]
    rounds = max((count for count in more if count), default=0 if more else 1)
    if not rounds:
        return "More rounds would hardly decide."
    is_minimum = not more or any(rival.ratio.rounds < MIN_ROUNDS for rival in ranking.undecided)
    counted = f"{'at least ' if is_minimum else ''}{plural(rounds, 'more round', 'more rounds')}"
    effect = ("is needed" if rounds == 1 else "are needed") if is_minimum else "would decide"
    round_time_s = round_s(results.records)
    how_long = f", {approximate_duration(rounds * round_time_s)}" if round_time_s else ""
    total = rounds + finished_rounds(results.records)
    command = f"{results.resume or 'benchmarker sweep CONFIG'} --rounds {total}"
    return f"{counted[0].upper()}{counted[1:]} {effect}{how_long}: {code(command)}"


def _rate(row: Row) -> str:
    metric = row.ranking
    return f"{pace_text(row)} {metric.heading if metric.heading.endswith('/s') else metric.shown_unit}"


def _costs(row: Row, named: Row | None) -> str:
    quality = row.quality_text
    if row.peak_memory_bytes is None:
        return f"{quality[0].upper()}{quality[1:]}." if quality else ""
    size, instead, verb = gib(row.peak_memory_bytes), "", "Costs"
    if named and named is not row and named.peak_memory_bytes:
        named_size = gib(named.peak_memory_bytes)
        instead = f", like {plain_line(named.label)}" if size == named_size else f" instead of {named_size}"
        is_saving = size != named_size and row.peak_memory_bytes < named.peak_memory_bytes
        verb = "Saves memory:" if is_saving else verb
    return f"{verb} {'; '.join(filter(None, (f'{size}{instead}', quality)))}."


def finished_rounds(records: Sequence[RunRecord]) -> int:
    """Return the number of finished rounds; the last round does not count if a variant has no record of it."""
    last = max(record.round for record in records)
    of_last = {record.variant.name for record in records if record.round == last}
    return last + (of_last == {record.variant.name for record in records})


def round_s(records: Sequence[RunRecord]) -> float | None:
    """Return the duration of a round in s: the median time between two processes' starts, times the number of variants.

    The median ignores pauses, such as the one before a resumed sweep. None if no sweep has two processes.
    """
    starts = grouped(
        (record.sweep, datetime.fromisoformat(record.started_at).timestamp()) for record in records if record.sweep
    )
    spans = [later - earlier for times in starts.values() for earlier, later in pairwise(sorted(times))]
    variants = len({record.variant.name for record in records})
    return variants * statistics.median(spans) if spans else None


def recommendation_lines(results: Results, recommendation: Recommendation) -> tuple[str, ...]:
    chosen, ranking = recommendation.chosen, recommendation.ranking
    first = _recommendation_line(recommendation)
    if chosen:
        return (first, *_rest_of_answer(results, ranking, chosen.row))
    return (first, _to_decide(results, ranking)) if ranking.fastest else (first,)


def recommendation_blocks(recommendation: Recommendation) -> list[Block]:
    return [_recommendation_line(recommendation), bullets(budget_lines(recommendation))]


def _recommendation_line(recommendation: Recommendation) -> str:
    budget = code(plain_line(recommendation.budget))
    checks = recommendation.candidates[0].checks if recommendation.candidates else ()
    meanings = filter(None, dict.fromkeys(check.limit.what.meaning for check in checks))
    first = f"For the budget {budget}, at {cell_words(recommendation.ranking.cell)}: {_recommended(recommendation)}"
    return " ".join((f"{first}{_of_calls(recommendation.ranking)}", *meanings))


def budget_lines(recommendation: Recommendation) -> list[str]:
    lines = []
    for candidate in sorted(recommendation.candidates, key=lambda candidate: -candidate.row.speed):
        word = "fits" if candidate.fits else "does not fit" if candidate.breaks else "is not known to fit"
        lines.append(f"{candidate.row.variant_text} {word}{_margins(candidate, ': ')}")
    return lines


def recommendation_to_dict(recommendation: Recommendation) -> dict[str, Any]:
    """Return the recommendation for JSON. If nothing is recommended, `variant` is null and `why` gives the reason."""
    chosen = recommendation.chosen.row if recommendation.chosen else None
    nearest = recommendation.nearest if chosen is None else None
    has_engines = any("engine" in candidate.row.form for candidate in recommendation.candidates)
    return {
        "budget": recommendation.budget,
        "variant": chosen.variant if chosen else None,
        **({"engine": chosen.form["engine"] if chosen else None} if has_engines else {}),
        "why": unmarked(_recommended(recommendation)),
        "undecided": [] if chosen else [row.variant for row in contenders(recommendation.ranking)],
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
        return f"{chosen.row.variant_text}{_margins(chosen, ', ')}; {_why_chosen(recommendation)}."
    ranking = recommendation.ranking
    if ranking.fastest:
        verdict = ranking.undecided[0].verdict if ranking.undecided else pace_text(ranking.fastest)
        return f"not decided: {may_lead(ranking)} may be the fastest that fits: {verdict}."
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
        return f"none is known to fit; {names} may fit, and {_what_decides(unsure)} would decide."
    first, *others = sorted(inside, key=lambda candidate: -candidate.row.speed)
    too = f"; {_names(others)} too" if others else ""
    return (
        f"none is known to fit, and {_what_decides(inside)} would decide. As measured {first.row.variant_text} does"
        f"{_margins(first, ', ')}{too}."
    )


def _what_decides(candidates: Sequence[Candidate]) -> str:
    checks = [check for candidate in candidates for check in candidate.checks if check.fit not in ("fits", "breaks")]
    words = ("measuring it" if check.fit == "unknown" else check.limit.what.decides for check in checks)
    return " and ".join(dict.fromkeys(words)) or "more rounds"


def _why_chosen(recommendation: Recommendation) -> str:
    ranking = recommendation.ranking
    if not ranking.rivals:
        unsure = [candidate for candidate in recommendation.candidates if not candidate.fits and not candidate.breaks]
        return f"{_names(unsure)} may fit too" if unsure else "no other variant fits"
    if ranking.same:
        names = listed(row.variant for row in contenders(ranking)[1:])
        return f"it is as fast as {names} within the band, and needs least memory"
    second = ranking.rivals[0]
    comparison = f"{second.verdict} than" if is_wide(second.ratio) else f"{times(second.ratio)} as fast as"
    return f"{comparison} {plain_line(second.row.variant)}, the next that fits"


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
    number = "wide (" if check.is_wide else f"{limit.what.form(check.value)} ({percent(abs(excess), places=0)} "
    close = {"close": ", too close to call", "untested": f", of fewer than {MIN_ROUNDS} rounds"}.get(check.fit, "")
    return f"{limit.metric} {number}{side} the limit{close})"
