"""Ranking of the variants in one cell, with tests whether the fastest is significantly faster than the others."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarker.comparison.rows import CellKey, Results, Row, RowT, headline_rows
from benchmarker.comparison.speed_up import outlier_of, rate_ratio
from benchmarker.core.stats import SAME_WITHIN, Ratio, Verdict, verdicts

UNDECIDED: tuple[Verdict, ...] = ("inconclusive", "not tested")


@dataclass(frozen=True)
class Rival:
    row: Row
    ratio: Ratio  # Rate of the fastest row divided by the rival's rate.
    verdict: Verdict  # After Holm's correction over all rivals.
    call: Verdict  # Verdict on the latencies of whole calls.
    outlier: int | None


@dataclass(frozen=True)
class Ranking:
    cell: CellKey | None
    rows: tuple[Row, ...]
    named: Row | None  # The row of `Results.named`, with which the answer compares the leader.
    leader: Row | None = None
    """The fastest row; among rows that are the same within 2 %, the row with the smallest peak memory. None if a rival
    may be faster, or if the fastest row's interval is too wide for a number."""
    fastest: Row | None = None  # The row with the highest rate, even if the difference is not significant.
    rivals: tuple[Rival, ...] = ()

    @property
    def same(self) -> tuple[Rival, ...]:
        return tuple(rival for rival in self.rivals if rival.verdict == "same")

    @property
    def undecided(self) -> tuple[Rival, ...]:
        """Rivals whose difference from the fastest row is not significant. If there is any, `leader` is None."""
        return tuple(rival for rival in self.rivals if rival.verdict in UNDECIDED)

    @property
    def slower_by_rate_only(self) -> tuple[Rival, ...]:
        """Rivals with a lower rate, but whole calls that are known to be no slower."""
        return tuple(each for each in self.rivals if each.verdict == "faster" and each.call in ("same", "slower"))

    @property
    def measured(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.pace)


def ranking_of(results: Results, *, among: Callable[[Row], bool] = lambda row: True) -> Ranking:
    """Rank the rows of the cell `headline(results.rows)`; `among` returns True for rows that may be the leader.

    If `results` keeps sweeps apart, the rows are grouped by variant, and there is no leader.
    """
    rows = headline_rows(results.rows)
    if results.sides:
        sweeps = list(results.sides)
        best = {row.name_in_sweep: row.speed for row in sorted(rows, key=lambda row: row.speed)}
        rows.sort(key=lambda row: (-best[row.name_in_sweep], row.name_in_sweep, sweeps.index(row.sweep)))
        return Ranking(rows[0].cell, tuple(rows), None)
    measured = sorted((row for row in rows if row.pace), key=lambda row: -row.speed)
    ordered = (*measured, *(row for row in rows if not row.pace))
    cell = rows[0].cell
    named = next((row for row in measured if row.variant == results.named), None)
    candidates = [row for row in measured if among(row)]
    if not candidates:
        return Ranking(cell, ordered, named)
    fastest, *slower = candidates
    # `rate_ratio` is None for rows ranked by two metrics: they have an order but no testable ratio.
    ratios = [
        rate_ratio(row, fastest, results.circumstances) or Ratio(fastest.speed / row.speed, rounds=0) for row in slower
    ]
    calls = [rate_ratio(row, fastest, results.circumstances, of_call=True) or Ratio(1.0, rounds=0) for row in slower]
    rivals = tuple(
        Rival(row, ratio, _open_verdict(fastest, row) or verdict, call, outlier_of(row, fastest, ratio))
        for row, ratio, verdict, call in zip(slower, ratios, verdicts(ratios), verdicts(calls), strict=True)
    )
    leader = None
    if not fastest.is_withheld and not any(rival.verdict in UNDECIDED for rival in rivals):
        as_fast = [fastest, *(rival.row for rival in rivals if rival.verdict == "same")]
        sized = [row for row in as_fast if row.peak_memory_bytes is not None]
        leader = min(sized, key=lambda row: row.peak_memory_bytes or 0, default=fastest)
    return Ranking(cell, ordered, named, leader, fastest, rivals)


def _open_verdict(fastest: Row, rival: Row) -> Verdict | None:
    # The table corrects for all its rows and may leave open a difference that a test of two rows alone decides. The
    # answer claims no more than the table.
    verdicts_of_table = (
        speed_up.verdict
        for row, reference in ((fastest, rival), (rival, fastest))
        for speed_up in (row.speed_up, row.against_named)
        if speed_up and speed_up.reference == reference.variant
    )
    return next((verdict for verdict in verdicts_of_table if verdict in UNDECIDED), None)


def front(rows: Sequence[RowT]) -> list[RowT]:
    """Return the rows of one cell on the Pareto front of speed, peak memory and loss, such as KL divergence.

    Rows without a measured speed and peak memory are left out. Values within 2 % of each other are equal, so that a
    tiny saving of memory does not justify a slow variant. The loss, which is zero for the baseline, counts if every row
    has it. Intervals are not considered.
    """
    able = [row for row in rows if row.pace and row.peak_memory_bytes is not None]
    losses = [0.0 if row.is_baseline else row.loss for row in able]
    times = _levels([1 / row.speed for row in able])
    peaks = _levels([float(row.peak_memory_bytes or 0) for row in able])
    divergences = [loss or 0.0 for loss in losses] if None not in losses else [0.0] * len(able)
    costs = list(zip(times, peaks, divergences, strict=True))

    def is_beaten(cost: tuple[float, ...]) -> bool:
        return any(rival != cost and all(map(operator.le, rival, cost)) for rival in costs)

    return [row for row, cost in zip(able, costs, strict=True) if not is_beaten(cost)]


def _levels(values: Sequence[float]) -> list[int]:
    bests: list[float] = []
    for value in sorted(values):
        if not bests or value > bests[-1] * (1 + SAME_WITHIN):
            bests.append(value)
    return [sum(best <= value for best in bests) for value in values]
