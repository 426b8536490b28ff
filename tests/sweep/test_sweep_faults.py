"""Injected faults are reported to the user; finished cells are kept and the remaining cells are measured."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarker.core.console import FILE_WIDTH, one_line_errors
from benchmarker.core.errors import ResultsError, SpecError
from benchmarker.sweep import child
from benchmarker.sweep.resume import LOCK
from tests.faults.stage import Stage, killed_at_write

OK_OF_B = [(0, "b", 50, "ok"), (0, "b", 100, "ok")]


@pytest.fixture(autouse=True)
def _short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "GRACE_S", 0.3)
    monkeypatch.setattr(child, "TICK_S", 0.05)


def fault(do: str, at: str = "cell 1", **more: Any) -> dict[str, Any]:
    return {"variant": "a", "at": at, "do": do} | more


TABLE: list[tuple[dict[str, Any], dict[str, Any], list[tuple[int, str, int, str]], str]] = [
    (
        fault("hang"), {"cell_timeout_s": 0.5},
        [(0, "a", 50, "ok"), (0, "a", 100, "timeout"), (0, "a", 100, "timeout")],
        "failed: a, round 1, 26 x 100: timed out: the cell took more than 0.5 s",
    ),
    (
        fault("hang deaf", "load"), {"load_timeout_s": 0.5}, [(0, "a", 50, "timeout"), (0, "a", 100, "timeout")],
        "failed: a, round 1: timed out: while loading: loading took more than 0.5 s",
    ),
    (
        fault("exit"), {}, [(0, "a", 50, "ok"), (0, "a", 100, "error")],
        "failed: a, round 1, 26 x 100: error: exit 7: leaving without a word in the record",
    ),
    (
        fault("exit", "start"), {}, [(0, "a", 50, "error"), (0, "a", 100, "error")],
        "failed: a, round 1: error: exit 7: leaving without a word in the record",
    ),
    (
        fault("SIGKILL"), {}, [(0, "a", 50, "ok"), (0, "a", 100, "crash"), (0, "a", 100, "crash")],
        "failed: a, round 1, 26 x 100: crashed: the process died of SIGKILL",
    ),
    (
        fault("SIGKILL", "start"), {}, [(0, "a", 50, "crash"), (0, "a", 100, "crash")],
        "failed: a, round 1: crashed: while loading: the process died of SIGKILL",
    ),
    (
        fault("segfault", "cell 0"), {},
        [(0, "a", 50, "crash"), (0, "a", 50, "crash"), (0, "a", 100, "ok")],
        "failed: a, round 1, 26 x 50: crashed: the process died of SIGSEGV",
    ),
    (
        fault("out of memory", "load"), {}, [(0, "a", 50, "oom_gpu"), (0, "a", 100, "oom_gpu")],
        "failed: a, round 1: out of GPU memory: OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    ),
    (
        {"variant": "a", "at": "cell 0", "cell": {"status": "oom_gpu", "reason": "CUDA out of memory", "samples": []}},
        {}, [(0, "a", 50, "oom_gpu"), (0, "a", 100, "oom_gpu")],
        "failed: a, round 1, 26 x 100: out of GPU memory: not tried: the smaller 26 x 50 ran out of memory",
    ),
    (
        fault("unsupported", "load"), {}, [(0, "a", 50, "unsupported"), (0, "a", 100, "unsupported")],
        "failed: a, round 1: not supported: this GPU cannot",
    ),
    (
        fault("error", "cell 0"), {}, [(0, "a", 50, "error"), (0, "a", 100, "ok")],
        "failed: a, round 1, 26 x 50: error: RuntimeError: shapes do not match",
    ),
    (
        fault("error", "end"), {}, [(0, "a", 50, "ok"), (0, "a", 100, "ok")],
        "failed: a, round 1: error: after its cells: RuntimeError: shapes do not match",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("injected", "settings", "cells", "message"),
    TABLE,
    ids=[f"{row[0].get('do', 'oom')} at {row[0]['at']}" for row in TABLE],
)
def test_fault_is_reported_and_other_cells_are_measured(
    tmp_path: Path, injected: dict[str, Any], settings: dict[str, Any], cells: list[Any], message: str
) -> None:
    stage = Stage(tmp_path, faults=[injected])
    assert stage.sweep(**settings)
    assert stage.cells() == sorted([*cells, *OK_OF_B])
    assert message in " ".join(stage.printed.split())
    assert all(len(line) <= FILE_WIDTH for line in stage.printed.splitlines() if line.startswith("failed: "))
    assert "alone: python -m benchmarker.run --config" in stage.printed
    assert "variant" in stage.printed
    assert "decode tok/s" in stage.printed


def test_record_of_a_dead_child_names_its_sweep(tmp_path: Path) -> None:
    stage = Stage(tmp_path, faults=[fault("exit", "load")])
    assert stage.sweep()
    started_at = json.loads((stage.results / "sweep.json").read_text())["started_at"]
    assert {record.sweep for record in stage.records()} == {started_at}


def test_truncated_record_is_reported_and_set_aside(tmp_path: Path) -> None:
    # The sweep must have read the first cell before the record breaks; without it, a second process would start.
    stage = Stage(tmp_path, faults=[fault("work", seconds=1), fault("half a record")])
    assert stage.sweep()
    assert (0, "a", 100, "error") in stage.cells()
    assert stage.cells()[-2:] == OK_OF_B
    assert "not valid JSON" in stage.printed
    assert len(list(stage.results.glob("*.json.broken"))) == 1


@pytest.mark.parametrize("do", ["hang", "SIGKILL", "segfault"])
def test_transient_fault_is_retried_in_one_new_process(tmp_path: Path, do: str) -> None:
    stage = Stage(tmp_path, variants=["a"], faults=[fault(do, times=1)])
    assert stage.sweep(cell_timeout_s=0.5) == []
    assert "once more in a fresh process" in stage.printed
    assert [cell for cell in stage.cells() if cell[3] == "ok"] == [(0, "a", 50, "ok"), (0, "a", 100, "ok")]


def test_abandoned_cells_are_not_retried_in_later_rounds(tmp_path: Path) -> None:
    stage = Stage(tmp_path, rounds=3, variants=["a"], faults=[fault("segfault", "load")])
    stage.sweep()
    assert (tmp_path / "script.0").read_text() == "xx"


def test_invalid_cell_is_retried_at_most_twice_and_kept(tmp_path: Path) -> None:
    invalid = {"variant": "a", "at": "cell 0", "cell": {"status": "invalid", "reason": "49 tokens came instead of 50"}}
    stage = Stage(tmp_path / "once", variants=["a"], faults=[{**invalid, "times": 1}])
    assert stage.sweep() == []
    assert stage.cells() == [(0, "a", 50, "invalid"), (0, "a", 50, "ok"), (0, "a", 100, "ok")]
    stage = Stage(tmp_path / "always", variants=["a"], faults=[invalid])
    assert stage.sweep() == ["a, round 1, 26 x 50"]
    assert [cell[3] for cell in stage.cells()] == ["invalid", "invalid", "invalid", "ok"]


def test_disturbed_record_is_kept_if_all_cells_are_measured(tmp_path: Path) -> None:
    disturbed = {"status": "invalid", "error_kind": "disturbed", "reason": "other programs took 50 % of the cores"}
    faults = [{"variant": "a", "at": f"cell {at}", "cell": disturbed, "times": 1} for at in (0, 1)]
    stage = Stage(tmp_path, variants=["a"], faults=faults)
    stage.sweep()
    before = stage.cells()
    assert [cell[3] for cell in before] == ["invalid", "ok", "invalid", "ok"]
    stage.sweep(resume=True)
    assert "2 of 2 cells are there already" in stage.printed
    assert "not used" not in stage.printed
    assert stage.cells() == before
    stage.environment = stage.environment.model_copy(update={"packages": {"torch": "3.0"}})
    stage.sweep(resume=True)
    assert [cell[3] for cell in stage.cells()] == ["ok", "ok"]


def test_100_mb_of_output_are_truncated_in_log_and_terminal(tmp_path: Path) -> None:
    stage = Stage(tmp_path, variants=["a"], faults=[fault("flood", "load"), fault("one long line", "cell 0")])
    assert stage.sweep() == []
    (log,) = stage.results.glob("*.log")
    assert log.stat().st_size < 400_000
    assert "bytes left out" in log.read_text()
    assert len(stage.printed) < 100_000
    assert f"... the rest is in {log}" in " ".join(stage.printed.split())


def test_grandchild_holding_the_output_ends_with_its_parent(tmp_path: Path) -> None:
    stage = Stage(tmp_path, variants=["a"], faults=[fault("grandchild", "load")])
    assert stage.sweep() == []


def test_control_characters_of_a_child_are_removed(tmp_path: Path) -> None:
    stage = Stage(tmp_path, variants=["a"], faults=[fault("control codes", "load")])
    stage.sweep()
    assert "cleared" in stage.printed
    assert "\x1b" not in stage.printed
    assert "\N{RIGHT-TO-LEFT OVERRIDE}" not in stage.printed


def test_ctrl_c_interrupts_the_child_and_finished_cells_are_compared(tmp_path: Path) -> None:
    stage = Stage(tmp_path, faults=[{"variant": name, "at": "cell 1", "do": "interrupt"} for name in "ab"])
    with pytest.raises(KeyboardInterrupt):
        stage.sweep()
    ((_, _, new_tokens, status),) = stage.cells()
    assert (new_tokens, status) == (50, "ok")
    assert stage.records()[0].status == "interrupted"
    assert "variant" in stage.printed
    assert "decode tok/s" in stage.printed
    assert "resume with: benchmarker sweep" in stage.printed


def test_sigterm_ends_a_sweep_like_ctrl_c(tmp_path: Path) -> None:
    stage = Stage(tmp_path, faults=[{"variant": name, "at": "cell 1", "do": "terminate"} for name in "ab"])
    with pytest.raises(SystemExit) as raised, one_line_errors():
        stage.sweep()
    assert raised.value.code == 128 + signal.SIGTERM
    assert psutil.Process().children() == []
    assert [cell[2:] for cell in stage.cells()] == [(50, "ok")]
    assert stage.records()[0].status == "interrupted"
    assert "decode tok/s" in stage.printed
    assert "resume with: benchmarker sweep" in stage.printed
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_ctrl_c_after_the_start_leaves_no_child_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child.Log, "follow", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Stage(tmp_path).sweep()
    assert psutil.Process().children() == []


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_printed_resume_command_is_quoted_for_the_shell(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "two words", variants=["a"], faults=[fault("hang")])
    stage.sweep(timeout_s=0.6, shared_imports=True)
    (line,) = [line for line in stage.printed.splitlines() if line.startswith("resume with: ")]
    resume = ["--resume", str(stage.results)]
    assert shlex.split(line)[2:] == ["benchmarker", "sweep", str(stage.config), *resume]


def test_time_limit_ends_the_sweep_and_resume_completes_it(tmp_path: Path) -> None:
    stage = Stage(tmp_path, variants=["a"], faults=[fault("hang", times=1)])
    assert stage.sweep(timeout_s=0.6)
    assert stage.cells() == [(0, "a", 50, "ok")]
    assert "the time is up (--timeout 0.6)" in stage.printed
    assert stage.sweep(resume=True) == []
    assert stage.cells() == [(0, "a", 50, "ok"), (0, "a", 100, "ok")]


@pytest.mark.parametrize("number", range(20))
def test_parent_killed_between_two_writes_loses_no_finished_cell(tmp_path: Path, number: int) -> None:
    stage = Stage(tmp_path, faults=[fault("exit", times=1)])
    exit_code = stage.sweep_apart(killed_at_write(number))
    assert exit_code in (-signal.SIGKILL, 0)
    before = {
        (record.run_id, cell.new_tokens)
        for record in (stage.records() if any(stage.results.glob("?-round*.json")) else [])
        for cell in record.cells
        if cell.status == "ok"
    }
    # A sweep that is killed early leaves the fault to the first resumed sweep.
    if stage.sweep(resume=True):
        assert stage.sweep(resume=True) == []
    ok = [
        (record.run_id, cell.new_tokens) for record in stage.records() for cell in record.cells if cell.status == "ok"
    ]
    assert before <= set(ok)
    assert len(ok) == 4
    # The lock file is never removed, because two processes could then hold the lock.
    assert [path.name for path in stage.results.glob(".*")] == [LOCK]


@pytest.mark.parametrize("at", ["start", "load", "cell 0", "cell 1", "end"])
def test_killing_parent_and_child_loses_only_the_running_cell(tmp_path: Path, at: str) -> None:
    stage = Stage(tmp_path, variants=["a"], faults=[fault("hang", at, times=1)])

    def kill_when_it_hangs() -> None:
        def look(*_: object) -> None:
            # The child writes this file when it reaches the fault.
            if (tmp_path / "script.0").exists():
                os.kill(os.getpid(), signal.SIGKILL)

        signal.signal(signal.SIGALRM, look)
        signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)

    assert stage.sweep_apart(kill_when_it_hangs) == -signal.SIGKILL
    finished = {"start": 0, "load": 0, "cell 0": 0, "cell 1": 1, "end": 2}[at]
    assert stage.sweep(resume=True) == []
    assert f"{finished} of 2 cells are there already" in stage.printed
    assert stage.cells() == [(0, "a", 50, "ok"), (0, "a", 100, "ok")]


def test_full_disk_ends_the_sweep_and_saved_records_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path, rounds=2, faults=[fault("exit", "start", variant=name, round=1) for name in "ab"])
    stage.sweep()

    def full(*paths: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("benchmarker.schema.record_io.os.replace", full)
    with pytest.raises(ResultsError, match="the disk is full; make room or choose another folder with --output"):
        stage.sweep(resume=True)
    assert len(stage.cells()) == 4
    assert "variant" in stage.printed
    assert "decode tok/s" in stage.printed


def test_disk_full_before_the_first_record_is_the_only_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise ResultsError("order.jsonl: not saved: the disk is full")

    monkeypatch.setattr("benchmarker.sweep.attempt.append_lines", full)
    stage = Stage(tmp_path, variants=["a"], faults=[fault("exit", "start")])
    with pytest.raises(ResultsError, match="the disk is full"):
        stage.sweep()
    assert "no comparison" not in stage.printed
    assert "no records there" not in stage.printed


def test_full_file_system_keeps_every_finished_record(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f"mount -t tmpfs -o size=64k none {disk}"
    namespace = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    try:
        subprocess.run([*namespace, mount], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("cannot mount a file system, not even in a new user namespace")
    python = f"{mount} && {sys.executable} -m tests.faults.full_disk {disk}"
    process = subprocess.run([*namespace, python], capture_output=True, text=True, check=True)
    rounds = int(process.stdout.rsplit("whole records: ", 1)[1])
    assert rounds > 1
    assert f"{rounds} processes a variant" in " ".join(process.stdout.split())
    assert "not saved: the disk is full; make room or choose another folder with --output" in process.stdout


def test_file_size_limit_is_reported_and_keeps_finished_cells(tmp_path: Path) -> None:
    stage = Stage(tmp_path, variants=["a"])
    stage.sweep()
    stage.rounds = 2

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))

    assert stage.sweep_apart(limit, resume=True, rounds=2) == 1
    assert (
        "the limit on file size (ulimit -f) is too low; raise it or choose another folder"
        in (tmp_path / "traceback").read_text()
    )
    assert stage.cells() == [(0, "a", 50, "ok"), (0, "a", 100, "ok")]


def test_unwritable_folder_is_refused_before_any_process(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    stage = Stage(tmp_path / "home")
    with pytest.raises(ResultsError, match=r"results cannot be written there .* choose another folder with --output"):
        stage.sweep(output=tmp_path / "file" / "results")
    with pytest.raises(ResultsError, match="results cannot be written there"):
        stage.sweep(output=tmp_path / "file")


WRITTEN = ["results"]
"""Content of the stage's folder after a sweep, without .json and .yaml files."""
NAMES = ["../../escape", "a|b", "two\nlines", "\x1b[31mred\x1b[0m", "x" * 80, "a b;rm -rf /"]


def test_hostile_variant_names_stay_in_the_folder_and_the_table(tmp_path: Path) -> None:
    stage = Stage(tmp_path, variants=NAMES, new_tokens=[50])
    assert stage.sweep() == []
    assert {record.variant.name for record in stage.records()} == set(NAMES)
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix not in (".json", ".yaml")) == WRITTEN
    # Each variant has one line of the table, with its rate after its name.
    for name in ("a|b", "two lines", "red", "a b;rm -rf /"):
        assert re.search(rf"^{re.escape(name)} +[0-9.]+ ", stage.printed, re.MULTILINE), name
    assert "\x1b" not in stage.printed


def test_name_of_300_characters_is_refused_with_its_config_key(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"variants\[0\]\.name: string should have at most 80 characters"):
        Stage(tmp_path, variants=["n" * 300]).sweep()


@pytest.mark.parametrize("model", ["../../../etc", "m" * 300, "a|b\n\x1b[31m"])
def test_hostile_model_ids_stay_in_the_results_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    (tmp_path / "deep" / "down").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "deep" / "down")
    monkeypatch.setattr("benchmarker.sweep.run_sweep.check_models", lambda jobs: None)  # The models do not exist.
    stage = Stage(tmp_path / "home", variants=["a"], new_tokens=[50], model=model)
    assert stage.sweep(output=None) == []
    (sweep_file,) = tmp_path.rglob("sweep.json")
    relative = sweep_file.relative_to(tmp_path / "deep" / "down" / "results")
    assert len(relative.parts) == 4
    assert "\x1b" not in stage.printed
