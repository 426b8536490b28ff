"""Values that a measuring worker needs: the sweep's fixed part, its progress, and the worker's equipment.

A sweep and its progress can be pickled: a Ray worker receives copies of them.
"""

from __future__ import annotations

import secrets
import shlex
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarker.core.formatting import slug
from benchmarker.execution.job_file import job_path
from benchmarker.schema.record_io import UNFINISHED
from benchmarker.schema.registry import workload_of
from benchmarker.sweep.child import Stop

if TYPE_CHECKING:
    from benchmarker.hardware.monitor import HostGauge, Monitor
    from benchmarker.schema.job import Job, Part
    from benchmarker.schema.record import Environment, RunRecord
    from benchmarker.sweep.live_table import LiveTable
    from benchmarker.sweep.request import Settings
    from benchmarker.sweep.retries import Fault
    from benchmarker.sweep.starter import Starter
    from benchmarker.workloads.base import Workload

RUN = (sys.executable, "-m", "benchmarker.run")
CELL_LIMIT_S = 1800.0
"""Limit for a cell of unknown duration: compiling for a new shape can take minutes."""
MIN_CELL_LIMIT_S = 120.0
CELL_LIMIT_FACTOR = 10
MIN_TIMED = 6
"""Cells after which the host can be judged to be busy throughout."""


@dataclass(frozen=True)
class Sweep:
    """Fixed part of a sweep."""

    jobs: Mapping[str, Job]
    folder: Path
    started_at: str
    """Identity of the sweep in its records."""
    settings: Settings
    display: tuple[str, ...] = ()
    """Options that control how much every run prints."""
    run: tuple[str, ...] = RUN
    """Command that starts a child, before its arguments."""

    @property
    def workload(self) -> Workload:
        return workload_of(next(iter(self.jobs.values())).workload)

    def points(self, variant: str) -> list[Any]:
        return list(self.jobs[variant].grid.points())

    def keys(self) -> dict[str, list[str]]:
        """Return the keys of each variant's cells, by position in the grid."""
        return {name: list(job.origin.keys) for name, job in self.jobs.items() if job.origin}

    def record_path(self, variant: str, round_number: int) -> Path:
        """Return a new path for a record."""
        return self.folder / f"{slug(variant)}-round{round_number + 1}-{now_id()}.json"

    def quality_path(self, variant: str) -> Path:
        """Return the path of a temporary record; the next sweep removes one that is left over."""
        return self.folder / f".{slug(variant)}-quality-{now_id()}{UNFINISHED}"

    def command(self, variant: str, part: Part) -> list[str]:
        """Return the command that starts a child."""
        job = str(job_path(self.folder, variant))
        return [*self.run, "--job", job, "--part", part.model_dump_json(), *self.display]

    def alone(self, variant: str, point: Any = None) -> str:
        """Return the command that measures one cell, or the entire variant, without a sweep."""
        arguments = self.workload.point_arguments(point) if point else []
        return f"{self.jobs[variant].reproduce} {shlex.join(arguments)}".strip()


@dataclass(frozen=True)
class Failure:
    name: str
    fault: Fault
    log: Path
    tail: tuple[str, ...]
    alone: str
    """Command that repeats the measurement by itself."""


@dataclass
class Progress:
    """Knowledge that a sweep has gained so far. The workers of one process share it."""

    live_table: LiveTable
    given_up: dict[tuple[str, int], Fault] = field(default_factory=dict)
    """Cells by variant and position that are not tried again in later rounds."""
    cell_s: dict[tuple[str, int], float] = field(default_factory=dict)
    """Longest time of each cell, warm-up included."""
    profiled: set[str] = field(default_factory=set)
    """Variants that have a profile, or whose profile a child is making: one is enough."""
    failures: list[Failure] = field(default_factory=list)
    records: list[RunRecord] = field(default_factory=list)
    """Records of the children. A record of a dead child takes facts from them that only a child can determine."""
    timed: int = 0
    """Cells whose time was judged."""
    disturbed: int = 0
    """Timed cells during which other programs ran."""
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def is_host_busy(self) -> bool:
        """True if other programs run all the time, so that measuring again does not help."""
        return self.timed >= MIN_TIMED and self.disturbed > self.timed / 2

    def cell_limit_s(self, settings: Settings, variant: str, position: int) -> float:
        """Return the longest time that a cell may take."""
        if settings.cell_timeout_s is not None:
            return settings.cell_timeout_s
        longest_s = self.cell_s.get((variant, position))
        return CELL_LIMIT_S if longest_s is None else max(MIN_CELL_LIMIT_S, CELL_LIMIT_FACTOR * longest_s)

    def claim_profile(self, variant: str) -> bool:
        """Return True if the caller is to make the variant's profile, which then counts as made."""
        with self.lock:
            is_missing = variant not in self.profiled
            self.profiled.add(variant)
        return is_missing

    def for_remote(self, profiled: set[str]) -> Progress:
        """Return a copy for another process, which makes the profiles that are missing in `profiled`."""
        return replace(self, profiled=profiled, failures=[], timed=0, disturbed=0)

    def learn(self, remote: Progress, profiled: set[str], folder: Path) -> None:
        """Take in the progress of another process.

        Args:
            profiled: Variants whose profile the other process did not make.
            folder: Folder that holds its logs now.
        """
        self.given_up |= remote.given_up
        self.cell_s |= remote.cell_s
        self.profiled |= remote.profiled - profiled
        self.failures += [replace(failure, log=folder / failure.log.name) for failure in remote.failures]

    def __getstate__(self) -> dict[str, Any]:
        # A lock cannot be pickled. The live table is for this process's terminal, and records travel as files.
        return {**self.__dict__, "lock": None, "live_table": None, "records": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state | {"lock": threading.Lock()})


@dataclass
class Equipment:
    """One worker's device and everything that watches it."""

    name: str | None
    """Name of the worker in the records, as `local:1`; None for the children of the sweep's own process."""
    environment: Environment
    monitor: Monitor | None
    watch_host: Callable[[int], HostGauge] | None
    """Watches other programs during a child, by its process number; None without a watch."""
    starter: Starter
    print_line: Callable[[str], None]
    stop: Stop = field(default_factory=Stop)
    shares_host: bool = False
    """True if other workers of the host measure at the same time."""
    is_unwatched: bool = False
    """True after the message that the GPU can no longer be read."""


def now_id() -> str:
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
