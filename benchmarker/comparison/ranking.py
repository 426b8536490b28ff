"""Variants of one cell in their order, each compared with a plain form, such as the unquantized model.

A variant is compared with the plain form in the same surroundings, such as the unquantized model in the same engine, so
that a ratio is one thing's effect; and with the fastest plain form there is, which is what a user would run otherwise.
A ratio whose interval spans more than a factor of two is no number: the round that stands apart is named.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarker.comparison.rows import CellKey, Results, Row, headline_rows
from benchmarker.core.stats import Ratio, Verdict, paired_ratio, unpaired_ratio, verdicts
from benchmarker.schema.record import Moment
from benchmarker.schema.registry import workload_of

UNDECIDED: tuple[Verdict, ...] = ("inconclusive", "not tested")
WIDEST = 2.0
"""Largest ratio of an interval's ends that is still a number."""


@dataclass(frozen=True)
class Against:
    """How a variant compares with another."""

    row: Row
    """The other variant's row."""
    ratio: Ratio
    """How many times as fast the variant is, by the metric that ranks."""
    verdict: Verdict
    """After Holm's correction over all comparisons of its kind in the cell."""
    odd_round: int | None = None
    """The round that stands apart, where the interval spans more than a factor of two."""


@dataclass(frozen=True)
class Ranked:
    """A variant with what it is compared with."""

    row: Row
    beside: Against | None
    """Against the plain form in the same surroundings, or the baseline that was asked for. None where there is none."""
    overall: Against | None
    """Against the fastest plain form. None where there is none, and for that form itself."""
    is_peer: bool
    """Whether other variants are compared with it."""


@dataclass(frozen=True)
class Ranking:
    """All variants of the cell that the first table shows."""

    cell: CellKey | None
    rows: tuple[Ranked, ...]
    """The best first; those without a number last."""
    plain: Row | None
    """The fastest plain form."""
    leader: Ranked | None = None
    """The fastest; of several that are the same within the band, the one that needs least memory."""
    fastest: Ranked | None = None
    """The fastest of the rows that may lead."""
    rivals: tuple[Against, ...] = ()
    """The other rows that may lead, fastest first, each with how many times as fast the fastest is."""

    @property
    def same(self) -> tuple[Against, ...]:
        """Others that are as fast as the fastest, within the band."""
        return tuple(rival for rival in self.rivals if rival.verdict == "same")

    @property
    def undecided(self) -> tuple[Against, ...]:
        """Others whose difference from the fastest is not borne out: with any, nothing is recommended."""
        return tuple(rival for rival in self.rivals if rival.verdict in UNDECIDED)

    @property
    def able(self) -> tuple[Ranked, ...]:
        """Rows that were measured."""
        return tuple(ranked for ranked in self.rows if ranked.row.pace)


def ranking_of(results: Results, *, among: Callable[[Row], bool] = lambda row: True) -> Ranking:
    """Rank the rows of the headline's cell.

    Args:
        among: Which rows may lead, such as those that keep to a budget.
    """
    rows = headline_rows(results.rows)
    able = sorted((row for row in rows if row.pace), key=lambda row: -row.speed)
    plain = next((row for row in able if workload_of(row.workload).is_plain(row)), None)
    peers = {row.variant: _peer(row, able, results.asked_baseline) for row in able}
    beside = _all_against(able, peers, results.circumstances)
    overall = _all_against(able, dict.fromkeys(peers, plain), results.circumstances)
    references = {peer.variant for peer in peers.values() if peer}
    failed = [Ranked(row, None, None, is_peer=False) for row in rows if not row.pace]
    ranked = [
        Ranked(row, beside.get(row.variant), overall.get(row.variant), is_peer=row.variant in references)
        for row in able
    ]
    cell = rows[0].cell if rows else None
    ranking = Ranking(cell, (*ranked, *failed), plain)
    return _led(ranking, [candidate for candidate in ranked if among(candidate.row)], results.circumstances)


def _peer(row: Row, able: Sequence[Row], baseline: str | None) -> Row | None:
    """The row that a row is compared with: the baseline that was asked for, or the plain form in its surroundings.

    It may be the row itself. None where there is no such row.
    """
    if baseline is not None:
        return next((candidate for candidate in able if candidate.variant == baseline), None)
    comparing = workload_of(row.workload)
    peers = [
        candidate
        for candidate in able
        if comparing.is_plain(candidate) and comparing.surroundings(candidate) == comparing.surroundings(row)
    ]
    return next((candidate for candidate in peers if candidate.is_baseline), peers[0] if peers else None)


def _all_against(
    rows: Sequence[Row], references: Mapping[str, Row | None], circumstances: Mapping[str, object]
) -> dict[str, Against]:
    """Each row against its reference, with the verdicts after Holm's correction over all of them.

    Args:
        references: By the row's variant; None where the row has none.
    """
    pairs = [
        (row, reference) for row in rows if (reference := references[row.variant]) and reference.variant != row.variant
    ]
    ratios = [ratio_of(reference, row, circumstances) for row, reference in pairs]
    return {
        row.variant: Against(reference, ratio, verdict, odd_round(reference, row) if is_wide(ratio) else None)
        for (row, reference), ratio, verdict in zip(pairs, ratios, verdicts(ratios), strict=True)
    }


def _led(ranking: Ranking, able: Sequence[Ranked], circumstances: Mapping[str, object]) -> Ranking:
    """The ranking with its leader and the leader's rivals.

    Args:
        able: Rows that may lead, fastest first.
    """
    if not able:
        return ranking
    fastest, *slower = able
    ratios = [ratio_of(ranked.row, fastest.row, circumstances) for ranked in slower]
    rivals = tuple(
        Against(
            ranked.row,
            ratio,
            _doubt(fastest, ranked) or verdict,
            odd_round(ranked.row, fastest.row) if is_wide(ratio) else None,
        )
        for ranked, ratio, verdict in zip(slower, ratios, verdicts(ratios), strict=True)
    )
    led = replace(ranking, leader=fastest, fastest=fastest, rivals=rivals)
    return led if led.undecided else replace(led, leader=_smallest(fastest, slower, led.same))


def _doubt(fastest: Ranked, rival: Ranked) -> Verdict | None:
    """The table's verdict on two rows where it leaves their difference open; None where it does not.

    The table corrects for all its rows, so that it may leave open what a test of these two alone decides. The answer
    says no more than the table.
    """
    pairs = [
        *(against for against in (fastest.beside, fastest.overall) if against and against.row is rival.row),
        *(against for against in (rival.beside, rival.overall) if against and against.row is fastest.row),
    ]
    return next((against.verdict for against in pairs if against.verdict in UNDECIDED), None)


def _smallest(fastest: Ranked, slower: Sequence[Ranked], same: Sequence[Against]) -> Ranked:
    """The row that needs least memory, of those that are as fast as the fastest."""
    as_fast = {against.row.variant for against in same}
    candidates = [fastest, *(ranked for ranked in slower if ranked.row.variant in as_fast)]
    sized = [ranked for ranked in candidates if ranked.row.peak_memory_bytes is not None]
    return min(sized, key=lambda ranked: ranked.row.peak_memory_bytes or 0, default=fastest)


def ratio_of(reference: Row, row: Row, circumstances: Mapping[str, object]) -> Ratio:
    """How many times as fast the row is as the reference, paired by rounds where both ran in the same circumstances.

    Rounds on two devices were not run in turns: nothing pairs them.
    """
    if circumstances.get(reference.variant) != circumstances.get(row.variant):
        return unpaired_ratio(list(reference.pace_by_round.values()), list(row.pace_by_round.values()))
    return paired_ratio(reference.pace_by_round, row.pace_by_round)


def is_wide(ratio: Ratio) -> bool:
    """Whether the interval spans more than a factor of two, and the ratio says nothing."""
    return ratio.low is not None and ratio.high is not None and ratio.high > WIDEST * ratio.low


def odd_round(reference: Row, row: Row) -> int:
    """The round, counted from 1, whose ratio is farthest from the middle one."""
    common = [moment for moment in reference.pace_by_round if moment in row.pace_by_round]
    if not common:
        return odd_process(row if _spread(row) >= _spread(reference) else reference)
    logs = {moment: math.log(reference.pace_by_round[moment] / row.pace_by_round[moment]) for moment in common}
    return _farthest(logs)


def odd_process(row: Row) -> int:
    """The round, counted from 1, in which the variant is farthest from its own middle."""
    return _farthest({moment: math.log(pace) for moment, pace in row.pace_by_round.items()})


def _farthest(logs: Mapping[Moment, float]) -> int:
    middle = statistics.median(logs.values())
    return 1 + max(logs, key=lambda moment: abs(logs[moment] - middle))[1]


def _spread(row: Row) -> float:
    return max(row.pace_by_round.values()) / min(row.pace_by_round.values())
