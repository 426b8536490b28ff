"""What a workload declares of itself, for the rooms that know none by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

from benchmarker.schema.record import RunRecord


@dataclass(frozen=True)
class Axis:
    """One field of the point of a grid, and of its cell."""

    name: str
    """`seq_len`."""
    heading: str
    """Of its column: `S`."""
    words: Callable[[Any], str]
    """The value in a sentence."""
    is_size: bool = True
    """Whether a larger value never needs less memory. Cells with another value of an axis that is no size are not
    compared: what did not fit says nothing of them."""
    size: Callable[[Any], float] | None = None
    """The size of a point on this axis, where the field of the point is not it."""

    def size_at(self, point: Any) -> float:
        """How large a point is on this axis."""
        return float(getattr(point, self.name)) if self.size is None else self.size(point)


@dataclass(frozen=True)
class Metric:
    """One number of a cell, as tables, verdicts, gate and budget have it. It is declared by one of the three `of_`."""

    name: str
    """Stem of its JSON keys, and its word in --budget: `ttft`."""
    heading: str
    """Of its column: `TTFT ms`."""
    unit: str
    """`s`, `B`, `1/s`, `FLOP/s`; empty for a share or a count."""
    scale: float
    """What is shown is the value times this."""
    better: Literal["higher", "lower"]
    formula: str
    """In words with units, for the documents and --help."""
    of_sample: Callable[[Any, Any], float | None] | None = None
    """From a cell and one of its samples: the median of a process counts."""
    of_latency: Callable[[Any, float], float | None] | None = None
    """From a cell and a latency: a rate. It is taken from the median time, never a mean of rates: half the work fast
    and half slow takes longer than that says."""
    of_cell: Callable[[Any, Any], float | None] | None = None
    """From a record and one of its cells: a fact of the process."""
    combine: Literal["median", "max", "geometric_mean"] = "median"
    """How facts of several processes become one."""

    def of_repeat(self, cell: Any, sample: Any) -> float | None:
        """The value of one repeat; None for a fact of the process."""
        if self.of_sample:
            return self.of_sample(cell, sample)
        return self.of_latency(cell, sample.latency_s) if self.of_latency else None

    @property
    def shown_unit(self) -> str:
        """What follows the shown number in a sentence: the last word of the heading."""
        return self.heading.split()[-1]


def imported(where: str) -> Any:
    """What `package.module:name` names."""
    module, _, name = where.partition(":")
    return getattr(import_module(module), name)


@dataclass(frozen=True)
class Workload:
    """The description of a workload: light, so that reading a record needs no torch."""

    name: str
    """As a record and a config file call it."""
    record: type[RunRecord]
    """The class of its records."""
    axes: tuple[Axis, ...] = ()
    metrics: tuple[Metric, ...] = ()
    headline: str = ""
    """Name of the metric by which rows are ranked, and that a sweep shows as it goes."""
    comparing: str | None = None
    """`module:name` of the Comparing: what its rows have beyond axes and metrics. None where they have nothing."""
    presentation: str | None = None
    """`module:name` of the Presentation: what its tables and charts have beyond them. None where they have nothing."""

    def metric(self, name: str) -> Metric:
        """The metric of this name."""
        return next(metric for metric in self.metrics if metric.name == name)
