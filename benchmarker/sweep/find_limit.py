"""Search for the largest value of an axis that fits into memory, or meets an SLO: doubling, then bisection.

Each value is measured in a fresh process, so that all of the device's memory is free. The records of all values are
kept, including those that ran out of memory.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarker.core.console import Terminal
from benchmarker.core.errors import ResultsError, SpecError, did_you_mean
from benchmarker.core.formatting import gib
from benchmarker.core.process import PARENT
from benchmarker.execution.jobs import write_job
from benchmarker.schema.job import Job, Part
from benchmarker.schema.record import CellBase, RunRecord
from benchmarker.schema.record_io import read_record
from benchmarker.schema.registry import workload_of
from benchmarker.sweep.retries import OUT_OF_MEMORY
from benchmarker.sweep.sweep_state import RUN, now_id

PARTS = 8
"""Resolution of the result: the first value divided by this number."""
UNDECIDED = "undecided"  # First word of the reason of a load that more requests would decide.
DIGITS = 9  # Decimal places of a value; rounded sums of steps can be compared for equality.


@dataclass(frozen=True)
class Trial:
    value: float
    reason: str | None
    """Why the value does not fit; None if it fits."""
    peak_bytes: int | None
    """Peak of live tensors; growth of the resident memory on CPU."""

    @property
    def fits(self) -> bool:
        return self.reason is None

    @property
    def why(self) -> str:
        """First sentence of the reason: torch's message continues with a list of byte counts."""
        return (self.reason or "").partition(". ")[0]

    @property
    def text(self) -> str:
        return f"{self.value:,}".removesuffix(".0")


@dataclass(frozen=True)
class Limit:
    axis: str
    trials: tuple[Trial, ...]
    unit: str | None = None
    """Unit and SLO of the values: `requests per second within TTFT 500 ms`; None if memory is the limit."""

    @property
    def largest(self) -> Trial | None:
        return max((trial for trial in self.trials if trial.fits), key=lambda trial: trial.value, default=None)

    @property
    def refused(self) -> Trial:
        return min((trial for trial in self.trials if not trial.fits), key=lambda trial: trial.value)

    @property
    def words(self) -> str:
        """Sentence, as `largest seq_len that fits: 12,288 (peak 71.20 GiB); 12,416 does not: CUDA out of memory`."""
        largest, refused = self.largest, self.refused
        if self.unit and largest is None and refused.why.startswith(UNDECIDED):
            return f"{self.unit}: at {refused.text} {refused.why}; more --requests decide"
        if self.unit:
            number = largest.text if largest else f"fewer than {refused.text}"
            return f"{number} {self.unit}; at {refused.text}: {refused.why}"
        if largest is None:
            return f"no {self.axis} fits: {refused.text}: {refused.why}"
        peak = f" (peak {gib(largest.peak_bytes)})" if largest.peak_bytes else ""
        return f"largest {self.axis} that fits: {largest.text}{peak}; {refused.text} does not: {refused.why}"


def find_limit(job: Job, axis: str, terminal: Terminal, *, folder: Path) -> Limit:
    """Try values of an axis, beginning with the smallest one in the job; raises SpecError or ResultsError."""
    start = _start(job, axis)
    shortest = {"warmup": 1, "warmup_limit": 1, "runs": 1, "profile": False, "limits": False, "energy": False}
    small = job.model_copy(update={"procedure": job.procedure.model_copy(update=shortest)})
    units: list[str | None] = []

    def tried(value: float) -> Trial:
        grid = small.grid.model_copy(update={axis: (value,)})
        record = _measured(small.model_copy(update={"grid": grid}), folder / f"{axis}-{value}.json")
        units.append(record.limit_unit(axis))
        trial = _trial(value, record)
        why_not = trial.why if trial.why.startswith(UNDECIDED) else f"does not fit: {trial.why}"
        peak = f", peak {gib(trial.peak_bytes)}" if trial.peak_bytes else ""
        terminal.line(f"{axis} {trial.text}: {'fits' if trial.fits else why_not}{peak}")
        return trial

    folder.mkdir(parents=True, exist_ok=True)
    step = max(1, start // PARTS) if isinstance(start, int) else start / PARTS
    return Limit(axis, search(tried, start=start, step=step), units[0])


def search(tried: Callable[[float], Trial], *, start: float, step: float) -> tuple[Trial, ...]:
    """Double the value until it does not fit, then bisect until two values differ by no more than a step."""
    trials = [tried(start)]
    while trials[-1].fits:
        trials.append(tried(2 * trials[-1].value))
    low, high = trials[-2].value if len(trials) > 1 else start, trials[-1].value
    while round(high - low, DIGITS) > step:
        middle = round(low + max(step, (high - low) // (2 * step) * step), DIGITS)
        trials.append(tried(middle))
        low, high = (middle, high) if trials[-1].fits else (low, middle)
    return tuple(trials)


def _start(job: Job, axis: str) -> float:
    workload = workload_of(job.workload)
    sizes = [size.name for size in workload.axes if size.is_size]
    if axis not in sizes:
        raise SpecError(f"--find-limit {axis}: no size of {workload.name}{did_you_mean(axis, sizes)}")
    values: list[float] = [getattr(point, axis) for point in job.grid.points()]
    flag = axis.replace("_", "-")
    if not all(values):
        raise SpecError(f"--find-limit {axis}: give --{flag} alone, the first value of the search")
    if len(set(values)) < len(values):
        raise SpecError(f"--find-limit {axis}: several cells for one --{flag}; give one value for every other axis")
    return min(values)


def _measured(job: Job, path: Path) -> RunRecord:
    part = Part(record=path.absolute(), sweep=now_id(), cells=(0,), only="timing")
    command = [*RUN, "--job", str(write_job(job, path.parent)), "--part", part.model_dump_json(), "--quiet"]
    variables = {**os.environ, PARENT: str(os.getpid())}
    ended = subprocess.run(command, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    if not path.is_file():
        last = (ended.stderr.decode(errors="replace").strip().splitlines() or ["no output"])[-1]
        raise ResultsError(f"{path}: its process left no record (exit {ended.returncode}): {last}")
    return read_record(path)


def _trial(value: float, record: RunRecord) -> Trial:
    if record.why_unfit:
        return Trial(value, record.why_unfit, None)
    last: CellBase | RunRecord = record.cells[0] if record.cells else record
    if record.cells and record.cells[0].status == "ok":
        memory = record.cells[0].memory
        return Trial(value, None, memory.peak_allocated_bytes or memory.resident_growth_bytes)
    reason = last.reason or f"its process ended ({record.status})"
    if record.status == "running":
        # Killed from outside, as the kernel kills the largest process of a host without free memory.
        return Trial(value, "its process was killed", None)
    if last.error_kind in (*OUT_OF_MEMORY, "spec"):
        return Trial(value, reason, None)
    raise ResultsError(f"{record.variant.name}: {reason}")
