"""State of a sweep that its workers share: jobs and settings, progress with the live table, and their equipment.

A sweep can be pickled: a Ray worker receives a copy of it.
"""

from __future__ import annotations

import secrets
import shlex
import statistics
import sys
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarker.core.errors import CellStatus
from benchmarker.core.formatting import seconds, significant
from benchmarker.core.tables import Column, Sheet, to_text
from benchmarker.schema.record import CellBase, Environment, Missing, RunRecord, median_latency_s, status_words
from benchmarker.schema.registry import workload_of

if TYPE_CHECKING:
    from benchmarker.hardware.monitor import HostGauge, Monitor
    from benchmarker.schema.job import Job
    from benchmarker.sweep.child import SweepInterruption
    from benchmarker.sweep.fork_server import Starter
    from benchmarker.sweep.request import Settings
    from benchmarker.sweep.sweep_plan import Schedule
    from benchmarker.workloads.base import Workload

RUN = (sys.executable, "-m", "benchmarker.run")
LAST_CELLS = 6
"""Number of latest cells. The host is busy if other programs disturbed more than half of these cells."""
_PROFILES = threading.Lock()


@dataclass(frozen=True)
class Sweep:
    jobs: Mapping[str, Job]
    folder: Path
    started_at: str
    """Start of the sweep, which identifies it in its records."""
    settings: Settings
    progress: Progress
    schedule: Schedule
    display: tuple[str, ...] = ()
    run: tuple[str, ...] = RUN

    @property
    def workload(self) -> Workload:
        return workload_of(next(iter(self.jobs.values())).workload)

    def points(self, variant: str) -> list[Any]:
        return list(self.jobs[variant].grid.points())

    def alone(self, variant: str, point: Any = None) -> str:
        """Return the command that measures one cell, or the entire variant, without a sweep."""
        arguments = self.workload.point_arguments(point) if point else []
        return f"{self.jobs[variant].reproduce} {shlex.join(arguments)}".strip()


@dataclass(frozen=True)
class Failure:
    name: str
    fault: Missing
    log: Path
    tail: tuple[str, ...]
    alone: str
    """Command that repeats the measurement outside the sweep."""


class LiveTable:
    """Headline metric by variant and cell: the median over the rounds so far, or the last failure."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.rates: dict[tuple[str, int], list[float]] = defaultdict(list)
        self.failures: dict[tuple[str, int], CellStatus] = {}

    def add(self, variant: str, position: int, cell: CellBase) -> None:
        if (rate := median_rate(self.workload, cell)) is not None:
            self.rates[variant, position].append(rate)

    def text(self, variants: Sequence[str], points: Sequence[Any], width: int, *, running: Sequence[str] = ()) -> str:
        columns = [Column(self.workload.rate_unit, str, "left")]
        for position, point in enumerate(points):
            columns.append(Column(self.workload.point_text(point), partial(self._cell_text, position, running)))
        return to_text([Sheet("", columns, variants)], width)

    def _cell_text(self, position: int, running: Sequence[str], variant: str) -> str:
        rates, failure = self.rates.get((variant, position)), self.failures.get((variant, position))
        text = significant(statistics.median(rates)) if rates else status_words(failure) if failure else ""
        return " ".join(filter(None, [text, "…" * (variant in running)])) or "·"


def cell_line(workload: Workload, point: Any, cell: CellBase) -> str:
    """Return `26 x 50: 0.1525 s, 327.9 tok/s`, or the status of a cell without a rate."""
    name, rate = workload.point_text(point), median_rate(workload, cell)
    if rate is None:
        return f"{name}: {status_words(cell.status)}"
    return f"{name}: {seconds(median_latency_s(cell))}, {significant(rate)} {workload.rate_unit}"


def median_rate(workload: Workload, cell: CellBase) -> float | None:
    if cell.status != "ok":
        return None
    rates = [rate for sample in cell.samples if (rate := workload.rate(cell, sample)) is not None]
    return statistics.median(rates) if rates else None


@dataclass
class Progress:
    """Results, failures and cell times of a sweep so far. The workers of one process share it."""

    live_table: LiveTable
    given_up: dict[tuple[str, int], Missing] = field(default_factory=dict)
    """Cells by variant and position that are not tried again in later rounds."""
    cell_s: dict[tuple[str, int], float] = field(default_factory=dict)
    profiled: set[str] = field(default_factory=set)
    """Variants that have a profile or that a child is profiling. Each variant needs one profile."""
    failures: list[Failure] = field(default_factory=list)
    records: list[RunRecord] = field(default_factory=list)
    """Records of the children. They supply facts for the record of a child that died before it determined them."""
    disturbed: deque[bool] = field(default_factory=lambda: deque(maxlen=LAST_CELLS))
    """True for each of the latest cells that other programs disturbed."""
    left_out: dict[tuple[str, int, int], str] = field(default_factory=dict)
    """Cause by variant, position and round of cells without a value because all tries were disturbed."""

    @property
    def is_host_busy(self) -> bool:
        return len(self.disturbed) == LAST_CELLS and sum(self.disturbed) > LAST_CELLS / 2

    def claim_profile(self, variant: str) -> bool:
        """Return True if the variant has no profile. The caller has to make it, and it counts as made from now on."""
        with _PROFILES:
            is_missing = variant not in self.profiled
            self.profiled.add(variant)
            return is_missing

    def learn(self, remote: Progress, folder: Path) -> None:
        """Add the progress of a remote process, whose logs have been copied to `folder`."""
        self.given_up |= remote.given_up
        self.cell_s |= remote.cell_s
        self.left_out |= remote.left_out
        self.failures += [replace(failure, log=folder / failure.log.name) for failure in remote.failures]
        self.live_table.failures |= remote.live_table.failures
        for cell, rates in remote.live_table.rates.items():
            self.live_table.rates[cell] += rates


@dataclass
class Equipment:
    name: str | None
    """Name of the worker in the records, as `local:1`; None for the children of the sweep's own process."""
    environment: Environment
    monitor: Monitor | None
    watch_host: Callable[[int], HostGauge] | None
    starter: Starter
    print_line: Callable[[str], None]
    stop: SweepInterruption
    shares_host: bool = False
    """True if other workers of the host measure at the same time."""
    is_unwatched: bool = False
    """True after the message that the GPU can no longer be read."""

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Watch the GPU, and close the starter of processes at the end."""
        with closing(self.starter), self.monitor.running() if self.monitor else nullcontext():
            yield


def now_id() -> str:
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
