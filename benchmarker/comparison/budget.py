"""A budget in words: `memory<6GiB, kld<0.05`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from benchmarker.comparison.rows import Row
from benchmarker.core.errors import SpecError, did_you_mean
from benchmarker.core.numbers import decimal, percent
from benchmarker.core.stats import Estimate
from benchmarker.core.units import gib, seconds

_BYTES = {"": 1, "b": 1, "mib": 2**20, "gib": 2**30, "mb": 10**6, "gb": 10**9}
_SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}
_PLAIN = {"": 1.0, "%": 0.01}
_LIMIT = re.compile(r"\s*([\w/-]+)\s*(<=|>=|<|>)\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*([a-z%]*)\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Metric:
    """What a budget can limit."""

    of: Callable[[Row], float | Estimate | None]
    units: dict[str, float] | dict[str, int]
    form: Callable[[float], str]
    how: str
    """How it gets measured, for where it was not."""


def _about(value: float | None, error: float | None) -> float | Estimate | None:
    """A mean over windows of text, with two standard errors to either side."""
    return value if value is None or not error else Estimate(value, value - 2 * error, value + 2 * error)


_TIMING = "`benchmarker run` measures it"
_QUALITY = "`--quality` measures it, on real weights"
METRICS: dict[str, Metric] = {
    "memory": Metric(lambda row: row.peak_memory_bytes, _BYTES, gib, _TIMING),
    "weights": Metric(lambda row: row.weight_bytes, _BYTES, gib, _TIMING),
    "bits": Metric(lambda row: row.bits_per_weight, _PLAIN, decimal, _TIMING),
    "latency": Metric(lambda row: row.latency, _SECONDS, seconds, _TIMING),
    "ttft": Metric(lambda row: row.ttft, _SECONDS, seconds, _TIMING),
    "tpot": Metric(lambda row: row.tpot, _SECONDS, seconds, _TIMING),
    "tok/s": Metric(lambda row: row.rate, _PLAIN, decimal, _TIMING),
    "load": Metric(lambda row: row.load_s, _SECONDS, seconds, _TIMING),
    "setup": Metric(lambda row: row.setup_s, _SECONDS, seconds, "only runtimes that set something up have it"),
    "energy": Metric(
        lambda row: row.energy.per_token if row.energy else None, {"": 1.0, "j": 1.0}, decimal, "`--energy` measures it"
    ),
    "perplexity": Metric(
        lambda row: _about(row.perplexity, row.quality.perplexity_error if row.quality else None),
        _PLAIN,
        decimal,
        _QUALITY,
    ),
    "kld": Metric(
        lambda row: _about(row.kl_divergence, row.quality.against.kl_mean_error if row.quality else None),
        _PLAIN,
        decimal,
        _QUALITY,
    ),
    "top1": Metric(
        lambda row: _about(row.top1_agreement, row.quality.against.same_top_error if row.quality else None),
        _PLAIN,
        lambda share: percent(share, places=1),
        _QUALITY,
    ),
}


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
        return METRICS[self.metric].form(value)


def parse_budget(text: str) -> tuple[Limit, ...]:
    """All conditions of a budget, separated by commas.

    Raises:
        SpecError: One cannot be read, or limits what is not known.
    """
    limits = tuple(_limit(part) for part in text.split(",") if part.strip())
    if not limits:
        raise SpecError(f"--budget '{text}': write conditions, as in --budget 'memory<6GiB, kld<0.05'")
    return limits


def _limit(part: str) -> Limit:
    found = _LIMIT.fullmatch(part)
    if not found:
        raise SpecError(f"--budget '{part.strip()}': write it as memory<6GiB: what, < or >, a number and its unit")
    name, sign, number, unit = found[1].lower(), found[2], float(found[3]), found[4].lower()
    if name not in METRICS:
        raise SpecError(f"--budget '{part.strip()}': '{name}' cannot be limited{did_you_mean(name, METRICS)}")
    units = METRICS[name].units
    if unit not in units:
        known = ", ".join(one for one in units if one) or "no unit"
        raise SpecError(f"--budget '{part.strip()}': {name} is in {known}, not '{found[4]}'")
    # 95 * 0.01 is not 0.95.
    return Limit(part.strip(), name, sign[0] == "<", round(number * units[unit], 12), len(sign) == 2)
