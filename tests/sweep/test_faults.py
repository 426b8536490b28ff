"""Faults of child processes are classified and the next cells are chosen. No process is started."""

from __future__ import annotations

import signal

import pytest

from benchmarker.schema.record import Missing
from benchmarker.sweep.child import ChildEnd
from benchmarker.sweep.retries import Decision, decide, fault_of
from benchmarker.workloads.generation.spec import Grid
from benchmarker.workloads.generation.workload import WORKLOAD as GENERATION
from tests.records import record

POINTS = Grid(prompt_tokens=(512,), new_tokens=(16, 200), batch_size=(1, 2)).points()
NOT_TRIED = Missing(error_kind="oom_gpu", reason="not tried: the smaller 512 x 200 ran out of memory")


def child_end(code: int = 0, *, late: str | None = None, killed_for_memory: bool = False) -> ChildEnd:
    return ChildEnd(code, late, killed_for_memory)


ENDS = {
    "exit 0": child_end(),
    "exit 1": child_end(1),
    "signal": child_end(-signal.SIGSEGV),
    "out of memory": child_end(-signal.SIGKILL, killed_for_memory=True),
    "timeout": child_end(-signal.SIGTERM, late="the cell took more than 5 s"),
}


@pytest.mark.parametrize("end", ENDS)
def test_complete_record_has_no_fault_regardless_of_the_exit_status(end: str) -> None:
    assert fault_of(ENDS[end], record("fp16"), problem=None, tail=()) is None


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ("exit 0", Missing(error_kind="other", reason="exit 0: a last line")),
        ("exit 1", Missing(error_kind="other", reason="exit 1: a last line")),
        ("signal", Missing(error_kind="crash", reason="the process died of SIGSEGV")),
        (
            "out of memory",
            Missing(error_kind="oom_host", reason="the system ran out of memory and killed the process"),
        ),
        ("timeout", Missing(error_kind="timeout", reason="the cell took more than 5 s")),
    ],
)
def test_child_that_ends_with_an_incomplete_record_has_a_fault(end: str, expected: Missing) -> None:
    assert fault_of(ENDS[end], record("fp16", status="running"), problem=None, tail=("a last line",)) == expected


def test_unreadable_record_is_a_fault() -> None:
    problem = "a.json: not valid JSON"
    assert fault_of(child_end(), record("fp16"), problem=problem, tail=()) == Missing(
        error_kind="results", reason=problem
    )


@pytest.mark.parametrize(
    "fault",
    [
        None,
        Missing(error_kind="oom_gpu", reason="OutOfMemoryError: CUDA out of memory"),
        Missing(error_kind="crash", reason="the process died of SIGSEGV"),
        Missing(error_kind="timeout", reason="the cell took more than 5 s"),
        Missing(error_kind="other", reason="RuntimeError: shapes do not match"),
    ],
)
def test_only_cells_larger_than_an_out_of_memory_cell_are_skipped(fault: Missing | None) -> None:
    assert [(point.batch_size, point.new_tokens) for point in POINTS] == [(1, 16), (1, 200), (2, 16), (2, 200)]
    decision = decide(
        (0, 1, 2, 3),
        ["ok", "oom_gpu"],
        fault,
        phase="cell",
        tries={},
        points=POINTS,
        workload=GENERATION,
    )
    # Two sequences of 16 tokens are not larger on every axis than one of 200, so that cell is still measured.
    assert decision == Decision({3: NOT_TRIED}, (2,), is_final=True)


def test_cell_that_ended_the_process_is_abandoned_and_the_next_tried() -> None:
    fault = Missing(error_kind="other", reason="RuntimeError: shapes do not match")
    decision = decide((0, 1, 2, 3), ["ok"], fault, phase="cell", tries={}, points=POINTS, workload=GENERATION)
    assert decision == Decision({1: fault}, (2, 3), is_final=True)
