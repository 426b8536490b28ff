"""Search for the largest value of one axis that fits into memory: doubling until one fails, then bisection.

Each value is tried in a fresh process, for which all of the device's memory is free. Its record is kept, also if it ran
out of memory.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarker.core.console import Terminal
from benchmarker.core.errors import ErrorKind, ResultsError, SpecError, did_you_mean
from benchmarker.core.formatting import gib
from benchmarker.core.process import PARENT
from benchmarker.execution.job_file import write_job
from benchmarker.schema.job import Job, Part, Procedure
from benchmarker.schema.record import RunRecord
from benchmarker.schema.record_io import read_record
from benchmarker.schema.registry import workload_of
from benchmarker.sweep.sweep_state import RUN, now_id

OUT_OF_MEMORY: tuple[ErrorKind, ...] = ("oom_gpu", "oom_host")
PARTS = 8
"""The result is exact to the first value divided by this number."""


@dataclass(frozen=True)
class Trial:
    value: int
    fits: bool
    error_kind: ErrorKind | None
    reason: str | None
    peak_bytes: int | None
    """Peak of live tensors; growth of the resident memory on CPU."""

    @property
    def why(self) -> str:
        """First sentence of the reason: torch's message continues with a list of byte counts."""
        return (self.reason or "").partition(". ")[0]


@dataclass(frozen=True)
class Limit:
    axis: str
    trials: tuple[Trial, ...]

    @property
    def largest(self) -> Trial | None:
        """Largest value that fits; None if none does."""
        return max((trial for trial in self.trials if trial.fits), key=lambda trial: trial.value, default=None)

    @property
    def refused(self) -> Trial | None:
        """Smallest value that does not fit; None if another error ended the search."""
        return min((trial for trial in self.trials if not trial.fits), key=lambda trial: trial.value, default=None)

    @property
    def words(self) -> str:
        """Sentence, as `largest seq_len that fits: 12,288 (peak 71.20 GiB); 12,416 does not: CUDA out of memory`."""
        largest, refused = self.largest, self.refused
        if largest is None:
            return f"no {self.axis} fits: {refused.value:,}: {refused.why}" if refused else f"no {self.axis} fits"
        peak = f" (peak {gib(largest.peak_bytes)})" if largest.peak_bytes else ""
        first = f"largest {self.axis} that fits: {largest.value:,}{peak}"
        return f"{first}; {refused.value:,} does not: {refused.why}" if refused else first


def find_limit(
    job: Job, axis: str, terminal: Terminal, *, folder: Path, run: Sequence[str] = RUN
) -> tuple[Limit, tuple[Path, ...]]:
    """Try values of an axis, beginning with the smallest one in the job.

    Args:
        axis: Field of the grid that is a size.
        folder: Folder for the records.
        run: Command that measures one job.

    Returns:
        The limit and the paths of the records.

    Raises:
        SpecError: The workload has no such axis, or the job has several cells for one value of the axis.
        ResultsError: A process died without a record.
    """
    start = _start(job, axis)
    small = job.model_copy(update={"procedure": _shortest(job.procedure)})
    paths: list[Path] = []

    def tried(value: int) -> Trial:
        path, sweep = folder / f"{axis}-{value}.json", now_id()
        grid = small.grid.model_copy(update={axis: (value,)})
        record = _measured(small.model_copy(update={"grid": grid}), path, sweep, run)
        paths.append(path)
        trial = _trial(value, record)
        outcome = "fits" if trial.fits else f"does not fit: {trial.why}"
        terminal.line(f"{axis} {value:,}: {outcome}" + (f", peak {gib(trial.peak_bytes)}" if trial.peak_bytes else ""))
        return trial

    folder.mkdir(parents=True, exist_ok=True)
    trials = search(tried, start=start, step=max(1, start // PARTS))
    return Limit(axis, trials), tuple(paths)


def search(tried: Callable[[int], Trial], *, start: int, step: int) -> tuple[Trial, ...]:
    """Double the value until it does not fit, then bisect down to a step.

    Args:
        step: Smallest difference between two tried values.
    """
    trials = [tried(start)]
    while trials[-1].fits:
        trials.append(tried(2 * trials[-1].value))
    if len(trials) == 1:
        return tuple(trials)
    low, high = trials[-2].value, trials[-1].value
    while high - low > step:
        middle = low + max(step, (high - low) // 2 // step * step)
        trials.append(tried(middle))
        low, high = (middle, high) if trials[-1].fits else (low, middle)
    return tuple(trials)


def _start(job: Job, axis: str) -> int:
    workload = workload_of(job.workload)
    sizes = [size.name for size in workload.axes if size.is_size]
    if axis not in sizes:
        raise SpecError(
            f"--find-limit {axis}: no size of {workload.name}{did_you_mean(axis, sizes)}: {', '.join(sizes)}"
        )
    points = job.grid.points()
    if len({getattr(point, axis) for point in points}) < len(points):
        flag = axis.replace("_", "-")
        raise SpecError(f"--find-limit {axis}: several cells for one --{flag}; give one value for every other axis")
    return int(min(getattr(point, axis) for point in points))


def _shortest(procedure: Procedure) -> Procedure:
    changes = {"warmup": 1, "warmup_limit": 1, "runs": 1, "profile": False, "limits": False, "energy": False}
    return procedure.model_copy(update=changes)


def _measured(job: Job, path: Path, sweep: str, run: Sequence[str]) -> RunRecord:
    """Measure a job in a process of its own and return its record."""
    part = Part(record=path.absolute(), sweep=sweep, cells=(0,), only="timing")
    saved = write_job(job, path.parent)
    command = [*run, "--job", str(saved), "--part", part.model_dump_json(), "--quiet"]
    ended = subprocess.run(
        command, env={**os.environ, PARENT: str(os.getpid())}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    if not path.is_file():
        lines = ended.stderr.decode(errors="replace").strip().splitlines()
        raise ResultsError(
            f"{path}: its process left no record (exit {ended.returncode}): {(lines or ['no output'])[-1]}"
        )
    return read_record(path)


def _trial(value: int, record: RunRecord) -> Trial:
    """Return whether the value fits, according to its record."""
    cell = record.cells[0] if record.cells else None
    if cell is not None and cell.status == "ok":
        memory = cell.memory
        return Trial(value, True, None, None, memory.peak_allocated_bytes or memory.resident_growth_bytes)
    kind = cell.error_kind if cell else record.error_kind
    reason = (cell.reason if cell else record.reason) or f"its process ended ({record.status})"
    if record.status == "running":
        # Killed from outside, as the kernel kills the largest process of a host without free memory.
        return Trial(value, False, "oom_host", "its process was killed", None)
    if kind in OUT_OF_MEMORY or kind == "spec":
        return Trial(value, False, kind, reason, None)
    raise ResultsError(f"{record.variant.name}: {reason}")
