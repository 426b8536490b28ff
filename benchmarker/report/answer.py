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

from benchmarker.comparison.ranking import Ranking, Rival
from benchmarker.comparison.rows import Results, Row, cell_words, listed
from benchmarker.core.formatting import approximate_duration, decimal, gib, percent, plural, times
from benchmarker.core.stats import MIN_ROUNDS, SAME_WITHIN, rounds_to_tell
from benchmarker.core.tables import bold, code, escaped
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
    following = "" if ranking.named is second else f"; next is {escaped(second.label)}, {_rate(second)}"
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
    reference = f"{escaped(ranking.named.label)} ({title})"
    if leader.against_named.outlier:
        return f"; relative to {reference}, round {leader.against_named.outlier} is an outlier"
    return f", {times(leader.against_named.ratio)} {reference}"


def _behind(rival: Rival) -> str:
    if rival.outlier:
        return f"{escaped(rival.row.label)} may be as fast, round {rival.outlier} is an outlier"
    return f"{escaped(rival.row.label)} is {percent(1 - 1 / rival.ratio.value)} behind"


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
        instead = f", like {escaped(plain.label)}" if size == plain_size else f" instead of {plain_size}"
    parts = [f"{size}{instead}"] if row.peak_memory_bytes is not None else []
    quality = row.quality_text
    parts += [quality] if quality else []
    return f"Costs {'; '.join(parts)}." if parts else ""


def _name(row: Row) -> str:
    return bold(escaped(row.label))


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
