"""The seam for what is measured. Clock, memory, records and profile know nothing of tokens; a workload does.

A workload makes a step for each point of its grid: the callable that one repeat runs, its inputs already made.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from benchmarker.schema.record import SampleBase

SampleKind = TypeVar("SampleKind", bound=SampleBase, covariant=True)


class Step(Protocol[SampleKind]):
    """One repeat: runs the work, and returns its raw times."""

    def __call__(self) -> SampleKind: ...
