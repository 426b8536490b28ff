"""One round on one worker: each variant in as many processes as needed; failures are recorded, the rest is measured."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarker.schema.record import CellBase, status_words
from benchmarker.sweep.attempt import Attempt
from benchmarker.sweep.retries import LASTING, RERUNS, Fault, decide, fault_of
from benchmarker.sweep.sweep_plan import Schedule, Task, without_given_up
from benchmarker.sweep.sweep_state import Equipment, Failure, Progress, Sweep


def measure_round(
    sweep: Sweep, progress: Progress, equipment: Equipment, tasks: Sequence[Task], schedule: Schedule
) -> None:
    """Measure the tasks of a round in order, except for cells that were given up in an earlier round."""
    for planned in tasks:
        for task in without_given_up([planned], progress.given_up):
            equipment.print_line(schedule.begin(task, progress.given_up))
            started = time.monotonic()
            _measure_variant(sweep, progress, equipment, task)
            schedule.forecast.learn(task, time.monotonic() - started)


@dataclass(frozen=True)
class Outcome:
    cells: Mapping[int, CellBase]
    """Measured cells, as the record has them now."""
    again: tuple[int, ...]
    """Invalid cells among them that may be measured again."""
    lost: Mapping[int, Fault]
    """Cells that are not tried again in this round."""
    pending: tuple[int, ...]
    after_cells: Fault | None
    """Failure after all cells were measured, as in the profile."""


def _measure_variant(sweep: Sweep, progress: Progress, equipment: Equipment, task: Task) -> None:
    tries: Counter[int] = Counter()
    reruns: Counter[int] = Counter()
    variant, pending = task.variant, task.cells
    while pending:
        attempt = Attempt(sweep, progress, equipment, variant=variant, round_number=task.round, cells=pending)
        attempt.is_last = any(reruns[position] >= RERUNS for position in pending)
        outcome = _outcome(attempt, tries, reruns)
        for position, cell in outcome.cells.items():
            progress.live_table.add(variant, position, cell)
        for position, fault in outcome.lost.items():
            progress.live_table.add_failure(variant, position, fault.status)
            if fault.status != "invalid" or fault.kind in LASTING:
                progress.given_up[variant, position] = fault
        progress.failures += _failures(attempt, outcome)
        pending = outcome.pending
        if outcome.again and equipment.monitor:
            equipment.monitor.cool_down(stopped=lambda: equipment.stop.requests > 0)


def _outcome(attempt: Attempt, tries: Counter[int], reruns: Counter[int]) -> Outcome:
    """Run the child, complete its record, and decide which cells are tried again.

    Args:
        tries: Repetitions of each cell after a fault; incremented here.
        reruns: Repetitions of each cell because it was invalid; incremented here.
    """
    end, problem = attempt.run()
    last_line = next(iter(attempt.log.last_lines[-1:]), None)
    fault = fault_of(end, attempt.record, problem=problem, last_line=last_line)
    count, phase = len(attempt.finished), attempt.watch.phase
    if phase != "end" and not (attempt.record and attempt.record.profile):
        # The child did not reach the profile: the next process makes it.
        attempt.progress.profiled.discard(attempt.variant)
    decision = decide(
        attempt.cells,
        [cell.status for cell in attempt.finished],
        fault,
        phase=phase,
        tries=tries,
        points=attempt.sweep.points(attempt.variant),
        workload=attempt.sweep.workload,
    )
    attempt.settle(decision, fault)
    print_line = attempt.equipment.print_line
    if fault and not decision.is_final:
        tries[decision.pending[0]] += 1
        print_line(f"  {status_words(fault.status)}: {fault.reason}; once more in a fresh process")
    cells = dict(zip(attempt.cells, attempt.finished[:count], strict=False))
    again = _to_repeat(cells, reruns)
    for position in again:
        if cells[position].error_kind == "disturbed":
            print_line(f"  {cells[position].reason}; measured again")
    lost = {
        position: Fault(cell.error_kind or "other", cell.reason or "no reason is recorded")
        for position, cell in cells.items()
        if cell.status != "ok" and position not in again
    }
    return Outcome(
        cells=cells,
        again=again,
        lost={**lost, **decision.failed} if decision.is_final else lost,
        pending=tuple(sorted({*decision.pending, *again})),
        after_cells=fault if count == len(attempt.cells) else None,
    )


def _to_repeat(cells: Mapping[int, CellBase], reruns: Counter[int]) -> tuple[int, ...]:
    again = [
        position
        for position, cell in cells.items()
        if cell.status == "invalid" and cell.error_kind not in LASTING and reruns[position] < RERUNS
    ]
    reruns.update(again)
    return tuple(again)


def _failures(attempt: Attempt, outcome: Outcome) -> list[Failure]:
    """Return the failures of a child: a single one for the variant if all of its cells failed in the same way."""
    points, lost = attempt.sweep.points(attempt.variant), outcome.lost
    entries: list[tuple[Any, Fault]] = [(points[position], fault) for position, fault in lost.items()]
    if len(set(lost.values())) == 1 and (len(lost) == len(points) or len(lost) == len(attempt.cells) > 1):
        entries = [(None, next(iter(lost.values())))]
    if after := outcome.after_cells:
        entries.append((None, Fault(after.kind, f"after its cells: {after.reason}")))
    name = f"{attempt.variant}, round {attempt.round + 1}"
    failures = [
        Failure(
            name=f"{name}, {attempt.sweep.workload.point_text(point)}" if point else name,
            fault=fault,
            log=attempt.log.path,
            tail=attempt.log.last_lines,
            alone=attempt.sweep.alone(attempt.variant, point),
        )
        for point, fault in entries
    ]
    for failure in failures:
        attempt.equipment.print_line(f"  {failure.name}: {status_words(failure.fault.status)}: {failure.fault.reason}")
    return failures
