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
    """The run that opens a bench."""

    terminal: Terminal
    device_memory: DeviceMemory  # Memory of the device, as it was before the run allocated memory.

    record: Any  # The record with the results up to now.

    def keep(self, **changes: Any) -> None:
        """Change fields of the record, and write it to disk if it has cells, is complete, or belongs to a sweep."""

    def ready(self) -> None:
        """Measure the device's limits. A bench calls this after its quick checks, before it loads anything large."""


class Bench:
    """One variant, open and ready to be measured."""

    def facts(self) -> Mapping[str, Any]:
        """Return the record's fields about loading and execution. Called after each cell."""
        return {}

    def cell(self, point: Any) -> CellBase:
        """Return the cell with the values known before it is measured: axes, demand, hash of the inputs."""
        raise NotImplementedError

    def correct(self, point: Any) -> Mapping[str, Any]:  # noqa: ARG002
        """Check the result of the cell before it is timed, and return fields of the cell.

        Raises:
            WrongResultError: The result is wrong. The cell becomes invalid and has no times.
            UnsupportedError: The variant cannot compute this cell.
        """
        return {}

    def step(self, point: Any) -> Step[Any]:
        """Return a callable that runs and times one repeat. It waits for the device before each clock reading."""
        raise NotImplementedError

    def settling_times(self, sample: Any) -> tuple[float, ...]:
        """Return the times of a warm-up repeat that must stop changing before repeats are timed."""
        return (float(sample.latency_s),)

    def timed(self) -> AbstractContextManager[None]:
        """Return the context of the timed repeats, in which a recompilation, for example, raises UnsupportedError."""
        return nullcontext()

    def measured(self, cell: Any, step: Any) -> Mapping[str, Any]:  # noqa: ARG002
        """Return further fields of the cell after it was timed."""
        return {}

    def afterwards(self, record: Any, path: Path) -> Mapping[str, Any]:  # noqa: ARG002
        """Return fields of the record that are measured after all cells: profile, energy, quality.

        Args:
            record: Record with all cells, which is on disk.
            path: Path of the record. Further files are named after it.
        """
        return {}


class Judging(Generic[JobT, RecordT]):
    """Measurements of quality, which are made once per key of `form` in a process of their own."""

    name: ClassVar[str]

    def fields(self, job: JobT) -> tuple[str, ...]:
        """Return the record's fields of the requested measurements: `tasks`. `no_tasks` is why `tasks` is missing."""
        raise NotImplementedError

    def check(self, job: JobT) -> None:
        """Raise BenchmarkerError for unsuitable inputs, before anything is timed."""

    def form(self, job: JobT) -> str | None:
        """Return the key of the job's measurement of quality; jobs with equal keys share it. None if it has none."""
        raise NotImplementedError

    def words(self, job: JobT) -> str:
        """Return a text with the requested measurements for the plan of a sweep."""
        raise NotImplementedError

    def guess_s(self, job: JobT, timed: RecordT | None) -> float:  # noqa: ARG002
        """Estimate the seconds of the measurement without the start of its process; `timed` is a record of the job."""
        return 60.0

    def is_done(self, record: RecordT, job: JobT) -> bool:
        """Return True if the record has every requested measurement, measured as requested."""
        raise NotImplementedError


def refuse_other_commit(job: Job, model: str, commit: str | None) -> None:
    """Raise ChangedError if `commit` (of the model, on the hub) differs from the commit with which the sweep began."""
    planned = job.origin.commit if job.origin and job.part else None
    if planned and commit and commit != planned:
        raise ChangedError(
            f"model {model} changed on the hub since the sweep began: commit {planned}, then {commit}; "
            f"begin a new sweep, with --revision {planned} to stay with the first"
        )


def tried(work: Callable[[], Result], device: Device) -> Result | Missing:
    """Return the result of `work`; if it raised BenchmarkerError or ran out of memory, return the reason."""
    try:
        return work()
    except Exception as error:
        if not isinstance(error, BenchmarkerError) and not device.is_out_of_memory(error):
            raise
        missing = Missing(error_kind=error_kind_of(error, device), reason=first_line(error))
    # After the except block: inside it, the traceback keeps the tensors of `work` alive.
    device.release()
    return missing
