"""The interface between one run and the workload that it measures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from benchmarker.core.errors import BenchmarkerError, ChangedError, first_line
from benchmarker.hardware.device import Device, error_kind_of
from benchmarker.schema.job import Job
from benchmarker.schema.record import CellBase, Missing, RunRecord

if TYPE_CHECKING:
    from benchmarker.core.console import Terminal
    from benchmarker.hardware.gpu import DeviceMemory
    from benchmarker.measure.repeat import Step

JobT = TypeVar("JobT", bound=Job)
RecordT = TypeVar("RecordT", bound=RunRecord)
Result = TypeVar("Result")


class Session(Protocol):
    """The run in which a bench is opened."""

    terminal: Terminal
    device_memory: DeviceMemory  # Memory of the device before the run allocated any.

    record: Any  # The record so far.

    def keep(self, **changes: Any) -> None:
        """Change fields of the record, in a sweep also on disk."""

    def ready(self) -> None:
        """Measure the device's limits. A bench calls this after its quick checks, before it loads anything large."""


class Bench:
    """One variant, open and ready to be measured."""

    def facts(self) -> Mapping[str, Any]:
        """Return fields of the record on loading and execution. Called after each cell."""
        return {}

    def cell(self, point: Any) -> CellBase:
        """Return the cell before it is measured: axes, demand, hash of the inputs."""
        raise NotImplementedError

    def correct(self, point: Any) -> Mapping[str, Any]:  # noqa: ARG002
        """Check one result before anything is timed, and return fields of the cell.

        Raises:
            WrongResultError: The result is wrong. The cell becomes invalid and has no times.
            UnsupportedError: The variant cannot compute this cell.
        """
        return {}

    def step(self, point: Any) -> Step[Any]:
        """Return the callable of one repeat. It reads the clock itself, with the device drained at both ends."""
        raise NotImplementedError

    def settling_times(self, sample: Any) -> tuple[float, ...]:
        """Return the times of a warm-up that must be stable before anything is timed."""
        return (float(sample.latency_s),)

    def timed(self) -> AbstractContextManager[None]:
        """Surround the timed repeats; events that must not happen there raise UnsupportedError."""
        return nullcontext()

    def measured(self, cell: Any, step: Any) -> Mapping[str, Any]:  # noqa: ARG002
        """Return further fields of the cell after it was timed."""
        return {}

    def afterwards(self, record: Any, path: Path) -> Mapping[str, Any]:  # noqa: ARG002
        """Return fields of the record that are measured after all cells: profile, energy, quality.

        Args:
            record: With all cells, which are on disk by now.
            path: Of the record; further files are named after it.
        """
        return {}


class Judging(Generic[JobT, RecordT]):
    """Measurements apart from time, such as quality: once for each form, in a process of their own."""

    name: ClassVar[str]

    def check(self, job: JobT) -> None:
        """Refuse unsuitable inputs before anything is timed. Raises BenchmarkerError."""

    def form(self, job: JobT) -> str | None:
        """Return a key; jobs with the same key share one measurement. None if the job requests none."""
        raise NotImplementedError

    def words(self, job: JobT) -> str:
        """Return the requested measurements, for the plan of a sweep."""
        raise NotImplementedError

    def guess_s(self, job: JobT, timed: RecordT | None) -> float:  # noqa: ARG002
        """Return a guess of the measurement's seconds, without the process's start; `timed` is a record of the job."""
        return 60.0

    def is_done(self, record: RecordT, job: JobT) -> bool:
        """Whether the record has every requested measurement, measured as requested."""
        raise NotImplementedError

    def changes(self, job: JobT, judged: RecordT | None, reason: Missing | None) -> dict[str, Any]:
        """Return fields for the records that share the measurement; `reason` is why its process failed."""
        raise NotImplementedError

    def missing(self, record: RecordT) -> Missing | None:
        """Return why a requested measurement is missing."""
        raise NotImplementedError

    def lost(self, job: JobT, judged: RecordT | None) -> str:
        """Return the names of the measurements that a failed process did not finish."""
        raise NotImplementedError


def refuse_other_commit(job: Job, model: str, commit: str | None) -> None:
    """Refuse another commit of the model on the hub than that with which the sweep began. Raises ChangedError."""
    planned = job.origin.commit if job.origin and job.part else None
    if planned and commit and commit != planned:
        raise ChangedError(
            f"model {model} changed on the hub since the sweep began: commit {planned}, then {commit}; "
            f"begin a new sweep, with --revision {planned} to stay with the first"
        )


def tried(work: Callable[[], Result], device: Device) -> Result | Missing:
    """Return the result of work, or why it failed: a known error, or too little memory."""
    try:
        return work()
    except Exception as error:
        if not isinstance(error, BenchmarkerError) and not device.is_out_of_memory(error):
            raise
        missing = Missing(error_kind=error_kind_of(error, device), reason=first_line(error))
    # Outside the except block, whose traceback keeps the failed work's tensors alive.
    device.release()
    return missing
