"""Workloads by name, and the axes and metrics of a workload. Other packages reach a workload only by this registry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from benchmarker.core.errors import SpecError, did_you_mean
from benchmarker.core.formatting import GIB, MIB

if TYPE_CHECKING:
    from benchmarker.workloads.base import Workload

WORKLOADS: dict[str, str] = {
    "generation": "benchmarker.workloads.generation.workload",
    "attention": "benchmarker.workloads.attention.workload",
    "mixers": "benchmarker.workloads.mixers.workload",
    "finetune": "benchmarker.workloads.finetune.workload",
    "context_parallel": "benchmarker.workloads.context_parallel.workload",
    "serving": "benchmarker.workloads.serving.workload",
}
"""Module that defines `WORKLOAD`, by the workload's name."""
LOG_RECORD = "benchmarker.workloads.generation.log_record"
"""Module whose `to_record` converts a run in a log of the reference script to a record."""
DEFAULT_WORKLOAD = "generation"  # Workload of a config file or command line that names none.


def workload_of(name: str) -> Workload:
    """Return the workload of this name. Raises SpecError."""
    if name not in WORKLOADS:
        raise SpecError(f"no workload '{name}'{did_you_mean(name, WORKLOADS)}")
    description: Workload = import_module(WORKLOADS[name]).WORKLOAD
    return description


@dataclass(frozen=True)
class Axis:
    """Axis of a grid, which is a field of its points and cells: `new_tokens`."""

    name: str
    heading: str
    words: Callable[[Any], str]
    is_size: bool = True
    """True if a larger value never needs less memory. Memory is compared between cells that differ in no other axis."""
    size: Callable[[Any], float] | None = None

    def size_at(self, point: Any) -> float:
        return float(getattr(point, self.name)) if self.size is None else self.size(point)


@dataclass(frozen=True)
class Metric:
    """One number of a cell. Exactly one of the `of_` functions computes it."""

    name: str  # Stem of its JSON keys, and its name in --budget: `ttft`.
    heading: str
    unit: str
    scale: float
    better: Literal["higher", "lower"]
    formula: str
    of_sample: Callable[[Any, Any], float | None] | None = None
    of_latency: Callable[[Any, float], float | None] | None = None
    """Returns a rate from a cell and its median time. A mean of rates would hide slow repeats."""
    time: Callable[[Any, Any], float | None] = lambda cell, sample: float(sample.latency_s)
    of_cell: Callable[[Any, Any], float | None] | None = None
    """Returns a number that is not measured per repeat, such as load time, from a record and one of its cells."""
    combine: Literal["median", "max", "geometric"] = "median"
    is_quality: bool = False  # True if the metric measures accuracy; the first table then shows it.

    def of_repeat(self, cell: Any, sample: Any) -> float | None:
        if self.of_sample:
            return self.of_sample(cell, sample)
        time_s = self.time(cell, sample) if self.of_latency else None
        return self.of_latency(cell, time_s) if self.of_latency and time_s else None

    @property
    def shown_unit(self) -> str:
        return self.heading.split()[-1]


UNITS: dict[str, tuple[str, float]] = {
    "s": ("s", 1.0),
    "ms": ("s", 1e3),
    "MiB": ("B", 1 / MIB),
    "GiB": ("B", 1 / GIB),
    "tok/s": ("1/s", 1.0),
    "tok/s/user": ("1/s", 1.0),
    "req/s": ("1/s", 1.0),
    "Mtok/s": ("1/s", 1e-6),
    "GB/s": ("B/s", 1e-9),
    "TFLOP/s": ("FLOP/s", 1e-12),
    "TFLOP/s/GPU": ("FLOP/s", 1e-12),
    "%": ("", 100.0),
    "ppm": ("", 1e6),
    "M": ("", 1e-6),
    "kfloat": ("", 1e-3),
}
"""(unit of a metric's value, factor from this unit to the unit in tables) by the last word of the metric's heading."""


def metric(
    name: str, heading: str, formula: str, *, better: Literal["higher", "lower"] = "lower", **values: Any
) -> Metric:
    """Return a metric in the unit of its heading's last word. `values`: further fields, such as an `of_` function."""
    unit, scale = UNITS.get(heading.split()[-1], ("", 1.0))
    return Metric(name=name, heading=heading, unit=unit, scale=scale, better=better, formula=formula, **values)
