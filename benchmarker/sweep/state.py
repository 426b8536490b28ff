"""What stays the same over a sweep, and what it has learned so far."""

from __future__ import annotations

import secrets
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarker.core.formatting import slug
from benchmarker.execution.job_file import job_path
from benchmarker.hardware.host_load import HostGauge
from benchmarker.hardware.monitor import Monitor
from benchmarker.schema.environment import Environment
from benchmarker.schema.job import Job, Part
from benchmarker.schema.record import RunRecord
from benchmarker.schema.record_io import UNFINISHED
from benchmarker.schema.registry import workload_of
from benchmarker.sweep.child_process import StartedAnew, Starter
from benchmarker.sweep.folder import SweepFile
from benchmarker.sweep.live_table import LiveTable
from benchmarker.sweep.request import Settings, SweepRequest
from benchmarker.sweep.retries import Fault

if TYPE_CHECKING:
    from benchmarker.workloads.base import Workload

RUN = (sys.executable, "-m", "benchmarker.run")
REPORT = (sys.executable, "-m", "benchmarker", "report")
CELL_LIMIT_S = 1800.0
"""Before it is known how long a cell takes: compiling for a new shape can take minutes."""
LEAST_CELL_LIMIT_S = 120.0
CELL_LIMIT_FACTOR = 10


LEAST_TIMED = 6
"""Cells after which it can be said that the host is busy throughout."""


@dataclass(frozen=True)
class SweepContext:
    """What a sweep is to measure, where and how: it does not change while the sweep runs."""

    request: SweepRequest
    settings: Settings
    environment: Environment
    folder: Path
    monitor: Monitor | None
    deadline_s: float | None
    """When the sweep has to end, on the monotonic clock; None for no limit."""
    sweep: SweepFile
    """The sweep as it is written in the folder."""
    jobs: Mapping[str, Job]
    """Each variant's job, by the name that the tables show."""
    run: tuple[str, ...] = RUN
    """Command that starts a child, before its arguments."""
    report: tuple[str, ...] = REPORT
    """Command that draws the report, before its arguments."""
    starter: Starter = field(default_factory=StartedAnew)
    """Starts the children."""
    place: str | None = None
    """Name of the place, in a sweep over several; None otherwise."""
    watch_host: Callable[[int], HostGauge] | None = None
    """Watches what else runs beside a child, by its process number; None where nobody does."""
    added_until_s: float | None = None
    """When no more rounds are added, on the monotonic clock; None for no limit."""
    beside: int = 0
    """How many other places of this host measure meanwhile."""

    def job(self, variant: str) -> Job:
        return self.jobs[variant]

    @property
    def workload(self) -> Workload:
        """What all of the jobs measure."""
        return workload_of(next(iter(self.jobs.values())).workload)

    def points(self, variant: str) -> list[Any]:
        return list(self.job(variant).grid.points())

    def keys(self) -> dict[str, list[str]]:
        """The keys of each variant's cells, by position in the grid."""
        return {name: list(job.origin.keys) for name, job in self.jobs.items() if job.origin}

    def record_path(self, variant: str, round_number: int) -> Path:
        """A path for a new record, which no other attempt has."""
        return self.folder / f"{slug(variant)}-round{round_number + 1}-{now_id()}.json"

    def command(
        self, variant: str, round_number: int, cells: Sequence[int], record: Path, *, profile: bool
    ) -> list[str]:
        """The command that starts a child which times these cells."""
        part = Part(
            record=record,
            sweep=self.sweep.started_at,
            round=round_number,
            cells=tuple(cells),
            only="timing",
            profile=profile,
            place=self.place,
        )
        return self._command(variant, part)

    def quality_path(self, variant: str) -> Path:
        """The path of a temporary record; the next sweep removes one that is left over."""
        return self.folder / f".{slug(variant)}-quality-{now_id()}{UNFINISHED}"

    def quality_command(self, variant: str, record: Path) -> list[str]:
        """The command that starts a child which measures quality and times nothing."""
        return self._command(variant, Part(record=record, sweep=self.sweep.started_at, only="quality"))

    def alone(self, variant: str, point: Any = None) -> str:
        """The command that measures one cell, or the whole variant, without a sweep."""
        arguments = self.workload.point_arguments(point) if point else []
        return f"{self.job(variant).reproduce} {shlex.join(arguments)}".strip()

    def _command(self, variant: str, part: Part) -> list[str]:
        job = str(job_path(self.folder, variant))
        return [*self.run, "--job", job, "--part", part.model_dump_json(), *self.request.display]


@dataclass
class SweepState:
    """What a sweep has learned so far; it changes while the sweep runs."""

    live_table: LiveTable
    given_up: dict[tuple[str, int], Fault] = field(default_factory=dict)
    """Cells by variant and position that are not tried again in later rounds."""
    cell_s: dict[tuple[str, int], float] = field(default_factory=dict)
    """Longest time of each cell, warm-up included."""
    records: list[RunRecord] = field(default_factory=list)
    """The children's records, from which the record of one that died takes what only a child can tell of a cell."""
    profiled: set[str] = field(default_factory=set)
    """Variants that have a profile, or were asked for one: one is enough."""
    failures: list[Failure] = field(default_factory=list)
    timed: int = 0
    """Cells whose time counts, or would."""
    disturbed: int = 0
    """Those of the timed cells beside which other programs ran."""
    is_unwatched: bool = False
    """Whether the user knows that the board cannot be read any more."""
    out_of_time: bool = False
    """Whether the time for the whole sweep was up before its end."""

    @property
    def is_host_busy(self) -> bool:
        """Whether other programs run all the time: then measuring again helps nobody."""
        return self.timed >= LEAST_TIMED and self.disturbed > self.timed / 2

    def cell_limit_s(self, settings: Settings, variant: str, position: int) -> float:
        """How long a cell may take."""
        if settings.cell_timeout_s is not None:
            return settings.cell_timeout_s
        known_s = self.cell_s.get((variant, position))
        return CELL_LIMIT_S if known_s is None else max(LEAST_CELL_LIMIT_S, CELL_LIMIT_FACTOR * known_s)


@dataclass(frozen=True)
class Failure:
    """One thing that failed, for the last lines."""

    what: str
    """Variant, round and cell."""
    fault: Fault
    log: Path
    tail: tuple[str, ...]
    alone: str
    """The command that repeats it by itself."""


def now_id() -> str:
    """Sorts by time, and is never the same twice."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
