"""Rules for cells that failed or were disturbed: which of them the next process measures again, and which try counts.

A cell that crashed or timed out is tried once more; a cell that ran out of memory is not, and neither are cells that
are at least as large. A disturbed cell is measured again, up to RERUNS times; then the least disturbed try counts.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarker.core.errors import CellStatus, ErrorKind
from benchmarker.core.formatting import percent
from benchmarker.hardware.monitor import disturbance
from benchmarker.schema.record import CellBase, Missing, RunRecord
from benchmarker.sweep.sweep_state import LAST_CELLS

if TYPE_CHECKING:
    from benchmarker.sweep.attempt import Attempt
    from benchmarker.sweep.child import ChildEnd, Phase
    from benchmarker.workloads.base import Workload

RETRIED = ("crash", "timeout")
TRIES = 2
RERUNS = 2
"""Maximum number of repetitions of a cell that is invalid for a reason outside the variant."""
LASTING: tuple[ErrorKind, ...] = ("wrong_result",)
"""Errors that the variant itself causes: measuring again does not help."""
DISTURBED: tuple[ErrorKind, ...] = ("disturbed", "merged_tokens")
"""Errors of cells for which processor cores were lacking. Cells with merged tokens are never kept."""
LARGEST_DISTURBANCE = 0.10
"""Largest share of the cores' time, taken by other programs and the hypervisor, of a disturbed cell that is kept."""
OUT_OF_MEMORY = ("oom_gpu", "oom_host")


@dataclass(frozen=True)
class Decision:
    failed: Mapping[int, Missing]
    """Unfinished cells, by position in the grid; they go into the child's record."""
    pending: tuple[int, ...]
    is_final: bool
    """True if the failed cells are given up: they are not tried again, in this round or another."""


def fault_of(end: ChildEnd, record: RunRecord | None, *, problem: str | None, tail: Sequence[str]) -> Missing | None:
    """Return the reason for which the child ended before its work was complete; None if it was complete.

    `problem` is the reason for which the record cannot be read; None if it can be read or does not exist.
    """
    if record and record.status == "complete" and not problem:
        # Everything is measured and saved: it does not matter how the process ended after that.
        return None
    if end.late:
        return Missing(error_kind="timeout", reason=end.late)
    if end.code < 0:
        name = {number.value: number.name for number in signal.Signals}.get(-end.code, f"signal {-end.code}")
        crash = Missing(error_kind="crash", reason=f"the process died of {name}")
        out_of_memory = Missing(error_kind="oom_host", reason="the system ran out of memory and killed the process")
        return out_of_memory if end.killed_for_memory else crash
    if problem:
        return Missing(error_kind="results", reason=problem)
    if record and record.status == "failed" and record.reason:
        return Missing(error_kind=record.error_kind or "other", reason=record.reason)
    return Missing(error_kind="other", reason=f"exit {end.code}: {tail[-1] if tail else 'it printed nothing'}")


def decide(
    pending: Sequence[int],
    finished: Sequence[CellStatus],
    fault: Missing | None,
    *,
    phase: Phase,
    tries: Mapping[int, int],
    points: Sequence[Any],
    workload: Workload,
) -> Decision:
    """Decide which of a child's cells are given up and which are measured by a fresh process.

    `pending` are the positions of the child's cells, `finished` the statuses of the cells in its record, and `tries`
    the numbers of earlier failures by position; a failure while loading counts for the first cell.
    """
    rest = tuple(pending[len(finished) :])
    if rest and finished and (finished[-1] == "oom_gpu" or finished[-1] == "oom_host"):
        return _without_larger(pending[len(finished) - 1], finished[-1], rest, points, workload)
    if not rest or fault is None:
        unmeasured = Missing(error_kind="other", reason="the process ended without measuring it")
        return Decision(dict.fromkeys(rest, unmeasured), (), is_final=True)
    position = rest[0]
    if fault.status in RETRIED and tries.get(position, 0) + 1 < TRIES:
        return Decision({} if phase == "load" else {position: fault}, rest, is_final=False)
    if phase == "load":
        reason = f"while loading: {fault.reason}" if fault.status in (*RETRIED, "oom_host") else fault.reason
        return Decision(dict.fromkeys(rest, Missing(error_kind=fault.error_kind, reason=reason)), (), is_final=True)
    if fault.status in OUT_OF_MEMORY:
        after = _without_larger(position, fault.error_kind, rest[1:], points, workload)
        return Decision({position: fault, **after.failed}, after.pending, is_final=True)
    return Decision({position: fault}, rest[1:], is_final=True)


def _without_larger(
    failed: int, kind: ErrorKind, rest: Sequence[int], points: Sequence[Any], workload: Workload
) -> Decision:
    larger = [position for position in rest if workload.at_least(points[position], points[failed])]
    reason = f"not tried: the smaller {workload.point_text(points[failed])} ran out of memory"
    pending = tuple(position for position in rest if position not in larger)
    return Decision(dict.fromkeys(larger, Missing(error_kind=kind, reason=reason)), pending, is_final=True)


def judge_cells(attempts: Sequence[Attempt], reruns: Counter[int]) -> tuple[list[int], dict[int, Missing]]:
    """Return the last attempt's cells to measure again, and its lost cells with reasons. Updates `reruns`."""
    attempt, again, lost = attempts[-1], [], {}
    progress = attempt.progress
    for position, cell in attempt.measured.items():
        is_disturbed = cell.status == "invalid" and cell.error_kind not in LASTING
        is_last = reruns[position] >= RERUNS
        lacked_cores = cell.error_kind in DISTURBED
        if is_disturbed and not is_last and not (lacked_cores and progress.is_host_busy):
            again.append(position)
            if lacked_cores:
                attempt.equipment.print_line(f"  {cell.reason}; measured again")
            continue
        value = (_least_disturbed(attempts, position, is_last=is_last) if is_disturbed else None) or cell
        progress.live_table.add(attempt.variant, position, value)
        if value.status != "ok":
            reason = value.reason or "no reason is recorded"
            lost[position] = Missing(error_kind=value.error_kind or "other", reason=reason)
    reruns.update(again)
    return again, lost


def _least_disturbed(attempts: Sequence[Attempt], position: int, *, is_last: bool) -> CellBase | None:
    """Choose the disturbed try with the least host load, whatever its time; None if no try was disturbed.

    Up to LARGEST_DISTURBANCE, or with --allow-shared, the try is the round's value. Else the round is left out.
    """
    measured = [(attempt, attempt.measured[position]) for attempt in attempts if position in attempt.measured]
    tries = [(attempt, cell) for attempt, cell in measured if cell.error_kind in DISTURBED]
    if not tries:
        return None
    best, cell = min(tries, key=lambda pair: (pair[1].error_kind != "disturbed", disturbance(pair[1].host_load)))
    share = disturbance(cell.host_load)
    why = "all tries were disturbed" if is_last else f"most of the last {LAST_CELLS} cells were disturbed"
    if cell.error_kind == "disturbed" and (share <= LARGEST_DISTURBANCE or best.sweep.settings.allow_shared):
        outcome = f"the least disturbed try is kept ({percent(share, places=0)} of the cores' time)"
        cell = best.accept(position)
    else:
        outcome = "the round is left out"
        cause = "merged tokens" if cell.error_kind == "merged_tokens" else "other programs"
        best.progress.left_out[best.variant, position, best.round] = cause
    best.equipment.print_line(f"  {tries[-1][1].reason}; not measured again, because {why}; {outcome}")
    return cell
