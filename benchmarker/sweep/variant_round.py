"""One variant in one round, in as many processes as it takes: what fails is recorded, what is left is measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarker.core.console import Terminal
from benchmarker.schema.record import CellBase
from benchmarker.schema.status_words import status_words
from benchmarker.sweep.attempt import Attempt
from benchmarker.sweep.retries import LASTING, RERUNS, Fault, decide, fault_of
from benchmarker.sweep.state import Failure, SweepContext, SweepState


def measure(
    context: SweepContext,
    state: SweepState,
    terminal: Terminal,
    *,
    variant: str,
    round_number: int,
    cells: Sequence[int],
) -> None:
    """Measure cells of one variant; what could not be measured is in the sweep's state and in the records.

    Raises:
        ResultsError: A record cannot be saved.
        KeyboardInterrupt: Ctrl-C.
        SweepTimeoutError: The sweep's time is up.
    """
    tries: Counter[int] = Counter()
    reruns: Counter[int] = Counter()
    pending = tuple(cells)
    while pending:
        attempt = Attempt(context, state, terminal, variant=variant, round_number=round_number, cells=pending)
        attempt.is_last = any(reruns[position] >= RERUNS for position in pending)
        outcome = _outcome(attempt, tries, reruns)
        for position, cell in outcome.cells.items():
            state.live_table.take(variant, position, cell)
        for position, why in outcome.lost.items():
            state.live_table.fail(variant, position, why.status)
            if why.status != "invalid" or why.kind in LASTING:
                state.given_up[variant, position] = why
        state.failures += _failures(attempt, outcome)
        pending = outcome.pending
        if outcome.again and context.monitor:
            context.monitor.cool_down()


@dataclass(frozen=True)
class Outcome:
    """What came of one child, by position in the grid."""

    cells: Mapping[int, CellBase]
    """What it measured, as its record has it now."""
    again: tuple[int, ...]
    """Of those, the invalid ones that may be measured again."""
    lost: Mapping[int, Fault]
    """What is not tried again in this round."""
    pending: tuple[int, ...]
    """What the next process is to measure."""
    after_cells: Fault | None
    """What went wrong when all cells were done, as with the profile."""


def _outcome(attempt: Attempt, tries: Counter[int], reruns: Counter[int]) -> Outcome:
    """Run the child, complete its record, and decide what is tried again.

    Args:
        tries: How often each cell was tried again after a fault; one more is counted here.
        reruns: How often because it was invalid; likewise.
    """
    ended, problem = attempt.run()
    last_line = next(iter(attempt.tail[-1:]), None)
    fault = fault_of(ended, attempt.record, problem=problem, last_line=last_line)
    count, phase = len(attempt.finished), attempt.watch.phase
    if phase != "end" and not (attempt.record and attempt.record.profile):
        # It did not come so far: the next process makes the profile.
        attempt.state.profiled.discard(attempt.variant)
    statuses = [cell.status for cell in attempt.finished]
    points = attempt.context.points(attempt.variant)
    decision = decide(
        attempt.cells, statuses, fault, phase=phase, tries=tries, points=points, workload=attempt.context.workload
    )
    attempt.settle(decision, fault)
    if fault and not decision.is_final:
        tries[decision.pending[0]] += 1
        attempt.terminal.line(f"  {status_words(fault.status)}: {fault.reason}; once more in a fresh process")
    cells = dict(zip(attempt.cells, attempt.finished[:count], strict=False))
    again = _to_repeat(cells, reruns)
    for position in again:
        if cells[position].error_kind == "disturbed":
            attempt.terminal.line(f"  {cells[position].reason}; measured again")
    lost = {
        position: _fault_in(cell) for position, cell in cells.items() if cell.status != "ok" and position not in again
    }
    return Outcome(
        cells=cells,
        again=again,
        lost={**lost, **decision.failed} if decision.is_final else lost,
        pending=tuple(sorted({*decision.pending, *again})),
        after_cells=fault if count == len(attempt.cells) else None,
    )


def _to_repeat(cells: Mapping[int, CellBase], reruns: Counter[int]) -> tuple[int, ...]:
    """Cells that came out invalid and may be measured again."""
    again = [
        position
        for position, cell in cells.items()
        if cell.status == "invalid" and cell.error_kind not in LASTING and reruns[position] < RERUNS
    ]
    reruns.update(again)
    return tuple(again)


def _fault_in(cell: CellBase) -> Fault:
    return Fault(cell.error_kind or "other", cell.reason or "it gave no reason")


def _failures(attempt: Attempt, outcome: Outcome) -> list[Failure]:
    """What is given up with this child: one entry for the whole variant where it is all the same."""
    points, lost = attempt.context.points(attempt.variant), outcome.lost
    entries: list[tuple[Any, Fault]] = [(points[position], why) for position, why in lost.items()]
    if len(set(lost.values())) == 1 and (len(lost) == len(points) or len(lost) == len(attempt.cells) > 1):
        entries = [(None, next(iter(lost.values())))]
    if after := outcome.after_cells:
        entries.append((None, Fault(after.kind, f"after its cells: {after.reason}")))
    where = f"{attempt.variant}, round {attempt.round + 1}"
    failures = [
        Failure(
            what=f"{where}, {attempt.context.workload.point_text(point)}" if point else where,
            fault=why,
            log=attempt.log.path,
            tail=attempt.tail,
            alone=attempt.context.alone(attempt.variant, point),
        )
        for point, why in entries
    ]
    for failure in failures:
        words = status_words(failure.fault.status)
        attempt.terminal.line(f"  {failure.what}: {words}: {failure.fault.reason}")
    return failures
