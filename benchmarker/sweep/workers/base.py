"""Interface between the loop of a sweep and its workers.

A worker measures one round, or one judgement, at a time. All workers call the same functions, `measure_round` and
`judge`; they differ in the process and on the host where these run.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from benchmarker.core.errors import SpecError
from benchmarker.execution.job_file import cell_keys, changed_files
from benchmarker.hardware.monitor import HostGauge, Monitor, find_monitor
from benchmarker.schema.base import changed_fields
from benchmarker.schema.job import Job
from benchmarker.schema.record import Environment
from benchmarker.schema.registry import workload_of
from benchmarker.sweep.child import StoppedError
from benchmarker.sweep.judge_quality import Judgement, judge
from benchmarker.sweep.measure_round import measure_round
from benchmarker.sweep.prepare_host import PREPARE_HOST
from benchmarker.sweep.request import SweepRequest
from benchmarker.sweep.sweep_plan import Schedule, Task
from benchmarker.sweep.sweep_state import RUN, Equipment, Progress, Sweep

CPUS = Path("/sys/devices/system/cpu")
CARD_FIELDS = ("device.index:", "device.uuid:", "variables.CUDA_VISIBLE_DEVICES:", "variables.HIP_VISIBLE_DEVICES:")
"""Differences between equal cards of a host."""


def look_for(job: Job) -> str | None:
    """Check that a job's model exists; return its hub commit if it has one."""
    return workload_of(job.workload).look_for(job)


@dataclass(frozen=True)
class Tools:
    """Commands and functions that a sweep uses; tests replace them by faster ones."""

    run: tuple[str, ...] = RUN
    """Command that starts a child, before its arguments."""
    prepare_host: tuple[str, ...] = PREPARE_HOST
    """Command that prints a host's environment and prepares its checkpoints, before its arguments."""
    find_monitor: Callable[[Environment], Monitor | None] = find_monitor
    watch_host: Callable[[int], HostGauge] | None = HostGauge
    look_for: Callable[[Job], str | None] = look_for


@dataclass(frozen=True)
class Worker:
    """Address of a worker."""

    name: str | None
    """`local:1` or `node3/0`; None for the children of this process."""
    host: str
    slot: int = 0
    slots: int = 1
    card: str | None = None
    """Identity of its card, as `card_of` names it. None on Ray, which assigns a card to each task."""

    def line(self, text: str) -> str:
        """Return a line that this worker printed, with its name."""
        return f"{self.name} | {text}" if self.name else text


@dataclass(frozen=True)
class Round:
    """Work: the missing tasks of a round."""

    number: int
    tasks: tuple[Task, ...] = field(compare=False)
    is_bound: bool = False
    """True if only the worker with this card may measure it, because it measured the rest of the round."""
    card: str | None = None

    def __str__(self) -> str:
        return f"round {self.number + 1}"


Work = Round | Judgement


@dataclass(frozen=True)
class Line:
    worker: Worker
    text: str


@dataclass(frozen=True)
class Ended:
    """Work that ended, in one of these ways."""

    worker: Worker
    work: Work
    lost: str | None = None
    """Cause of the worker's death, after which the work is done again. None if it did not die."""
    unfit: str | None = None
    """Reason for which the worker can measure nothing of this sweep; the work goes to another one."""
    error: BaseException | None = None


@dataclass(frozen=True)
class Session:
    sweep: Sweep
    progress: Progress
    schedule: Schedule


class Pool(Protocol):
    """The workers of a sweep."""

    def prepare(self, request: SweepRequest, print_line: Callable[[str], None]) -> tuple[Environment, str | None]:
        """Check the device, prepare the checkpoints, and return the environment and the model's hub commit."""

    def begin(self, session: Session) -> None:
        """Take the values that all work of the sweep needs. Called once, before `start`."""

    def workers(self) -> Sequence[Worker]:
        """Return the present workers that are ready: a cluster loses and gains hosts."""

    def is_preparing(self) -> bool:
        """Return True while a host is being prepared, whose workers are not ready yet."""

    def start(self, worker: Worker, work: Work, *, shares_host: bool) -> None:
        """Give work to an idle worker.

        Args:
            shares_host: Whether other workers of its host measure at the same time.
        """

    def events(self, timeout_s: float) -> list[Line | Ended]:
        """Return new lines and ended work, after a wait that ends early with the first of them."""

    def stop(self) -> None:
        """End everything that is running."""


def check_devices(jobs: Iterable[Job]) -> None:
    """Refuse jobs with a device of their own or with several, because `--places` gives each worker one card."""
    for job in jobs:
        if job.gpus > 1:
            raise SpecError(
                f"{job.variant.name}: runs on {job.gpus} GPUs at once, and a worker has one; leave --places out"
            )
        if ":" in job.device:
            raise SpecError(f"--device {job.device}: --places selects the cards; leave --device out")


def why_unlike(jobs: Iterable[Job], environment: Environment) -> str | None:
    """Return the differences to the environment of the first worker; None if results do not depend on any."""
    for job in jobs:
        origin = job.origin
        if origin is None or tuple(cell_keys(job, environment)) == origin.keys:
            continue
        changes = [
            change for change in changed_fields(origin.environment, environment) if not change.startswith(CARD_FIELDS)
        ]
        return "; ".join((changes or changed_files(job) or ["the model's files or benchmarker differ"])[:3])
    return None


def do(session: Session, equipment: Equipment, worker: Worker, work: Work) -> Ended:
    try:
        if isinstance(work, Judgement):
            judge(session.sweep, session.progress, equipment, work)
        else:
            measure_round(session.sweep, session.progress, equipment, work.tasks, session.schedule)
    except StoppedError:
        return Ended(worker, work, lost="it was stopped")
    except BaseException as error:  # noqa: BLE001  # the loop raises it in the main thread
        return Ended(worker, work, error=error)
    return Ended(worker, work)


def own_cores(slot: int, slots: int) -> tuple[int, ...]:
    """Return a worker's share of this process's cores; none if they cannot be shared out."""
    if not hasattr(os, "sched_setaffinity"):
        return ()
    return share_of(sorted(os.sched_getaffinity(0)), slot, slots)


def topology(core: int) -> tuple[int, ...]:
    folder = CPUS / f"cpu{core}" / "topology"
    return _number(folder / "physical_package_id"), _number(folder / "core_id"), core


def share_of(
    cores: Sequence[int], slot: int, slots: int, *, order: Callable[[int], tuple[int, ...]] = topology
) -> tuple[int, ...]:
    """Return the cores of one of several workers, all with equally many; none if there are fewer cores than workers.

    Cores of one socket, and the two threads of one core, stay together. GPUs are numbered by socket on most hosts, so
    that share i of n is also near GPU i.
    """
    each = len(cores) // slots
    return tuple(sorted(cores, key=order)[slot * each : (slot + 1) * each])


def _number(path: Path) -> int:
    with contextlib.suppress(OSError, ValueError):
        return int(path.read_text())
    return 0
