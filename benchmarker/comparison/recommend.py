"""Budgets such as `memory<6GiB, kld<0.05`, and the fastest variant within one.

A variant is recommended only if it is significantly faster than every other variant within the budget, by the t test
and Holm's correction of the tables. Among variants that are the same within the band, the one with the least memory is
chosen. If a difference is inconclusive or was not tested, no variant is recommended.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from benchmarker.comparison.ranking import UNDECIDED, Ranking, ranking_of
from benchmarker.comparison.rows import PLAIN, SECONDS, SIZES, CellKey, Limitable, Results, Row, headline
from benchmarker.core.errors import ResultsError, SpecError, did_you_mean
from benchmarker.core.formatting import decimal, gib, seconds
from benchmarker.core.stats import Estimate, Ratio, Verdict
from benchmarker.core.tables import code
from benchmarker.schema.registry import DEFAULT_WORKLOAD, Metric, workload_of

Fit = Literal["fits", "breaks", "close", "untested", "unknown"]
"""`close`: the interval contains the limit. `untested`: too few rounds for an interval. `unknown`: not measured for
this variant."""


@dataclass(frozen=True)
class Check:
    """One variant against one limit."""

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
        """True if the variant certainly breaks a limit."""
        return any(check.fit == "breaks" for check in self.checks)

    @property
    def excess(self) -> float | None:
        """Largest share by which a limit is broken; None if a value is missing."""
        if any(check.value is None for check in self.checks):
            return None
        return max((check.limit.excess(check.value) for check in self.checks if check.value is not None), default=None)


@dataclass(frozen=True)
class BudgetRival:
    """Another variant within the budget, compared with the chosen one."""

    candidate: Candidate
    ratio: Ratio
    """Rate of the chosen variant divided by the rival's."""
    verdict: Verdict


@dataclass(frozen=True)
class Recommendation:
    """The answer to a budget."""

    budget: str
    cell: CellKey
    chosen: Candidate | None
    candidates: tuple[Candidate, ...]
    rivals: tuple[BudgetRival, ...] = ()
    """Other candidates within the budget, the fastest first."""
    unmeasured: tuple[Limit, ...] = ()
    """Limits that were measured for no variant. With any, the budget has no answer."""
    undecided: tuple[BudgetRival, ...] = ()
    """Rivals whose difference from the fastest is not significant. With any, no variant is chosen."""
    fastest: Candidate | None = None
    """Fastest candidate within the budget."""
    ranking: Ranking | None = None
    """Ranking of all rows, led by a candidate within the budget; None if there is none."""

    @property
    def nearest(self) -> Candidate | None:
        """Candidate that breaks its limits by the smallest share."""
        excesses = [
            (candidate.excess, index) for index, candidate in enumerate(self.candidates) if candidate.excess is not None
        ]
        return self.candidates[min(excesses)[1]] if excesses else None


def recommend(results: Results, budget: str) -> Recommendation:
    """Choose a variant in the first table's cell.

    Raises:
        SpecError: An unreadable budget.
        ResultsError: Records of different devices or models, or no measured variant that the budget allows.
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
    rivals = tuple(BudgetRival(by_name[rival.row.variant], rival.ratio, rival.verdict) for rival in ranking.rivals)
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


_USUAL = ((SIZES, "size", "GiB"), (SECONDS, "time", "ms"))
"""Quantities that need a unit, with the unit of the tables."""
_LIMIT = re.compile(r"\s*([\w/-]+)\s*(<=|>=|<|>)\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*([a-z%/]*)\s*", re.IGNORECASE)


_CONDITION = re.compile(r"\s*(\w+)\s*(!=|==?)\s*([\w.-]+)\s*")
_TIMING = f"{code('benchmarker run')} measures it"
_UNITS: dict[str, dict[str, float]] = {"s": SECONDS, "B": SIZES, "": PLAIN}
_FORMS: dict[str, Callable[[float], str]] = {"s": seconds, "B": gib}


def limitable(workload: str) -> dict[str, Limitable]:
    """Return the quantities that a budget can limit: memory, every declared metric, and those of the workload."""
    return {
        "memory": Limitable(lambda row: row.peak_memory_bytes, SIZES, gib, _TIMING),
        **{metric.name: _metric(metric) for metric in workload_of(workload).metrics},
        **workload_of(workload).limitable(),
    }


def _metric(metric: Metric) -> Limitable:
    units = _UNITS.get(metric.unit, {"": 1 / metric.scale, metric.shown_unit.lower(): 1 / metric.scale})
    form = _FORMS.get(metric.unit) or (lambda value: decimal(value * metric.scale))
    if metric.of_cell:
        return Limitable(lambda row: row.facts.get(metric.name), units, form, _TIMING)
    return Limitable(lambda row: row.metrics.get(metric.name), units, form, _TIMING)


@dataclass(frozen=True)
class Limit:
    """One numeric condition."""

    text: str
    metric: str
    is_upper: bool
    """True for an upper limit, False for a lower one."""
    value: float
    """Value in base units."""
    is_inclusive: bool
    what: Limitable

    def allows(self, value: float) -> bool:
        """Return whether a value is within the limit."""
        if value == self.value:
            return self.is_inclusive
        return (value < self.value) == self.is_upper

    def excess(self, value: float) -> float:
        """Return by how much a value breaks the limit, as a share of it; negative within the limit."""
        over = (value - self.value) / self.value if self.value else value
        return over if self.is_upper else -over

    def shown(self, value: float) -> str:
        return self.what.form(value)


@dataclass(frozen=True)
class Condition:
    """A required or excluded value of a variant's form."""

    name: str
    """Field of the form: `engine`."""
    word: str
    is_equal: bool

    def allows(self, form: Mapping[str, str]) -> bool:
        return (form.get(self.name) == self.word) == self.is_equal


def parse_budget(
    text: str, workload: str = DEFAULT_WORKLOAD, *, forms: Collection[str] = ()
) -> tuple[tuple[Condition, ...], tuple[Limit, ...]]:
    """Parse conditions separated by commas: `memory<6GiB, engine!=vllm`.

    Args:
        forms: Fields of a variant's form.

    Raises:
        SpecError: An unreadable condition, or an unknown quantity.
    """
    words = limitable(workload)
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise SpecError(f"--budget '{text}': write conditions, as in --budget 'memory<6GiB, kld<0.05'")
    chosen = {part: match for part in parts if (match := _CONDITION.fullmatch(part))}
    conditions = tuple(_condition(part, match, forms) for part, match in chosen.items())
    return conditions, tuple(_limit(part, words) for part in parts if part not in chosen)


def _condition(part: str, match: re.Match[str], forms: Collection[str]) -> Condition:
    name = match[1].lower()
    if name not in forms:
        raise SpecError(f"--budget '{part}': variants differ in {', '.join(forms)}, not '{match[1]}'")
    return Condition(name, match[3], match[2] != "!=")


def _limit(part: str, words: dict[str, Limitable]) -> Limit:
    match = _LIMIT.fullmatch(part)
    if not match:
        raise SpecError(
            f"--budget '{part.strip()}': write it as memory<6GiB: a quantity, < or >, a number and its unit"
        )
    name, sign, number, unit = match[1].lower(), match[2], float(match[3]), match[4].lower()
    if name not in words:
        raise SpecError(f"--budget '{part.strip()}': '{name}' cannot be limited{did_you_mean(name, words)}")
    units = words[name].units
    if not unit:
        for of_this_kind, what, usual in _USUAL:
            if units == of_this_kind:
                raise SpecError(
                    f"--budget '{part.strip()}': a {what} needs its unit; write {name}{sign}{match[3]}{usual}"
                )
    if unit not in units:
        spellings = ", ".join(filter(None, units)) or "no unit"
        raise SpecError(f"--budget '{part.strip()}': {name} is in {spellings}, not '{match[4]}'")
    # 95 * 0.01 is not 0.95.
    return Limit(part.strip(), name, sign[0] == "<", round(number * units[unit], 12), len(sign) == 2, words[name])
