"""Children are forks of one process per round and equal new processes except for their imports."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarker.sweep import fork_server
from benchmarker.sweep.fork_server import ChildProcess, Starter

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="on other systems each child is a new process")

CHILD = """
import json, os, signal, sys, time
print(json.dumps({
    "arguments": sys.argv[1:],
    "parent": os.getppid(),
    "is_session_leader": os.getsid(0) == os.getpid(),
    "is_interruptible": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    "imported": "colorsys" in sys.modules,
    "threads": [os.environ.get(name) for name in ("OPENBLAS_NUM_THREADS", "JE_ARROW_MALLOC_CONF")],
    "named_parent": int(os.environ["BENCHMARKER_PARENT"]),
}))
print("to standard error", file=sys.stderr)
if "sleep" in sys.argv:
    time.sleep(60)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture(autouse=True)
def child_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_child.py").write_text(CHILD)
    (tmp_path / "starts_a_thread.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))


def start_child(starter: Starter, *arguments: str, round_number: int | None = 0) -> tuple[ChildProcess, io.FileIO]:
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "a_child", *arguments]
    process = starter.start(command, writing, round_number=round_number)
    os.close(writing)
    return process, io.FileIO(reading)


def run_child(starter: Starter, *arguments: str, round_number: int | None = 0) -> tuple[int, dict[str, object]]:
    """Return a child's exit code and its output."""
    process, output = start_child(starter, *arguments, round_number=round_number)
    with output:
        line, error = output.readall().decode().splitlines()
    assert error == "to standard error"
    facts: dict[str, object] = json.loads(line)
    return process.wait(10), facts


def test_fork_equals_a_new_process_except_for_its_imports() -> None:
    forks, new_processes = Starter(["colorsys"]), Starter()
    try:
        code, fork = run_child(forks, "3", "x")
        assert code == 3
        assert fork == {**run_child(new_processes, "3", "x")[1], "imported": True, "parent": fork["parent"]} | {
            "named_parent": fork["parent"]
        }
    finally:
        forks.close()


def test_children_have_one_parent_per_round() -> None:
    forks = Starter(["colorsys"])
    try:
        parents = [run_child(forks, "0", round_number=number)[1]["parent"] for number in (0, 0, 1, None)]
    finally:
        forks.close()
    assert parents[0] == parents[1]
    assert len(set(parents)) == 3
    assert os.getpid() not in parents


def test_fork_can_time_out_and_be_killed() -> None:
    forks = Starter(["colorsys"])
    try:
        process, output = start_child(forks, "0", "sleep")
        with output:
            output.read(1)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.05)
            os.killpg(process.pid, signal.SIGTERM)
            assert process.wait(10) == process.returncode == -signal.SIGTERM
        assert run_child(forks, "0")[0] == 0
    finally:
        forks.close()


def test_fork_ends_with_its_parent() -> None:
    forks = Starter(["colorsys"])
    try:
        process, output = start_child(forks, "0", "sleep")
        with output:
            output.read(1)
            parent = int(Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
            os.kill(parent, signal.SIGKILL)
            assert process.wait(10) == -signal.SIGKILL
    finally:
        forks.close()


def test_modules_that_start_threads_are_imported_by_each_process() -> None:
    printed = io.StringIO()
    forks = Starter(
        ["colorsys", "starts_a_thread", "no_such_module"], print_line=lambda line: print(line, file=printed)
    )
    try:
        assert run_child(forks, "0")[1]["imported"] is True
        assert run_child(forks, "0", round_number=1)[1]["imported"] is True
    finally:
        forks.close()
    assert re.fullmatch(
        r"starts_a_thread starts a thread \(\S+\) when it is imported: each process imports that itself\n",
        printed.getvalue(),
    )


@pytest.mark.skipif(find_spec("pyarrow") is None, reason="needs pyarrow")
def test_pyarrow_is_imported_before_the_fork() -> None:
    printed = io.StringIO()
    # pandas imports pyarrow if both are installed, and transformers imports pandas.
    forks = Starter(["numpy", "pyarrow", "colorsys"], print_line=lambda line: print(line, file=printed))
    try:
        assert run_child(forks, "0")[1]["imported"] is True
    finally:
        forks.close()
    assert printed.getvalue() == ""


def test_children_are_new_processes_if_no_module_can_be_imported() -> None:
    printed = io.StringIO()
    forks = Starter(["no_such_module"], print_line=lambda line: print(line, file=printed))
    assert run_child(forks, "0")[1]["parent"] == os.getpid()
    forks.close()
    assert "no_such_module cannot be imported (ModuleNotFoundError)" in printed.getvalue()


def test_other_programs_are_started_without_a_fork(tmp_path: Path) -> None:
    forks = Starter(["colorsys"])
    with (tmp_path / "output").open("wb") as output:
        process = forks.start(["true"], output.fileno(), round_number=0)
    assert process.wait(10) == 0


def test_open_device_files_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = tmp_path / "nvidia0"
    device.touch()
    monkeypatch.setattr(fork_server, "DEVICE_FILES", (str(device),))
    assert fork_server.device_files() == []
    with device.open():
        assert fork_server.device_files() == [str(device)]
