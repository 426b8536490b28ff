"""What went wrong in a child, and what is measured next: rules without a process in them.

One more try for a crash or a time-out, which may be chance; none for running out of memory, which is not. What is left
goes on in a fresh process, without the cells that are at least as large as one that did not fit.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarker.core.errors import ErrorKind
from benchmarker.schema.record import RunRecord
from benchmarker.schema.status import CellStatus, status_of
from benchmarker.sweep.child import Ended, Phase

if TYPE_CHECKING:
    from benchmarker.workloads.base import Workload

RETRIED = ("crash", "timeout")
TRIES = 2
RERUNS = 2
"""How often a cell is measured again that something outside the variant made invalid."""
LASTING: tuple[ErrorKind, ...] = ("wrong_result",)
"""What makes a cell invalid by the variant's own doing: it will be no other the next time."""
OUT_OF_MEMORY = ("oom_gpu", "oom_host")


@dataclass(frozen=True)
class Fault:
    """Why there is no number."""

    kind: ErrorKind
    reason: str

    @property
    def status(self) -> CellStatus:
        """Of the cell that has none."""
        return status_of(self.kind)


@dataclass(frozen=True)
class Decision:
    """What a child's end means."""

    failed: Mapping[int, Fault]
    """Cells that the child did not finish, by position in the grid; they go into its record."""
    pending: tuple[int, ...]
    """Cells for a fresh process."""
    is_final: bool
    """Whether the failed cells are given up: they are not tried again, in this round or another."""


def fault_of(ended: Ended, record: RunRecord | None, *, problem: str | None, last_line: str | None) -> Fault | None:
    """Why the child ended before its work was done; None if it was.

    Args:
        problem: Why its record cannot be read; None if it can, or if there is none.
        last_line: The end of what it printed.
    """
    if record and record.status == "complete" and not problem:
        # All is done and saved: how the process then went down is no matter.
        return None
    if ended.late:
        return Fault("timeout", ended.late)
    if ended.code < 0:
        return _killed(ended)
    if problem:
        return Fault("results", problem)
    if record and record.status == "failed" and record.reason:
        return Fault(record.error_kind or "other", record.reason)
    return Fault("other", f"exit {ended.code}: {last_line or 'it printed nothing'}")


def _killed(ended: Ended) -> Fault:
    if ended.killed_for_memory:
        return Fault("oom_host", "the system ran out of memory and killed the process")
    return Fault("crash", f"the process died of {_signal_name(-ended.code)}")


def decide(
    pending: Sequence[int],
    finished: Sequence[CellStatus],
    fault: Fault | None,
    *,
    phase: Phase,
    tries: Mapping[int, int],
    points: Sequence[Any],
    workload: Workload,
) -> Decision:
    """What becomes of the cells that a child was given.

    Args:
        pending: Their positions, in order.
        finished: Statuses of those that its record holds.
        phase: In which it was when it ended.
        tries: How often each cell, or the loading before it, has failed before.
    """
    rest = tuple(pending[len(finished) :])
    if rest and finished and (finished[-1] == "oom_gpu" or finished[-1] == "oom_host"):
        return _without_larger(pending[len(finished) - 1], finished[-1], rest, points, workload)
    if not rest or fault is None:
        unmeasured = Fault("other", "the process ended without measuring it")
        return Decision(dict.fromkeys(rest, unmeasured), (), is_final=True)
    position = rest[0]
    if fault.status in RETRIED and tries.get(position, 0) + 1 < TRIES:
        return Decision({} if phase == "load" else {position: fault}, rest, is_final=False)
    if phase == "load":
        reason = f"while loading: {fault.reason}" if fault.status in (*RETRIED, "oom_host") else fault.reason
        return Decision(dict.fromkeys(rest, Fault(fault.kind, reason)), (), is_final=True)
    if fault.status in OUT_OF_MEMORY:
        after = _without_larger(position, fault.kind, rest[1:], points, workload)
        return Decision({position: fault, **after.failed}, after.pending, is_final=True)
    return Decision({position: fault}, rest[1:], is_final=True)


def _without_larger(
    failed: int, kind: ErrorKind, rest: Sequence[int], points: Sequence[Any], workload: Workload
) -> Decision:
    larger = [position for position in rest if workload.at_least(points[position], points[failed])]
    reason = f"not tried: the smaller {workload.point_text(points[failed])} ran out of memory"
    return Decision(
        dict.fromkeys(larger, Fault(kind, reason)),
        tuple(position for position in rest if position not in larger),
        is_final=True,
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
