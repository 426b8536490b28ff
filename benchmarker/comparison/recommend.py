"""The fastest variant that keeps to a budget, and only where the statistics bear it out.

Of the variants that keep to every limit the fastest is named if it is really faster than each other one (the same t
test on per-round log ratios and Holm's correction as in the tables). Variants that are the same within the band are
told apart by their memory. Where a difference is inconclusive or was not tested, nothing is named.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from benchmarker.comparison.budget import Limit, parse_budget
from benchmarker.comparison.ranking import UNDECIDED, Ranking, ranking_of
from benchmarker.comparison.rows import CellKey, Results, Row, headline
from benchmarker.core.errors import ResultsError
from benchmarker.core.stats import Estimate, Ratio, Verdict

Fit = Literal["fits", "breaks", "close", "untested", "unknown"]
"""`close` is an interval with the limit inside, `untested` a time of too few rounds for an interval, and `unknown` a
metric that was not measured for this variant."""


@dataclass(frozen=True)
class Check:
    """Whether one variant keeps to one limit."""

    limit: Limit
    fit: Fit
    value: float | None


@dataclass(frozen=True)
class Candidate:
    """Whether one variant keeps to the whole budget."""

    row: Row
    checks: tuple[Check, ...]

    @property
    def fits(self) -> bool:
        return all(check.fit == "fits" for check in self.checks)

    @property
    def breaks(self) -> bool:
        """Whether the variant certainly breaks a limit."""
        return any(check.fit == "breaks" for check in self.checks)

    @property
    def excess(self) -> float | None:
        """The largest share by which a limit is broken; None where a value is not known."""
        if any(check.value is None for check in self.checks):
            return None
        return max((check.limit.excess(check.value) for check in self.checks if check.value is not None), default=None)


@dataclass(frozen=True)
class Rival:
    """Another variant that fits, against the chosen one."""

    candidate: Candidate
    ratio: Ratio
    """How many times as fast the chosen one is."""
    verdict: Verdict


@dataclass(frozen=True)
class Recommendation:
    """The answer to a budget."""

    budget: str
    cell: CellKey
    chosen: Candidate | None
    candidates: tuple[Candidate, ...]
    rivals: tuple[Rival, ...] = ()
    """Other candidates that fit, fastest first."""
    unmeasured: tuple[Limit, ...] = ()
    """Limits that no variant was measured for: the budget cannot be answered."""
    undecided: tuple[Rival, ...] = ()
    """Rivals whose difference from the fastest is not borne out; with any, nothing is chosen."""
    fastest: Candidate | None = None
    """The fastest of the candidates that fit."""
    ranking: Ranking | None = None
    """The ranking of all rows, led by one that fits. None where none fits."""

    @property
    def nearest(self) -> Candidate | None:
        """The candidate that breaks its limits by least."""
        excesses = [
            (candidate.excess, index) for index, candidate in enumerate(self.candidates) if candidate.excess is not None
        ]
        return self.candidates[min(excesses)[1]] if excesses else None


def recommend(results: Results, budget: str) -> Recommendation:
    """Choose among the variants in the cell that the first table shows.

    Raises:
        SpecError: The budget cannot be read.
        ResultsError: The records differ in device or model, or no variant that the budget allows was measured.
    """
    words = {name for row in results.rows for name in row.form}
    conditions, limits = parse_budget(budget, results.workload, forms=words)
    if results.differences:
        raise ResultsError(
            f"--budget: nothing is recommended from records that were compared by force; {results.differences[0]}"
        )
    cell = headline(results.rows)
    rows = [row for row in results.rows if row.cell == cell and row.status == "ok" and row.pace]
    rows = [row for row in rows if all(condition.allows(row.form) for condition in conditions)]
    if cell is None or not rows:
        raise ResultsError("--budget: no variant was measured that it allows, so that there is none to recommend")
    candidates = tuple(Candidate(row, tuple(_check(limit, row) for limit in limits)) for row in rows)
    unmeasured = tuple(
        limit
        for index, limit in enumerate(limits)
        if all(candidate.checks[index].fit == "unknown" for candidate in candidates)
    )
    if unmeasured:
        return Recommendation(budget, cell, None, candidates, unmeasured=unmeasured)
    return _choice(results, budget, cell, candidates)


def _choice(results: Results, budget: str, cell: CellKey, candidates: tuple[Candidate, ...]) -> Recommendation:
    by_name = {candidate.row.variant: candidate for candidate in candidates}
    ranking = ranking_of(results, among=lambda row: row.variant in by_name and by_name[row.variant].fits)
    if ranking.leader is None or ranking.fastest is None:
        return Recommendation(budget, cell, None, candidates)
    rivals = tuple(Rival(by_name[rival.row.variant], rival.ratio, rival.verdict) for rival in ranking.rivals)
    undecided = tuple(rival for rival in rivals if rival.verdict in UNDECIDED)
    return Recommendation(
        budget,
        cell,
        None if undecided else by_name[ranking.leader.variant],
        candidates,
        rivals,
        undecided=undecided,
        fastest=by_name[ranking.fastest.variant],
        ranking=ranking,
    )


def _check(limit: Limit, row: Row) -> Check:
    measured = limit.what.value_of(row)
    if measured is None:
        return Check(limit, "unknown", None)
    if not isinstance(measured, Estimate):
        return Check(limit, "fits" if limit.allows(measured) else "breaks", measured)
    if measured.low is None or measured.high is None:
        return Check(limit, "untested", measured.value)
    inside = [limit.allows(end) for end in (measured.low, measured.high)]
    fit: Fit = "fits" if all(inside) else "close" if any(inside) else "breaks"
    return Check(limit, fit, measured.value)
