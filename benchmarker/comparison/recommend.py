"""Budgets such as `memory<6GiB, kld<0.05`, and the fastest variant within a budget.

A variant is recommended only if it is significantly faster than every other variant within the budget, by the t test
and Holm's correction of the tables. Among variants that are the same within the band, the one with the least memory is
chosen. If a difference is inconclusive or was not tested, no variant is recommended.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from benchmarker.comparison.ranking import Ranking, ranking_of
from benchmarker.comparison.rows import SECONDS, SIZES, UNITLESS, Limitable, Results, Row, headline_rows, is_wide
from benchmarker.core.errors import ResultsError, SpecError, did_you_mean
from benchmarker.core.formatting import decimal, gib, seconds
from benchmarker.core.stats import Estimate
from benchmarker.core.tables import code
from benchmarker.schema.registry import Metric, workload_of

Fit = Literal["fits", "breaks", "close", "untested", "unknown"]
"""`close`: the interval contains the limit. `untested`: too few rounds for an interval. `unknown`: not measured for
this variant."""

Condition = tuple[str, str, bool]
"""Setting of a variant, its value, and whether it must be equal: `engine=vllm`, or `engine!=vllm`."""

QUANTITIES = ((SIZES, "size", "GiB"), (SECONDS, "time", "ms"))
LIMIT = re.compile(r"\s*([\w/ -]+?)\s*(<=|>=|<|>)\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*([a-z%/]*)\s*", re.IGNORECASE)
SYNONYMS = {
    **{"peak": "memory", "vram": "memory", "kl": "kld", "kl divergence": "kld", "ppl": "perplexity"},
    "speed": "decode",
}
"""Names of quantities by the synonyms that a budget may use."""
CONDITION = re.compile(r"\s*(\w+)\s*(!=|==?)\s*([\w.-]+)\s*")
TIMING = f"{code('benchmarker run')} measures it"
UNITS: dict[str, dict[str, float]] = {"s": SECONDS, "B": SIZES, "": UNITLESS}
FORMATS: dict[str, Callable[[float], str]] = {"s": seconds, "B": gib}


@dataclass(frozen=True)
class Limit:
    metric: str
    is_upper: bool
    value: float
    is_inclusive: bool
    what: Limitable

    def allows(self, value: float) -> bool:
        return self.is_inclusive if value == self.value else (value < self.value) == self.is_upper

    def excess(self, value: float) -> float:
        """Return the excess over the limit, divided by the limit; negative if the value is within the limit."""
        over = (value - self.value) / self.value if self.value else value
        return over if self.is_upper else -over

    def check(self, row: Row) -> LimitCheck:
        measured = self.what.value_of(row)
        if measured is None:
            return LimitCheck(self, "unknown", None)
        if not isinstance(measured, Estimate):
            return LimitCheck(self, "fits" if self.allows(measured) else "breaks", measured)
        if measured.low is None or measured.high is None:
            return LimitCheck(self, "untested", measured.value)
        inside = [self.allows(end) for end in (measured.low, measured.high)]
        fit: Fit = "fits" if all(inside) else "close" if any(inside) else "breaks"
        return LimitCheck(self, fit, measured.value, is_wide(row.metrics.get(self.metric)))


@dataclass(frozen=True)
class LimitCheck:
    limit: Limit
    fit: Fit
    value: float | None
    is_wide: bool = False  # True if the tables print no number, because the interval is too wide.


@dataclass(frozen=True)
class Candidate:
    row: Row
    checks: tuple[LimitCheck, ...]

    @property
    def fits(self) -> bool:
        return all(check.fit == "fits" for check in self.checks)

    @property
    def breaks(self) -> bool:
        return any(check.fit == "breaks" for check in self.checks)

    @property
    def excess(self) -> float | None:
        """Largest of `Limit.excess` over all limits; None if a value is missing."""
        shares = [check.limit.excess(check.value) for check in self.checks if check.value is not None]
        return max(shares, default=None) if len(shares) == len(self.checks) else None


@dataclass(frozen=True)
class Recommendation:
    budget: str
    candidates: tuple[Candidate, ...]
    unmeasured: tuple[Limit, ...]  # Limits on a quantity that no variant has. If there is any, nothing is chosen.
    ranking: Ranking  # Ranking of all rows. Only a candidate within the budget can be its leader.

    @property
    def chosen(self) -> Candidate | None:
        """Recommended candidate; None if a rival may be faster."""
        return next((candidate for candidate in self.candidates if candidate.row is self.ranking.leader), None)

    @property
    def nearest(self) -> Candidate | None:
        """Candidate with the smallest excess over its limits; None if every candidate lacks a limited value."""
        excesses = [(candidate.excess, candidate) for candidate in self.candidates if candidate.excess is not None]
        return min(excesses, key=lambda pair: pair[0])[1] if excesses else None


def recommend(results: Results, budget: str) -> Recommendation:
    """Find the fastest variant within a budget, in the cell `headline(results.rows)`.

    Raises:
        SpecError: The budget cannot be read.
        ResultsError: The records differ, or no measured variant meets the conditions.
    """
    conditions, limits = parse_budget(
        budget,
        results.workload,
        forms={name: {row.form.get(name, "") for row in results.rows} for row in results.rows for name in row.form},
    )
    if results.sides:
        raise SpecError("--budget recommends within one sweep; give one folder, or --pool for one table of all")
    if results.differences:
        raise ResultsError(
            f"--budget: nothing is recommended from records that were compared by force; {results.differences[0]}"
        )
    candidates = tuple(
        Candidate(row, tuple(limit.check(row) for limit in limits))
        for row in headline_rows(results.rows)
        if row.cell and row.status == "ok" and row.pace
        if all((row.form.get(name) == word) == is_equal for name, word, is_equal in conditions)
    )
    if not candidates:
        raise ResultsError("--budget: no variant was measured that it allows, so that there is none to recommend")
    unmeasured = tuple(
        limit
        for index, limit in enumerate(limits)
        if all(candidate.checks[index].fit == "unknown" for candidate in candidates)
    )
    fitting = [id(candidate.row) for candidate in candidates if candidate.fits and not unmeasured]
    return Recommendation(budget, candidates, unmeasured, ranking_of(results, among=lambda row: id(row) in fitting))


def limitable(workload: str) -> dict[str, Limitable]:
    metrics = workload_of(workload).metrics
    return {
        "memory": Limitable(lambda row: row.peak_memory_bytes, SIZES, gib, TIMING),
        # "peak" is the memory in the table; an operation's metric of that name is the peak of one call.
        **{f"call {metric.name}" if metric.name in SYNONYMS else metric.name: _metric(metric) for metric in metrics},
        **workload_of(workload).limitable(),
    }


def _metric(metric: Metric) -> Limitable:
    units = UNITS.get(metric.unit, {"": 1 / metric.scale, metric.shown_unit.lower(): 1 / metric.scale})
    form = FORMATS.get(metric.unit) or (lambda value: decimal(value * metric.scale))
    return Limitable(lambda row: {**row.facts, **row.metrics}.get(metric.name), units, form, TIMING)


def parse_budget(
    text: str, workload: str, *, forms: Mapping[str, Collection[str]]
) -> tuple[tuple[Condition, ...], tuple[Limit, ...]]:
    """Parse conditions separated by commas, semicolons or "and": `memory<6GiB, engine!=vllm`. Raises SpecError.

    Args:
        forms: Settings of the compared variants: `{"engine": ["native", "vllm"]}`.
    """
    quantities = limitable(workload)
    parts = [part.strip() for part in re.split(r"[,;]|\band\b", text) if part.strip()]
    if not parts:
        raise SpecError(f"--budget '{text}': write conditions, as in --budget 'memory<6GiB, kld<0.05'")
    conditions, limits = [], []
    for part in parts:
        match = CONDITION.fullmatch(part)
        if match is None:
            limits.append(_limit(part, quantities))
        elif (words := forms.get(match[1].lower())) is not None:
            if match[3] not in words and match[2] != "!=":
                near = did_you_mean(match[3], words)
                raise SpecError(f"--budget '{part}': no variant has {match[1]} '{match[3]}'{near}")
            conditions.append((match[1].lower(), match[3], match[2] != "!="))
        else:
            raise SpecError(f"--budget '{part}': variants differ in {', '.join(forms)}, not '{match[1]}'")
    return tuple(conditions), tuple(limits)


def _limit(part: str, quantities: Mapping[str, Limitable]) -> Limit:
    match = LIMIT.fullmatch(part)
    if not match:
        raise SpecError(f"--budget '{part}': write it as memory<6GiB or engine!=native, with commas between several")
    name, sign, number, unit = match[1].lower(), match[2], float(match[3]), match[4].lower()
    name = re.sub(r" (ms|tok/s)$", "", name)
    name = SYNONYMS.get(name, name)
    if name not in quantities:
        raise SpecError(f"--budget '{part}': '{name}' cannot be limited{did_you_mean(name, quantities)}")
    units = quantities[name].units
    for of_this_kind, quantity, usual in QUANTITIES:
        if not unit and units == of_this_kind:
            raise SpecError(f"--budget '{part}': a {quantity} needs its unit; write {name}{sign}{match[3]}{usual}")
    if unit not in units:
        spellings = ", ".join(filter(None, units))
        takes = f"is in {spellings}, not" if spellings else "has no unit, such as"
        raise SpecError(f"--budget '{part}': {name} {takes} '{match[4]}'")
    # Rounded, because 95 * 0.01 is 0.9500000000000001 in floating point.
    return Limit(name, sign[0] == "<", round(number * units[unit], 12), len(sign) == 2, quantities[name])
