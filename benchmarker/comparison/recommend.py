"""The fastest variant that keeps to a budget, and only where the statistics bear it out.

Of the variants that keep to every limit the fastest is named if it is really faster than each other one (the same t
test on per-round log ratios and Holm's correction as in the tables). Variants that are the same within the band are
told apart by their memory. Where a difference is inconclusive or was not tested, nothing is named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from benchmarker.comparison.budget import Limit, parse_budget
from benchmarker.comparison.rows import CellKey, Results, Row, headline
from benchmarker.core.errors import ResultsError
from benchmarker.core.stats import Estimate, Ratio, Verdict, against_each

Fit = Literal["fits", "breaks", "close", "untested", "unknown"]
"""`close` is an interval with the limit inside, `untested` a time of too few rounds for an interval, and `unknown` a
metric that was not measured for this variant."""
UNDECIDED: tuple[Verdict, ...] = ("inconclusive", "not tested")


@dataclass(frozen=True)
class Check:
    """One limit and one variant."""

    limit: Limit
    fit: Fit
    value: float | None


@dataclass(frozen=True)
class Candidate:
    """One variant against the whole budget."""

    row: Row
    checks: tuple[Check, ...]

    @property
    def fits(self) -> bool:
        return all(check.fit == "fits" for check in self.checks)

    @property
    def breaks(self) -> bool:
        """Whether it is known not to fit."""
        return any(check.fit == "breaks" for check in self.checks)

    @property
    def excess(self) -> float | None:
        """The largest share by which a limit is broken; None where a value is not known."""
        if any(check.value is None for check in self.checks):
            return None
        return max(check.limit.excess(check.value) for check in self.checks if check.value is not None)


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
    """Others that fit, fastest first."""
    unmeasured: tuple[Limit, ...] = ()
    """Limits that no variant was measured for: the budget cannot be answered."""
    undecided: tuple[Rival, ...] = ()
    """Rivals whose difference from the fastest is not borne out; with any, nothing is chosen."""
    fastest: Candidate | None = None
    """Of those that fit."""

    @property
    def nearest(self) -> Candidate | None:
        """The candidate that breaks its limits by least."""
        known = [(one.excess, index) for index, one in enumerate(self.candidates) if one.excess is not None]
        return self.candidates[min(known)[1]] if known else None


def recommend(results: Results, budget: str) -> Recommendation:
    """Choose among the variants in the cell that the first table shows.

    Raises:
        SpecError: The budget cannot be read.
        ResultsError: The records differ in device or model, or none was measured.
    """
    limits = parse_budget(budget, results.workload)
    if results.differences:
        raise ResultsError(
            f"--budget: nothing is recommended from records that were compared by force; {results.differences[0]}"
        )
    cell = headline(results.rows)
    rows = [row for row in results.rows if row.cell == cell and row.status == "ok" and row.rate]
    if cell is None or not rows:
        raise ResultsError("--budget: no variant was measured, so that there is none to recommend")
    candidates = tuple(Candidate(row, tuple(_check(limit, row) for limit in limits)) for row in rows)
    unmeasured = tuple(
        limit for index, limit in enumerate(limits) if all(one.checks[index].fit == "unknown" for one in candidates)
    )
    if unmeasured:
        return Recommendation(budget, cell, None, candidates, unmeasured=unmeasured)
    return _choice(budget, cell, candidates)


def _choice(budget: str, cell: CellKey, candidates: tuple[Candidate, ...]) -> Recommendation:
    fitting = sorted((one for one in candidates if one.fits), key=_rate, reverse=True)
    if not fitting:
        return Recommendation(budget, cell, None, candidates)
    fastest, others = fitting[0], fitting[1:]
    rivals = _rivals(fastest, others)
    undecided = tuple(one for one in rivals if one.verdict in UNDECIDED)
    chosen = None if undecided else _smallest(fastest, [one.candidate for one in rivals if one.verdict == "same"])
    return Recommendation(budget, cell, chosen, candidates, rivals, undecided=undecided, fastest=fastest)


def _rivals(fastest: Candidate, others: Sequence[Candidate]) -> tuple[Rival, ...]:
    """Each other one against the fastest, corrected for all of them.

    The table above corrects for all its rows, and may be less sure of the same difference: then so is the answer.
    """
    found = against_each(fastest.row.latency_by_round, [one.row.latency_by_round for one in others])
    return tuple(
        Rival(one, ratio, _doubt(fastest.row, one.row) or verdict)
        for one, (ratio, verdict) in zip(others, found, strict=True)
    )


def _doubt(one: Row, other: Row) -> Verdict | None:
    """That the table is not sure of the difference between these two; None where it is, or does not say."""
    said = one.verdict if other.is_baseline else other.verdict if one.is_baseline else None
    return next((word for word in UNDECIDED if word == said), None)


def _smallest(fastest: Candidate, same: Sequence[Candidate]) -> Candidate:
    """Of those that are as fast as each other the one that needs least memory."""
    known = [one for one in (fastest, *same) if one.row.peak_memory_bytes is not None]
    return min(known, key=lambda one: one.row.peak_memory_bytes or 0, default=fastest)


def _rate(candidate: Candidate) -> float:
    return candidate.row.speed


def _check(limit: Limit, row: Row) -> Check:
    measured = limit.what.of(row)
    if measured is None:
        return Check(limit, "unknown", None)
    if not isinstance(measured, Estimate):
        return Check(limit, "fits" if limit.allows(measured) else "breaks", measured)
    if measured.low is None or measured.high is None:
        return Check(limit, "untested", measured.value)
    inside = [limit.allows(end) for end in (measured.low, measured.high)]
    fit: Fit = "fits" if all(inside) else "close" if any(inside) else "breaks"
    return Check(limit, fit, measured.value)
