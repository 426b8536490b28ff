"""The seam for what is measured. Clock, memory, records and profile know nothing of tokens; a workload does.

A workload's `opener` is a context manager: it opens a Bench for a job, on a device, within a Session. The bench makes a
step for each point of its grid: the callable that one repeat runs, its inputs already made.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol

from benchmarker.core.console import Terminal
from benchmarker.core.errors import ChangedError
from benchmarker.measure.memory import DeviceMemory
from benchmarker.measure.repeat import Measured, Step
from benchmarker.schema.job import Job
from benchmarker.schema.record import CellBase, RunRecord


class Session(Protocol):
    """The run that a bench is opened in: what it prints on, and where its record is kept."""

    terminal: Terminal
    device_memory: DeviceMemory
    """What the device held before anything of ours was on it."""

    @property
    def record(self) -> Any:
        """The record so far."""

    def keep(self, **changes: Any) -> None:
        """Change fields of the record; in a sweep, which reads them meanwhile, on disk too."""

    def ready(self) -> None:
        """Called when all that can be checked quickly is checked, before anything large is loaded: the device's limits
        are measured then. A bench that does not call it has them measured before it is asked for a cell."""


class Bench(Protocol):
    """One variant, open and ready to be measured."""

    def facts(self) -> Mapping[str, Any]:
        """Fields of the record that say what was loaded, and what ran so far. Asked for after each cell."""

    def cell(self, point: Any) -> CellBase:
        """What is known of a cell before it is measured: its axes, its demand, the hash of its inputs."""

    def correct(self, point: Any) -> Mapping[str, Any]:
        """Fields of the cell that say what one call's result was held against. Called before anything is timed.

        Raises:
            WrongResultError: It is wrong; the cell is invalid and has no times.
            UnsupportedError: The variant cannot do this here.
        """

    def step(self, point: Any) -> Step[Any]:
        """What one repeat of this cell runs. It reads the clock itself, with the device drained at both ends."""

    def timed(self) -> AbstractContextManager[None]:
        """Surrounds the timed repeats: what must not happen there raises UnsupportedError."""

    def measured(self, cell: Any, step: Any, measured: Measured[Any]) -> Mapping[str, Any]:
        """Fields of the cell that only the bench can tell, once it was timed."""

    def afterwards(self, record: Any, path: Path) -> Mapping[str, Any]:
        """Fields of the record that are found when all is timed: a profile, energy, quality.

        Args:
            record: With all cells; they are on disk by now.
            path: Of the record. What lies beside it is called after it.
        """


class Nothing:
    """What a bench need not say: a base for one that says the rest."""

    def facts(self) -> Mapping[str, Any]:
        return {}

    def correct(self, point: Any) -> Mapping[str, Any]:  # noqa: ARG002
        return {}

    def timed(self) -> AbstractContextManager[None]:
        return nullcontext()

    def measured(self, cell: Any, step: Any, measured: Measured[Any]) -> Mapping[str, Any]:  # noqa: ARG002
        return {}

    def afterwards(self, record: RunRecord, path: Path) -> Mapping[str, Any]:  # noqa: ARG002
        return {}


def refuse_other_commit(job: Job, model: str, commit: str | None) -> None:
    """Refuse to measure, in a sweep, another commit of the model than the one that it began with.

    Args:
        commit: On the hub, as it was found now; None where the model is a folder.

    Raises:
        ChangedError: With the option that keeps the commit.
    """
    planned = job.origin.commit if job.origin and job.part else None
    if planned and commit and commit != planned:
        raise ChangedError(
            f"model {model} changed on the hub since the sweep began: commit {planned}, then {commit}; "
            f"begin a new sweep, with --revision {planned} to stay with the first"
        )
