"""One round on one worker: each variant in one or more child processes, until every cell is measured or has failed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from benchmarker.core.errors import ErrorKind
from benchmarker.core.formatting import slug
from benchmarker.execution.jobs import blank_record
from benchmarker.hardware.monitor import HostGauge, disturbance, why_disturbed, with_gpu_state, with_host_load
from benchmarker.schema.job import Part
from benchmarker.schema.record import CellBase, Missing, RunRecord, status_words
from benchmarker.schema.record_io import OrderLine, append_lines, write_json
from benchmarker.sweep import retries
from benchmarker.sweep.child import INTERRUPTIONS, Child, Phase
from benchmarker.sweep.retries import Decision, decide, fault_of, judge_cells
from benchmarker.sweep.sweep_plan import Task, without_given_up
from benchmarker.sweep.sweep_state import Equipment, Failure, Sweep, cell_line, now_id

CELL_LIMIT_S = 1800.0
"""Limit for a cell of unknown duration: compiling for a new shape can take minutes."""
MIN_CELL_LIMIT_S = 120.0
CELL_LIMIT_FACTOR = 10
ENERGY_S = 300.0
"""Additional limit for measuring energy: six windows of at least ten seconds, and two compilations."""


def measure_round(sweep: Sweep, equipment: Equipment, tasks: Sequence[Task]) -> None:
    given_up, schedule = sweep.progress.given_up, sweep.schedule
    for planned in tasks:
        for task in without_given_up([planned], given_up):
            equipment.print_line(schedule.begin(task, given_up))
            attempts = _measure_variant(sweep, equipment, task)
            schedule.learn(task, [(*attempt.span, attempt.record) for attempt in attempts if attempt.record])


def _measure_variant(sweep: Sweep, equipment: Equipment, task: Task) -> list[Attempt]:
    # Repetitions of each cell: `tries` after a fault, `reruns` because the cell was invalid.
    tries: Counter[int] = Counter()
    reruns: Counter[int] = Counter()
    attempts: list[Attempt] = []
    progress, pending = sweep.progress, task.cells
    while pending:
        attempt = Attempt(sweep, equipment, task, pending)
        attempts.append(attempt)
        fault = attempt.measure()
        is_measured = len(attempt.finished) == len(pending)
        decision = attempt.settle(fault, tries)
        again, lost = judge_cells(attempts, reruns)
        lost |= decision.failed if decision.is_final else {}
        for position, reason in lost.items():
            progress.live_table.failures[task.variant, position] = reason.status
            if reason.status != "invalid" or reason.error_kind in retries.LASTING:
                progress.given_up[task.variant, position] = reason
        progress.failures += attempt.failures(lost, after_cells=fault if is_measured else None)
        pending = tuple(sorted({*decision.pending, *again}))
        if again and equipment.monitor:
            equipment.monitor.cool_down(stopped=lambda: equipment.stop.requests > 0)
    for attempt in attempts:
        if (record := attempt.record) and record.profile and record.is_disturbed:
            last = record.cells[-1]
            attempt.save(record.model_copy(update=_no_profile(last.error_kind, last.reason)))
    return attempts


class Attempt(Child):
    def __init__(self, sweep: Sweep, equipment: Equipment, task: Task, cells: tuple[int, ...]) -> None:
        path = sweep.folder / f"{slug(task.variant)}-round{task.round + 1}-{now_id()}.json"
        super().__init__(sweep, equipment, task.variant, path, cells)
        self.progress, self.round = sweep.progress, task.round
        self._host: HostGauge | None = None
        self._pid = self._shown = 0
        self._started, self._since = datetime.now(UTC), time.monotonic()
        self._place: dict[str, Any] = {"round": task.round, "sweep": sweep.started_at, "place": equipment.name}
        self.measured: dict[int, CellBase] = {}
        """Cells that the child measured, by position, with the status after `_judged`."""
        self._has_claim = self.progress.claim_profile(self.variant)

    @property
    def finished(self) -> tuple[CellBase, ...]:
        return self.record.cells if self.record else ()

    def measure(self) -> Missing | None:
        """Run the child; return the reason if it ended before its work was complete."""
        device, started = self.equipment.environment.device, time.time()
        part = Part(record=self.path, cells=self.cells, only="timing", profile=self._has_claim, **self._place)
        try:
            end = self.run(part, round_number=self.round)
        except INTERRUPTIONS:
            if self.record:
                # The child had no time to set the status.
                status = "interrupted" if self.record.status == "running" else self.record.status
                cells = tuple(map(self._judged, self.record.cells))
                self.save(self.record.model_copy(update={"cells": cells, "status": status}))
            raise
        self.span = started, time.time()
        line = OrderLine(
            round=self.round,
            variant=self.variant,
            pid=self._pid,
            start=started,
            end=self.span[1],
            worker=self.equipment.name,
            device=device.uuid or device.name,
        )
        append_lines(self.sweep.folder, f"{line.model_dump_json()}\n".encode())
        if self.log.problem:
            self.equipment.print_line(f"  {self.log.problem}")
        if self.problem:
            self.path.rename(self.path.with_name(self.path.name + ".broken"))
        return fault_of(end, self.record, problem=self.problem, tail=self.log.last_lines)

    def settle(self, fault: Missing | None, tries: Counter[int]) -> Decision:
        """Decide which cells are tried again, count them in `tries`, and complete the record."""
        has_ended = self.phase == "end" or (self.record is not None and self.record.profile is not None)
        points, statuses = self.sweep.points(self.variant), [cell.status for cell in self.finished]
        workload, phase = self.sweep.workload, self.phase
        decision = decide(self.cells, statuses, fault, phase=phase, tries=tries, points=points, workload=workload)
        record = self._complete(decision, fault)
        is_disturbed = record.no_profile is not None and record.no_profile.error_kind == "disturbed"
        if self._has_claim and (not has_ended or is_disturbed or all(cell.status != "ok" for cell in record.cells)):
            # The next process makes the profile.
            self.progress.profiled.discard(self.variant)
        if fault and not decision.is_final:
            tries[decision.pending[0]] += 1
            self.equipment.print_line(f"  {status_words(fault.status)}: {fault.reason}; once more in a fresh process")
        return decision

    def failures(self, lost: Mapping[int, Missing], *, after_cells: Missing | None) -> list[Failure]:
        """Print and return the failures: a single one for the variant if all of its cells failed in the same way.

        `lost` are cells that are not tried again in this round; disturbed cells are no failures. `after_cells` is a
        fault after all cells, for example in the profile.
        """
        points = self.sweep.points(self.variant)
        lost = {position: fault for position, fault in lost.items() if fault.error_kind not in retries.DISTURBED}
        entries: list[tuple[Any, Missing]] = [(points[position], fault) for position, fault in lost.items()]
        if len(set(lost.values())) == 1 and (len(lost) == len(points) or len(lost) == len(self.cells) > 1):
            entries = [(None, next(iter(lost.values())))]
        if after_cells:
            entries.append((None, after_cells.model_copy(update={"reason": f"after its cells: {after_cells.reason}"})))
        failures = []
        for point, fault in entries:
            name = f"{self.variant}, round {self.round + 1}"
            name += f", {self.sweep.workload.point_text(point)}" if point else ""
            self.equipment.print_line(f"  {name}: {status_words(fault.status)}: {fault.reason}")
            alone = self.sweep.alone(self.variant, point)
            failures.append(Failure(name, fault, log=self.log.path, tail=self.log.last_lines, alone=alone))
        return failures

    def accept(self, position: int) -> CellBase:
        """Give a disturbed cell the status "ok" and the flag "disturbed", save the record, and return the cell."""
        assert self.record is not None
        cells, number = list(self.record.cells), self.cells.index(position)
        changes = {"status": "ok", "error_kind": None, "reason": None, "flags": (*cells[number].flags, "disturbed")}
        cells[number] = cells[number].model_copy(update=changes)
        self.save(self.record.model_copy(update={"cells": tuple(cells)}))
        if self.record.profile:
            self.progress.profiled.add(self.variant)
        return cells[number]

    def _complete(self, decision: Decision, fault: Missing | None) -> RunRecord:
        job, environment = self.sweep.jobs[self.variant], self.equipment.environment
        blank = blank_record(job, environment, run_id=self.path.stem, started=self._started)
        before = self.record or blank.model_copy(update={**self._place, "forked": self.sweep.settings.shared_imports})
        cells = tuple(map(self._judged, before.cells))
        self.measured = dict(zip(self.cells, cells, strict=False))
        workload, points = self.sweep.workload, self.sweep.points(self.variant)
        records = [*self.progress.records, *([self.record] if self.record else [])]
        for position, reason in decision.failed.items():
            # Some facts of a cell only a child can determine; without them the cell is left out.
            if (fields := workload.cell_fields(job, points[position], records)) is not None:
                fields |= {"status": reason.status, **dict(reason)}
                cells = (*cells, workload.cell_class(**fields))
        changes: dict[str, object] = {"cells": cells}
        if fault:
            changes |= {"status": "failed", **dict(fault)}
        if before.profile and before.cells and (timed_at := before.cells[-1].timed_at) and self._host:
            load = self._host.between(timed_at[1], time.time())
            if load and disturbance(load) > retries.LARGEST_DISTURBANCE and (why := why_disturbed(load)):
                changes |= _no_profile("disturbed", why)
        after = before.model_copy(update=changes)
        self.save(after)
        self.progress.records.append(after)
        return after

    def save(self, record: RunRecord) -> None:
        if record != self.record:
            write_json(record, self.path)
        self.record = record

    def begin(self, pid: int) -> None:
        self._pid = pid
        if self.equipment.watch_host:
            self._host = self.equipment.watch_host(pid)
            self._host.read()

    def _judged(self, cell: CellBase) -> CellBase:
        # The measured time has no influence on this.
        equipment, allow_shared = self.equipment, self.sweep.settings.allow_shared
        if equipment.shares_host and "shared_host" not in cell.flags:
            cell = cell.model_copy(update={"flags": (*cell.flags, "shared_host")})
        processes = self.sweep.jobs[self.variant].processes
        cell = with_gpu_state(cell, equipment.monitor, own_processes=processes, allow_shared=allow_shared)
        watched, reason = with_host_load(cell, self._host)
        if watched is not cell and cell.status == "ok":
            self.progress.disturbed.append(reason is not None)
        changes = {"status": "invalid", "error_kind": "disturbed", "reason": reason} if reason else {}
        return watched.model_copy(update=changes)

    def limit_s(self, phase: Phase) -> float:
        if phase == "load":
            return self.sweep.settings.load_timeout_s
        # The profile after the cells takes no longer than another cell, but has much to write.
        position = self.cells[min(len(self.finished), len(self.cells) - 1)]
        limit_s, longest_s = self.sweep.settings.cell_timeout_s, self.progress.cell_s.get((self.variant, position))
        if limit_s is None:
            limit_s = CELL_LIMIT_S if longest_s is None else max(MIN_CELL_LIMIT_S, CELL_LIMIT_FACTOR * longest_s)
        return limit_s + ENERGY_S if phase == "end" and self.sweep.jobs[self.variant].procedure.energy else limit_s

    def show(self, lines: list[str]) -> None:
        if self._host:
            self._host.read()
        print_line = self.equipment.print_line
        # A cell's line comes before those of the profile and of the next cell.
        last_run = max((number for number, line in enumerate(lines, 1) if line.startswith("  run ")), default=0)
        self._print_lines(lines[:last_run])
        monitor = self.equipment.monitor
        if monitor and monitor.problem and not self.equipment.is_unwatched:
            print_line(f"  {monitor.problem}")
            self.equipment.is_unwatched = True
        if self._shown == 0 and self.phase == "load":
            self._since = time.monotonic()
        points = self.sweep.points(self.variant)
        for position, cell in list(zip(self.cells, self.finished, strict=False))[self._shown :]:
            print_line(f"  {cell_line(self.sweep.workload, points[position], cell)}")
            now = time.monotonic()
            longest_s = self.progress.cell_s.get((self.variant, position), 0.0)
            self.progress.cell_s[self.variant, position] = max(longest_s, now - self._since)
            self._since, self._shown = now, self._shown + 1
        self._print_lines(lines[last_run:])

    def _print_lines(self, lines: Sequence[str]) -> None:
        for line in lines:
            if not line.startswith(("  run ", "error: ", f"{self.variant}: ", self.sweep.workload.cell_opening)):
                self.equipment.print_line(f"  {line}")


def _no_profile(kind: ErrorKind | None, reason: str | None) -> dict[str, object]:
    return {"profile": None, "no_profile": Missing(error_kind=kind or "other", reason=f"discarded: {reason}")}
