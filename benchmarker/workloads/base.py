"""The seam for what is measured. Clock, memory, records and profile know nothing of tokens; a workload does.

A workload makes a step for each point of its grid: the callable that one repeat runs, its inputs already made.
"""

from __future__ import annotations

from typing import Protocol

from benchmarker.schema.record import Sample


class Step(Protocol):
    """One repeat: runs the work, and returns its raw times."""

    def __call__(self) -> Sample: ...
