"""A budget in words: `memory<6GiB, kld<0.05`."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from benchmarker.comparison.comparing import PLAIN, SECONDS, SIZES, Limitable
from benchmarker.core.errors import SpecError, did_you_mean
from benchmarker.core.formatting import decimal, gib, seconds
from benchmarker.core.tables import code
from benchmarker.schema.metric import Metric
from benchmarker.schema.registry import DEFAULT_WORKLOAD, workload_of

_USUAL = ((SIZES, "size", "GiB"), (SECONDS, "time", "ms"))
"""What has no bare number, and the unit that tables show."""
_LIMIT = re.compile(r"\s*([\w/-]+)\s*(<=|>=|<|>)\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*([a-z%/]*)\s*", re.IGNORECASE)


_CONDITION = re.compile(r"\s*(\w+)\s*(!=|==?)\s*([\w.-]+)\s*")
_TIMING = f"{code('benchmarker run')} measures it"
_UNITS: dict[str, dict[str, float]] = {"s": SECONDS, "B": SIZES, "": PLAIN}
_FORMS: dict[str, Callable[[float], str]] = {"s": seconds, "B": gib}


def limitable(workload: str) -> dict[str, Limitable]:
    """What a budget can limit, by its word: memory, every declared metric, and what else the workload says."""
    return {
        "memory": Limitable(lambda row: row.peak_memory_bytes, SIZES, gib, _TIMING),
        **{metric.name: _metric(metric) for metric in workload_of(workload).metrics},
        **workload_of(workload).limitable(),
    }


def _metric(metric: Metric) -> Limitable:
    """A declared metric: a time or a size in any unit of those, another one as tables show it."""
    units = _UNITS.get(metric.unit, {"": 1 / metric.scale, metric.shown_unit.lower(): 1 / metric.scale})
    form = _FORMS.get(metric.unit) or (lambda value: decimal(value * metric.scale))
    if metric.of_cell:
        return Limitable(lambda row: row.facts.get(metric.name), units, form, _TIMING)
    return Limitable(lambda row: row.metrics.get(metric.name), units, form, _TIMING)


@dataclass(frozen=True)
class Limit:
    """One condition."""

    text: str
    """As it was given."""
    metric: str
    is_upper: bool
    """Whether values above it are too much; else those below it are too little."""
    value: float
    """In base units."""
    is_inclusive: bool
    what: Limitable

    def allows(self, value: float) -> bool:
        """Whether this value keeps to it."""
        if value == self.value:
            return self.is_inclusive
        return (value < self.value) == self.is_upper

    def excess(self, value: float) -> float:
        """By how much the value breaks it, as a share of the limit; negative where it keeps to it."""
        over = (value - self.value) / self.value if self.value else value
        return over if self.is_upper else -over

    def shown(self, value: float) -> str:
        """The value in words."""
        return self.what.form(value)


@dataclass(frozen=True)
class Condition:
    """What a variant has to be, or must not be."""

    name: str
    """Field of its form: `engine`."""
    word: str
    is_equal: bool

    def allows(self, form: Mapping[str, str]) -> bool:
        """Whether a form keeps to it."""
        return (form.get(self.name) == self.word) == self.is_equal


def parse_budget(
    text: str, workload: str = DEFAULT_WORKLOAD, *, forms: Collection[str] = ()
) -> tuple[tuple[Condition, ...], tuple[Limit, ...]]:
    """All conditions of a budget, separated by commas: `memory<6GiB, engine!=vllm`.

    Args:
        forms: Fields of a variant's form.

    Raises:
        SpecError: One cannot be read, or limits what is not known.
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
        raise SpecError(f"--budget '{part.strip()}': write it as memory<6GiB: what, < or >, a number and its unit")
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
