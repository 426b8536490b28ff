"""Axes of a grid and metrics of its cells, as every workload declares them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal


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
    time: Callable[[Any, Any], float | None] = lambda cell, sample: float(sample.latency_s)
    """Of a cell and one of its samples: what `of_latency` is given, where that is not the whole latency."""
    of_cell: Callable[[Any, Any], float | None] | None = None
    """From a record and one of its cells: a fact of the process."""
    combine: Literal["median", "max", "geometric_mean"] = "median"
    """How facts of several processes become one."""
    is_quality: bool = False
    """Whether it says what a variant costs in exactness: it stands in the first table."""

    def of_repeat(self, cell: Any, sample: Any) -> float | None:
        """The value of one repeat; None for a fact of the process."""
        if self.of_sample:
            return self.of_sample(cell, sample)
        time_s = self.time(cell, sample) if self.of_latency else None
        return self.of_latency(cell, time_s) if self.of_latency and time_s else None

    @property
    def shown_unit(self) -> str:
        """What follows the shown number in a sentence: the last word of the heading."""
        return self.heading.split()[-1]
