"""The seam for what is measured. Clock, memory, records and profile know nothing of tokens; a workload does.

A workload makes a step for each point of its grid: the callable that one repeat runs, its inputs already made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from benchmarker.record import Sample


@dataclass(frozen=True)
class Metric:
    """One number per repeat, computed from its raw sample."""

    name: str
    unit: str
    better: Literal["higher", "lower"]
    of: Callable[[Sample, int], float | None]
    """Takes the sample and the batch size; None where the sample cannot say."""


class Step(Protocol):
    """One repeat: runs the work, and returns its raw times."""

    def __call__(self) -> Sample: ...


class Workload(Protocol):
    """One kind of work on a loaded subject, such as text generation."""

    metrics: tuple[Metric, ...]

    def step(self, point: Any) -> Step:
        """Make the inputs of one point, and return what a repeat runs."""
