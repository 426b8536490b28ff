"""The seam for what is measured. Clock, memory, records and profile know nothing of tokens; a workload does.

A workload names its grid's points, loads a subject, and makes a step for a point: the callable that one repeat runs.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
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
    """One repeat: runs the work, and returns its raw times. The inputs were made before."""

    def __call__(self) -> Sample: ...


class Workload(Protocol):
    """One kind of work, such as text generation."""

    metrics: tuple[Metric, ...]

    def open(self) -> AbstractContextManager[Any]:
        """Load the subject; give its memory back at the end."""

    def step(self, subject: Any, point: Any) -> Step:
        """Make the inputs of one point, and return what a repeat runs."""
