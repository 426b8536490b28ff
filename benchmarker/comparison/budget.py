"""A budget in words: `memory<6GiB, kld<0.05`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from benchmarker.comparison.comparing import Limitable, comparing_of
from benchmarker.core.errors import SpecError, did_you_mean
from benchmarker.core.numbers import decimal
from benchmarker.core.units import gib, seconds
from benchmarker.schema.registry import DEFAULT_WORKLOAD, workload_of
from benchmarker.schema.workload import Metric

_BYTES = {"": 1.0, "b": 1.0, "mib": 2.0**20, "gib": 2.0**30, "mb": 1e6, "gb": 1e9}
_SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}
_PLAIN = {"": 1.0, "%": 0.01}
_LIMIT = re.compile(r"\s*([\w/-]+)\s*(<=|>=|<|>)\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*([a-z%/]*)\s*", re.IGNORECASE)


_TIMING = "`benchmarker run` measures it"
_UNITS: dict[str, dict[str, float]] = {"s": _SECONDS, "B": _BYTES, "": _PLAIN}
_FORMS: dict[str, Callable[[float], str]] = {"s": seconds, "B": gib}


def limitable(workload: str) -> dict[str, Limitable]:
    """What a budget can limit, by its word: memory, every declared metric, and what else the workload says."""
    return {
        "memory": Limitable(lambda row: row.peak_memory_bytes, _BYTES, gib, _TIMING),
        **{metric.name: _metric(metric) for metric in workload_of(workload).metrics},
        **comparing_of(workload).limitable,
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


def parse_budget(text: str, workload: str = DEFAULT_WORKLOAD) -> tuple[Limit, ...]:
    """All conditions of a budget, separated by commas.

    Raises:
        SpecError: One cannot be read, or limits what is not known.
    """
    words = limitable(workload)
    limits = tuple(_limit(part, words) for part in text.split(",") if part.strip())
    if not limits:
        raise SpecError(f"--budget '{text}': write conditions, as in --budget 'memory<6GiB, kld<0.05'")
    return limits


def _limit(part: str, words: dict[str, Limitable]) -> Limit:
    found = _LIMIT.fullmatch(part)
    if not found:
        raise SpecError(f"--budget '{part.strip()}': write it as memory<6GiB: what, < or >, a number and its unit")
    name, sign, number, unit = found[1].lower(), found[2], float(found[3]), found[4].lower()
    if name not in words:
        raise SpecError(f"--budget '{part.strip()}': '{name}' cannot be limited{did_you_mean(name, words)}")
    units = words[name].units
    if unit not in units:
        known = ", ".join(one for one in units if one) or "no unit"
        raise SpecError(f"--budget '{part.strip()}': {name} is in {known}, not '{found[4]}'")
    # 95 * 0.01 is not 0.95.
    return Limit(part.strip(), name, sign[0] == "<", round(number * units[unit], 12), len(sign) == 2, words[name])
