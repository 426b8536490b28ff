"""One child process of a sweep, from its command to its record."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime

from benchmarker.core.console import Terminal
from benchmarker.core.errors import ResultsError
from benchmarker.execution.make_job import blank_record
from benchmarker.hardware.host_load import HostGauge, why_disturbed
from benchmarker.hardware.monitor import is_shared, why_invalid
from benchmarker.schema.record import CellBase, Flag, RunRecord
from benchmarker.schema.record_io import read_record, write_record
from benchmarker.sweep.cell_text import cell_line
from benchmarker.sweep.child import Ended, Phase, SweepTimeoutError, Watch, run_child
from benchmarker.sweep.child_log import TAIL_LINES, CappedLog
from benchmarker.sweep.retries import Decision, Fault
from benchmarker.sweep.state import SweepContext, SweepState

BROKEN = ".broken"
ENERGY_S = 300.0
"""Two times three windows of at least ten seconds, and a graph to be compiled anew for each."""
HIDDEN = ("  run ", "error: ")
"""Beginnings of a child's lines that a sweep says more shortly."""


class Attempt:
    """One child, from its command to its record."""

    def __init__(
        self,
        context: SweepContext,
        state: SweepState,
        terminal: Terminal,
        *,
        variant: str,
        round_number: int,
        cells: Sequence[int],
    ) -> None:
        self.context, self.state, self.terminal = context, state, terminal
        self.variant, self.round, self.cells = variant, round_number, tuple(cells)
        self.path = context.record_path(variant, round_number)
        self.watch = Watch(self.path, len(self.cells))
        self.log = CappedLog(self.path.with_suffix(".log"))
        self.is_last = False
        """Whether cells beside which others ran are kept and flagged, because they are not measured again."""
        self._host: HostGauge | None = None
        self._told = 0
        self._started = datetime.now(UTC)
        self._since = time.monotonic()

    def run(self) -> tuple[Ended, str | None]:
        """Run the child; how it ended, and why its record cannot be read, if it cannot.

        Raises:
            KeyboardInterrupt: Ctrl-C; what the child finished is saved.
            SweepTimeoutError: The sweep's time is up; likewise.
        """
        wants_profile = self.variant not in self.state.profiled
        self.state.profiled.add(self.variant)
        command = self.context.command(self.variant, self.round, self.cells, self.path, profile=wants_profile)
        try:
            ended = run_child(
                command,
                starter=self.context.starter,
                round_number=self.round,
                watch=self.watch,
                log=self.log,
                limit_s=self._limit_s,
                deadline_s=self.context.deadline_s,
                step=self._show,
                begun=self._watch_host,
            )
        except (KeyboardInterrupt, SweepTimeoutError):
            self._close_interrupted()
            raise
        if self.log.problem:
            self.terminal.line(f"  {self.log.problem}")
        return ended, self._set_aside_if_broken()

    @property
    def tail(self) -> tuple[str, ...]:
        """The last lines that the child printed."""
        return self.log.last_lines(TAIL_LINES)

    @property
    def record(self) -> RunRecord | None:
        return self.watch.record

    @property
    def finished(self) -> tuple[CellBase, ...]:
        return self.record.cells if self.record else ()

    def settle(self, decision: Decision, fault: Fault | None) -> None:
        """Complete the record with what the child could not write.

        Raises:
            ResultsError: It cannot be saved.
        """
        before = self.record or self._blank()
        cells = tuple(self._beside_others(self._under_conditions(cell)) for cell in before.cells)
        failed = [self._failed_cell(position, why) for position, why in decision.failed.items()]
        changes: dict[str, object] = {"cells": (*cells, *(cell for cell in failed if cell))}
        if fault:
            changes |= {"status": "failed", "error_kind": fault.kind, "reason": fault.reason}
        after = before.model_copy(update=changes)
        if self.record is None or after != before:
            write_record(after, self.path)
        self.watch.record = after
        self.state.records.append(after)

    def _blank(self) -> RunRecord:
        job = self.context.job(self.variant)
        blank = blank_record(job, self.context.environment, run_id=self.path.stem, started=self._started)
        part = {"round": self.round, "sweep": self.context.sweep.started_at, "place": self.context.place}
        return blank.model_copy(update=part)

    def _failed_cell(self, position: int, fault: Fault) -> CellBase | None:
        """None as long as no child has told what only a child can tell of the cell."""
        context, point = self.context, self.context.points(self.variant)[position]
        records = [*self.state.records, *([self.record] if self.record else [])]
        fields = context.workload.cell_fields(context.job(self.variant), point, records)
        if fields is None:
            return None
        cell: CellBase = context.workload.cell_class(
            **fields, status=fault.status, error_kind=fault.kind, reason=fault.reason
        )
        return cell

    def _watch_host(self, process: int) -> None:
        if self.context.watch_host:
            self._host = self.context.watch_host(process)
            self._host.read()

    def _beside_others(self, cell: CellBase) -> CellBase:
        """The cell with what else ran on its cores: seen from outside, and never judged by its time."""
        if self._host is None or cell.timed_at is None or cell.host_load:
            return cell
        load = self._host.between(*cell.timed_at)
        if load is None:
            return cell
        changes: dict[str, object] = {"host_load": load}
        if cell.status == "ok":
            why = why_disturbed(load)
            self.state.timed += 1
            self.state.disturbed += why is not None
            if why and (self.is_last or self.state.is_host_busy):
                changes["flags"] = (*cell.flags, "disturbed")
            elif why:
                changes |= {"status": "invalid", "error_kind": "disturbed", "reason": why}
        return cell.model_copy(update=changes)

    def _under_conditions(self, cell: CellBase) -> CellBase:
        """The cell with how board and host were meanwhile, which may make it invalid."""
        if self.context.beside and "shared_host" not in cell.flags:
            cell = cell.model_copy(update={"flags": (*cell.flags, "shared_host")})
        if cell.timed_at is None or self.context.monitor is None or cell.conditions:
            return cell
        conditions = self.context.monitor.between(*cell.timed_at)
        if conditions is None:
            return cell
        flags: list[Flag] = []
        if conditions.throttled_by is None:
            flags.append("throttling_unknown")
        elif "power_cap" in conditions.throttled_by:
            flags.append("power_limited")
        own_processes = self.context.workload.processes(self.context.job(self.variant))
        if is_shared(conditions, own_processes=own_processes):
            flags.append("shared_device")
        changes: dict[str, object] = {"conditions": conditions, "flags": (*cell.flags, *flags)}
        invalid = why_invalid(conditions, own_processes=own_processes, allow_shared=self.context.settings.allow_shared)
        if cell.status == "ok" and invalid:
            changes |= dict(zip(("status", "error_kind", "reason"), ("invalid", *invalid), strict=True))
        return cell.model_copy(update=changes)

    def _limit_s(self, phase: Phase) -> float:
        if phase == "load":
            return self.context.settings.load_timeout_s
        # What follows the cells is a profile, of no more than another cell's length but with much to write.
        position = self.cells[min(len(self.finished), len(self.cells) - 1)]
        limit_s = self.state.cell_limit_s(self.context.settings, self.variant, position)
        return limit_s + ENERGY_S if phase == "end" and self.context.job(self.variant).procedure.energy else limit_s

    def _show(self, lines: Sequence[str]) -> None:
        """Print what is new, learn how long cells take, and read what else runs."""
        if self._host:
            self._host.read()
        for line in lines:
            if not line.startswith((*HIDDEN, f"{self.variant}: ", self.context.workload.cell_opening)):
                self.terminal.line(f"  {line}")
        monitor = self.context.monitor
        if monitor and monitor.problem and not self.state.is_unwatched:
            self.terminal.line(f"  {monitor.problem}")
            self.state.is_unwatched = True
        if self._told == 0 and self.watch.phase == "load":
            self._since = time.monotonic()
        points = self.context.points(self.variant)
        for position, cell in list(zip(self.cells, self.finished, strict=False))[self._told :]:
            self.terminal.line(f"  {cell_line(self.context.workload, points[position], cell)}")
            now = time.monotonic()
            known_s = self.state.cell_s.get((self.variant, position), 0.0)
            self.state.cell_s[self.variant, position] = max(known_s, now - self._since)
            self._since, self._told = now, self._told + 1

    def _set_aside_if_broken(self) -> str | None:
        """Why the record on disk cannot be read; it is put aside, and a new one takes its place."""
        if not self.path.exists():
            return None
        try:
            read_record(self.path)
        except ResultsError as error:
            self.path.rename(self.path.with_name(self.path.name + BROKEN))
            return str(error)
        return None

    def _close_interrupted(self) -> None:
        """Add how the board was, and say for a child that had no time to that it was stopped."""
        if self.record is None:
            return
        changes: dict[str, object] = {"cells": tuple(self._under_conditions(cell) for cell in self.record.cells)}
        if self.record.status == "running":
            changes["status"] = "interrupted"
        after = self.record.model_copy(update=changes)
        if after != self.record:
            write_record(after, self.path)
