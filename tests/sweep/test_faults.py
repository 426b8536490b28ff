"""What went wrong in a child, and what is measured next, without a process."""

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


def ended(code: int = 0, *, late: str | None = None, killed_for_memory: bool = False) -> ChildEnd:
    return ChildEnd(code, late, killed_for_memory)


ENDS = {
    "by itself": ended(),
    "with an error": ended(1),
    "by a signal": ended(-signal.SIGSEGV),
    "for want of memory": ended(-signal.SIGKILL, killed_for_memory=True),
    "too late": ended(-signal.SIGTERM, late="the cell took more than 5 s"),
}


@pytest.mark.parametrize("how", ENDS)
def test_however_a_child_ends_nothing_is_wrong_if_its_record_is_complete(how: str) -> None:
    assert fault_of(ENDS[how], record("fp16"), problem=None, tail=()) is None


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("by itself", Missing(error_kind="other", reason="exit 0: a last line")),
        ("with an error", Missing(error_kind="other", reason="exit 1: a last line")),
        ("by a signal", Missing(error_kind="crash", reason="the process died of SIGSEGV")),
        (
            "for want of memory",
            Missing(error_kind="oom_host", reason="the system ran out of memory and killed the process"),
        ),
        ("too late", Missing(error_kind="timeout", reason="the cell took more than 5 s")),
    ],
)
def test_a_child_that_ends_before_its_record_is_complete_has_a_fault(how: str, expected: Missing) -> None:
    assert fault_of(ENDS[how], record("fp16", status="running"), problem=None, tail=("a last line",)) == expected


def test_an_unreadable_record_is_a_fault_even_if_it_was_complete() -> None:
    problem = "a.json: not valid JSON"
    assert fault_of(ended(), record("fp16"), problem=problem, tail=()) == Missing(error_kind="results", reason=problem)


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
def test_after_a_cell_that_ran_out_of_memory_nothing_is_held_against_the_next_one(fault: Missing | None) -> None:
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
    # Two sequences of 16 tokens are not at least as large as one of 200, and were never tried.
    assert decision == Decision({3: NOT_TRIED}, (2,), is_final=True)


def test_a_cell_that_took_the_process_with_it_is_given_up_and_the_next_is_tried() -> None:
    fault = Missing(error_kind="other", reason="RuntimeError: shapes do not match")
    decision = decide((0, 1, 2, 3), ["ok"], fault, phase="cell", tries={}, points=POINTS, workload=GENERATION)
    assert decision == Decision({1: fault}, (2, 3), is_final=True)
