"""One child of a sweep, from its command to its completed record."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from benchmarker.core.errors import ResultsError
from benchmarker.execution.make_job import blank_record
from benchmarker.hardware.monitor import HostGauge, is_shared, why_disturbed, why_invalid
from benchmarker.schema.job import Part
from benchmarker.schema.record import CellBase, Flag, RunRecord
from benchmarker.schema.record_io import OrderLine, append_order, read_record, write_record
from benchmarker.sweep.child import CappedLog, ChildEnd, Phase, StoppedError, Watch, run_child
from benchmarker.sweep.live_table import cell_line

if TYPE_CHECKING:
    from benchmarker.sweep.retries import Decision, Fault
    from benchmarker.sweep.sweep_state import Equipment, Progress, Sweep

BROKEN = ".broken"
ENERGY_S = 300.0
"""Two times three windows of at least ten seconds, with a graph compiled for each."""
HIDDEN = ("  run ", "error: ")
"""Beginnings of a child's lines that a sweep prints in a shorter form."""


class Attempt:
    """One child that times cells of one variant."""

    def __init__(
        self,
        sweep: Sweep,
        progress: Progress,
        equipment: Equipment,
        *,
        variant: str,
        round_number: int,
        cells: Sequence[int],
    ) -> None:
        self.sweep, self.progress, self.equipment = sweep, progress, equipment
        self.variant, self.round, self.cells = variant, round_number, tuple(cells)
        self.path = sweep.record_path(variant, round_number)
        self.watch = Watch(self.path, len(self.cells))
        self.log = CappedLog(self.path.with_suffix(".log"))
        self.is_last = False
        """True if disturbed cells are kept and flagged, because they are not measured again."""
        self._host: HostGauge | None = None
        self._pid = 0
        self._shown = 0
        self._started = datetime.now(UTC)
        self._since = time.monotonic()

    def run(self) -> tuple[ChildEnd, str | None]:
        """Run the child; return how it ended, and the reason if its record cannot be read."""
        device, started = self.equipment.environment.device, time.time()
        part = Part(
            record=self.path,
            sweep=self.sweep.started_at,
            round=self.round,
            cells=self.cells,
            only="timing",
            profile=self.progress.claim_profile(self.variant),
            place=self.equipment.name,
        )
        try:
            end = run_child(
                self.sweep.command(self.variant, part),
                starter=self.equipment.starter,
                round_number=self.round,
                watch=self.watch,
                log=self.log,
                stop=self.equipment.stop,
                limit_s=self._limit_s,
                step=self._show,
                begun=self._begin,
            )
        except (KeyboardInterrupt, StoppedError):
            self._close_interrupted()
            raise
        line = OrderLine(
            round=self.round,
            variant=self.variant,
            pid=self._pid,
            start=started,
            end=time.time(),
            worker=self.equipment.name,
            device=device.uuid or device.name,
        )
        append_order(self.sweep.folder, line)
        if self.log.problem:
            self.equipment.print_line(f"  {self.log.problem}")
        return end, self._set_aside_if_broken()

    @property
    def record(self) -> RunRecord | None:
        return self.watch.record

    @property
    def finished(self) -> tuple[CellBase, ...]:
        return self.record.cells if self.record else ()

    def settle(self, decision: Decision, fault: Fault | None) -> None:
        """Complete the record with the facts that the child could not write; raises ResultsError."""
        before = self.record or self._blank()
        cells = tuple(self._with_host_load(self._with_conditions(cell)) for cell in before.cells)
        failed = [self._failed_cell(position, reason) for position, reason in decision.failed.items()]
        changes: dict[str, object] = {"cells": (*cells, *(cell for cell in failed if cell))}
        if fault:
            changes |= {"status": "failed", "error_kind": fault.kind, "reason": fault.reason}
        after = before.model_copy(update=changes)
        if self.record is None or after != before:
            write_record(after, self.path)
        self.watch.record = after
        self.progress.records.append(after)

    def _blank(self) -> RunRecord:
        job = self.sweep.jobs[self.variant]
        blank = blank_record(job, self.equipment.environment, run_id=self.path.stem, started=self._started)
        part = {"round": self.round, "sweep": self.sweep.started_at, "place": self.equipment.name}
        return blank.model_copy(update=part)

    def _failed_cell(self, position: int, fault: Fault) -> CellBase | None:
        """Return a cell without samples; None while facts of it are unknown that only a child can determine."""
        workload, point = self.sweep.workload, self.sweep.points(self.variant)[position]
        records = [*self.progress.records, *([self.record] if self.record else [])]
        fields = workload.cell_fields(self.sweep.jobs[self.variant], point, records)
        if fields is None:
            return None
        cell: CellBase = workload.cell_class(**fields, status=fault.status, error_kind=fault.kind, reason=fault.reason)
        return cell

    def _begin(self, pid: int) -> None:
        self._pid = pid
        if self.equipment.watch_host:
            self._host = self.equipment.watch_host(pid)
            self._host.read()

    def _with_host_load(self, cell: CellBase) -> CellBase:
        """Return the cell with the load of other programs on its cores. The cell's time plays no part in this."""
        if self._host is None or cell.timed_at is None or cell.host_load:
            return cell
        load = self._host.between(*cell.timed_at)
        if load is None:
            return cell
        changes: dict[str, object] = {"host_load": load}
        if cell.status == "ok":
            reason = why_disturbed(load)
            self.progress.timed += 1
            self.progress.disturbed += reason is not None
            if reason and (self.is_last or self.progress.is_host_busy):
                changes["flags"] = (*cell.flags, "disturbed")
            elif reason:
                changes |= {"status": "invalid", "error_kind": "disturbed", "reason": reason}
        return cell.model_copy(update=changes)

    def _with_conditions(self, cell: CellBase) -> CellBase:
        """Return the cell with the state of the GPU during it, which may make it invalid."""
        if self.equipment.shares_host and "shared_host" not in cell.flags:
            cell = cell.model_copy(update={"flags": (*cell.flags, "shared_host")})
        if cell.timed_at is None or self.equipment.monitor is None or cell.conditions:
            return cell
        conditions = self.equipment.monitor.between(*cell.timed_at)
        if conditions is None:
            return cell
        flags: list[Flag] = []
        if conditions.throttled_by is None:
            flags.append("throttling_unknown")
        elif "power_cap" in conditions.throttled_by:
            flags.append("power_limited")
        own_processes = self.sweep.jobs[self.variant].processes
        if is_shared(conditions, own_processes=own_processes):
            flags.append("shared_device")
        changes: dict[str, object] = {"conditions": conditions, "flags": (*cell.flags, *flags)}
        allow_shared = self.sweep.settings.allow_shared
        invalid = why_invalid(conditions, own_processes=own_processes, allow_shared=allow_shared)
        if cell.status == "ok" and invalid:
            changes |= dict(zip(("status", "error_kind", "reason"), ("invalid", *invalid), strict=True))
        return cell.model_copy(update=changes)

    def _limit_s(self, phase: Phase) -> float:
        if phase == "load":
            return self.sweep.settings.load_timeout_s
        # The profile after the cells takes no longer than another cell, but has much to write.
        position = self.cells[min(len(self.finished), len(self.cells) - 1)]
        limit_s = self.progress.cell_limit_s(self.sweep.settings, self.variant, position)
        return limit_s + ENERGY_S if phase == "end" and self.sweep.jobs[self.variant].procedure.energy else limit_s

    def _show(self, lines: Sequence[str]) -> None:
        """Print new lines and cells, learn how long cells take, and read the host's load."""
        if self._host:
            self._host.read()
        print_line, workload = self.equipment.print_line, self.sweep.workload
        for line in lines:
            if not line.startswith((*HIDDEN, f"{self.variant}: ", workload.cell_opening)):
                print_line(f"  {line}")
        monitor = self.equipment.monitor
        if monitor and monitor.problem and not self.equipment.is_unwatched:
            print_line(f"  {monitor.problem}")
            self.equipment.is_unwatched = True
        if self._shown == 0 and self.watch.phase == "load":
            self._since = time.monotonic()
        points = self.sweep.points(self.variant)
        for position, cell in list(zip(self.cells, self.finished, strict=False))[self._shown :]:
            print_line(f"  {cell_line(workload, points[position], cell)}")
            now = time.monotonic()
            longest_s = self.progress.cell_s.get((self.variant, position), 0.0)
            self.progress.cell_s[self.variant, position] = max(longest_s, now - self._since)
            self._since, self._shown = now, self._shown + 1

    def _set_aside_if_broken(self) -> str | None:
        if not self.path.exists():
            return None
        try:
            read_record(self.path)
        except ResultsError as error:
            self.path.rename(self.path.with_name(self.path.name + BROKEN))
            return str(error)
        return None

    def _close_interrupted(self) -> None:
        """Add the state of the GPU, and mark a record that its child had no time to mark as interrupted."""
        if self.record is None:
            return
        changes: dict[str, object] = {"cells": tuple(self._with_conditions(cell) for cell in self.record.cells)}
        if self.record.status == "running":
            changes["status"] = "interrupted"
        after = self.record.model_copy(update=changes)
        if after != self.record:
            write_record(after, self.path)
