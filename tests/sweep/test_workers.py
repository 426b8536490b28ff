"""Faults with each kind of worker: children of this process, GPUs of this host, and tasks on Ray.

The GPUs of this host are simulated: the fake child does not use one.
"""

from __future__ import annotations

import os
import re
import resource
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarker.core.errors import DeviceError, ResultsError, SpecError
from benchmarker.core.process import Terminated
from benchmarker.sweep import workers
from benchmarker.sweep.resume import locked
from benchmarker.sweep.sweep_plan import local_numbers
from benchmarker.sweep.workers import share_of, visible_card
from tests import records
from tests.faults.stage import Stage

TWO = "local:0,1"
THIS_HOST = [pytest.param(None, id="children"), pytest.param(TWO, id="cards")]
RAY = pytest.param("ray", id="ray", marks=[pytest.mark.slow, pytest.mark.by_hand])
ALL = [*THIS_HOST, RAY]


@pytest.fixture(autouse=True)
def _cluster_of_ray(request: pytest.FixtureRequest) -> None:
    """Start a Ray cluster for the tests that measure on one."""
    parameters = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    if parameters.get("places") == "ray" and request.node.get_closest_marker("slow"):
        request.getfixturevalue("cluster")


def fault(action: str, at: str = "cell 1", **more: Any) -> dict[str, Any]:
    return {"variant": "a", "at": at, "do": action, **more}


def workers_of_rounds(stage: Stage) -> dict[int, set[str | None]]:
    workers: dict[int, set[str | None]] = {}
    for record in stage.records():
        workers.setdefault(record.round, set()).add(record.place)
    return workers


@pytest.mark.parametrize("places", ALL)
def test_killed_child_is_replaced_by_one_process(tmp_path: Path, places: str | None) -> None:
    stage = Stage(tmp_path, rounds=2, faults=[fault("SIGKILL", round=1, times=1)])
    assert stage.sweep(places=places) == []
    assert "crashed: the process died of SIGKILL; once more in a fresh process" in stage.printed
    assert [cell for cell in stage.cells() if cell[3] == "ok"] == [
        (number, name, tokens, "ok") for number in range(2) for name in "ab" for tokens in (50, 100)
    ]
    assert all(len(workers) == 1 for workers in workers_of_rounds(stage).values())
    lines = stage.order()
    assert Counter((line.round, line.variant) for line in lines) == {(0, "a"): 1, (0, "b"): 1, (1, "a"): 2, (1, "b"): 1}


@pytest.mark.parametrize("places", ALL)
def test_config_edited_during_the_sweep_has_no_effect(tmp_path: Path, places: str | None) -> None:
    words = ("quant: fp16", "quant: bnb4")
    edit = fault("edit", "cell 0", round=0, file=str(tmp_path / "config.yaml"), words=words, times=1)
    stage = Stage(tmp_path, variants=["a"], rounds=2, faults=[edit])
    assert stage.sweep(places=places) == []
    assert words[1] in stage.config.read_text()
    assert {record.variant.quant for record in stage.records()} == {"fp16"}


@pytest.mark.parametrize("places", ALL)
def test_second_sweep_in_the_folder_is_refused(tmp_path: Path, places: str | None) -> None:
    stage = Stage(tmp_path)
    with (
        locked(stage.results),
        pytest.raises(ResultsError, match=rf"another sweep \(process {os.getpid()}\) is writing"),
    ):
        stage.sweep(places=places)
    assert not list(stage.results.glob("*.json"))
    assert stage.sweep(places=places) == []


@pytest.mark.parametrize("places", THIS_HOST)
def test_file_size_limit_ends_the_sweep_and_keeps_finished_cells(tmp_path: Path, places: str | None) -> None:
    stage = Stage(tmp_path, variants=["a"], rounds=2)
    stage.sweep(rounds=1, places=places)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))

    assert stage.sweep_apart(limit, resume=True, rounds=2, places=places) == 1
    assert "the limit on file size (ulimit -f) is too low; raise it or" in (tmp_path / "traceback").read_text()
    assert stage.cells() == [(0, "a", 50, "ok"), (0, "a", 100, "ok")]


def when_it_hangs(home: Path, action: Any) -> Any:
    """Return a function that calls the action in the main thread as soon as the child hangs."""

    def install() -> None:
        def look(*_: object) -> None:
            if (home / "script.0").exists():
                signal.setitimer(signal.ITIMER_REAL, 0)
                action()

        signal.signal(signal.SIGALRM, look)
        signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)

    return install


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("places", THIS_HOST)
def test_killed_worker_loses_no_finished_cell_and_leaves_no_process(tmp_path: Path, places: str | None) -> None:
    # On this host, the workers are threads: the sweep itself is killed.
    stage = Stage(tmp_path, rounds=3, variants=["a"], faults=[fault("hang", round=2, times=1)])
    assert stage.sweep_apart(when_it_hangs(tmp_path, kill), places=places) == -signal.SIGKILL
    assert not running_in(tmp_path)
    first = {(record.run_id, cell.new_tokens) for record in stage.records() for cell in record.cells}
    assert stage.sweep(resume=True, places=places) == []
    assert f"{len(first)} of 6 cells are there already" in stage.printed
    finished = {(record.run_id, cell.new_tokens) for record in stage.records() for cell in record.cells}
    assert first <= finished
    assert [cell[3] for cell in stage.cells()] == ["ok"] * 6
    assert all(len(workers) == 1 for workers in workers_of_rounds(stage).values())


@pytest.mark.parametrize("places", THIS_HOST)
def test_ctrl_c_leaves_no_process_and_keeps_finished_cells(tmp_path: Path, places: str | None) -> None:
    stage = Stage(tmp_path, rounds=2, variants=["a"], faults=[fault("hang", round=1)])
    assert stage.sweep_apart(when_it_hangs(tmp_path, interrupt), places=places) == 1
    assert "KeyboardInterrupt" in (tmp_path / "traceback").read_text()
    assert not running_in(tmp_path)
    assert (1, "a", 50, "ok") in stage.cells()
    assert "resume with: benchmarker sweep" in stage.printed


def test_each_gpu_measures_entire_rounds(tmp_path: Path) -> None:
    stage = Stage(tmp_path, rounds=4)
    assert stage.sweep(places=TWO) == []
    assert [cell[3] for cell in stage.cells()] == ["ok"] * 16
    workers = workers_of_rounds(stage)
    assert sorted(workers) == [0, 1, 2, 3]
    # The second round of a pair runs in reverse order on the same GPU, so that a drift within the pair cancels. On a
    # busy host, one GPU may overtake the other by an entire round.
    if sorted(Counter(worker for (worker,) in workers.values()).values()) == [2, 2]:
        assert workers[0] == workers[1]
    assert "4 rounds took" in stage.printed
    assert any("shared_host" in cell.flags for record in stage.records() for cell in record.cells)
    assert sorted(record.variant.name for record in stage.records() if record.procedure["profile"]) == ["a", "b"]
    assert {line.worker for line in stage.order()} == {"local:0", "local:1"}


def test_worker_is_prepared_and_measured_on_the_same_cores(tmp_path: Path) -> None:
    stage = Stage(tmp_path, rounds=4, variants=["a"])
    # The number of cores is part of a cell's key, so that a worker prepared on other cores would be refused.
    note = "grep Cpus_allowed_list /proc/self/status >>"
    stage.prepare_host = ("sh", "-c", f"{note} '{tmp_path}/prepared'; cat '{tmp_path}/environment.json'")
    stage.wrap = ("sh", "-c", f"{note} '{tmp_path}/measured'; exec \"$@\"", "sh")
    assert stage.sweep(places=TWO) == []
    prepared, measured = (set((tmp_path / name).read_text().splitlines()) for name in ("prepared", "measured"))
    assert measured <= prepared
    assert len(prepared) == min(2, len(os.sched_getaffinity(0)))


def test_records_with_and_without_places_differ_only_in_the_worker(tmp_path: Path) -> None:
    alone, card = Stage(tmp_path / "alone"), Stage(tmp_path / "card")
    alone.sweep()
    card.sweep(places="local:0")
    allowed = {"run_id", "started_at", "opened_at", "sweep", "place", "reproduce"}
    for first, second in zip(alone.records(), card.records(), strict=True):
        changed = {name for name in type(first).model_fields if getattr(first, name) != getattr(second, name)}
        assert changed <= allowed | {"cells"}
        assert [cell.key for cell in first.cells] == [cell.key for cell in second.cells]
        assert second.place == "local:0"
        assert all(cell.flags == () for cell in second.cells)


@pytest.mark.parametrize(
    ("places", "rounds", "expected"),
    [
        (TWO, 4, "at local:0,1: 2 rounds at a time"),
        (TWO, 1, "at local:0,1: 1 round at a time; 1 worker is not used: a worker measures entire rounds"),
        ("ray", 4, "at ray: one round at a time for each GPU; the guess is for one GPU"),
    ],
)
def test_plan_describes_the_workers(tmp_path: Path, places: str, rounds: int, expected: str) -> None:
    stage = Stage(tmp_path, rounds=rounds)
    stage.sweep(places=places, dry_run=True)
    assert expected in stage.printed


def test_forecast_is_that_of_the_gpu_with_most_rounds(tmp_path: Path) -> None:
    def minutes(**settings: Any) -> int:
        stage = Stage(tmp_path / str(settings), rounds=30)
        stage.sweep(dry_run=True, **settings)
        return int(re.findall(r"first guess: about (\d+) min", stage.printed)[0])

    alone = minutes()
    assert minutes(places=TWO) == pytest.approx(alone / 2, abs=1)
    assert minutes(places="local:0,1,2,3") == pytest.approx(alone * 8 / 30, abs=1)


def test_incomplete_round_of_another_gpu_is_measured_again(tmp_path: Path) -> None:
    stage = Stage(tmp_path, rounds=2)
    stage.sweep()
    next(stage.results.glob("b-round2*.json")).unlink()
    assert stage.sweep(resume=True, places=TWO) == []
    assert "4 of 8 cells are there already" in stage.printed
    assert "measured on another card, and its round is incomplete" in stage.printed
    assert [cell[3] for cell in stage.cells()] == ["ok"] * 8
    assert len(list(stage.results.glob("*.set-aside"))) == 1


def test_gpu_continues_its_incomplete_round(tmp_path: Path) -> None:
    stage = Stage(tmp_path, rounds=2)
    stage.sweep(places=TWO)
    before = workers_of_rounds(stage)
    next(stage.results.glob("b-round2*.json")).unlink()
    assert stage.sweep(resume=True, places=TWO) == []
    assert "6 of 8 cells are there already" in stage.printed
    assert workers_of_rounds(stage) == before


def test_gpu_unlike_the_first_is_excluded_with_the_difference(tmp_path: Path) -> None:
    stage = Stage(tmp_path, rounds=2)
    device = stage.environment.device
    older = stage.environment.model_copy(update={"device": device.model_copy(update={"driver": "1.0"})})
    (tmp_path / "older").write_text(older.model_dump_json())
    stage.prepare_host = (
        "sh",
        "-c",
        f'test "$CUDA_VISIBLE_DEVICES" = 0 && cat {tmp_path}/environment.json || cat {tmp_path}/older',
    )
    assert stage.sweep(places=TWO) == []
    assert "local:1: left out: device.driver: 580.159.04, then 1.0" in stage.printed
    assert workers_of_rounds(stage) == {0: {"local:0"}, 1: {"local:0"}}


def test_missing_checkpoint_is_reported_before_any_round(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.prepare_host = ("sh", "-c", "echo 'error: Qwen/Qwen3-4B: no such folder'; exit 2")
    with pytest.raises(DeviceError, match=r"local:0: Qwen/Qwen3-4B: no such folder$"):
        stage.sweep(places=TWO)
    assert not stage.results.exists()


def running_in(folder: Path) -> list[str]:
    """Return the command lines that contain this folder, after the kernel had time to end orphans."""
    psutil.wait_procs([process for process in psutil.process_iter() if mentions(process, folder)], timeout=5)
    return [" ".join(process.cmdline()) for process in psutil.process_iter() if mentions(process, folder)]


def mentions(process: psutil.Process, folder: Path) -> bool:
    try:
        return process.pid != os.getpid() and any(str(folder) in word for word in process.cmdline())
    except psutil.Error:
        return False


@pytest.mark.parametrize("places", ["local", "local:", "local:a", "slurm", "local:0,,1"])
def test_unknown_workers_are_refused(places: str) -> None:
    with pytest.raises(SpecError, match=r"no such workers; give 'local:0,1'"):
        local_numbers(places)


def test_duplicate_gpus_and_the_device_option_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="contains a number twice"):
        local_numbers("local:1,1")
    with pytest.raises(SpecError, match=r"--device cuda:1: --places selects the cards"):
        Stage(tmp_path).sweep("--device", "cuda:1", places=TWO)


def test_visible_card_is_one_of_cuda_visible_devices() -> None:
    assert visible_card(1, None) == "1"
    assert visible_card(1, "4,5") == "5"
    assert visible_card(0, "GPU-aa,GPU-bb") == "GPU-aa"


def test_cores_are_split_evenly_and_by_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "topology", lambda core: (core % 2, core))
    assert share_of(range(8), 0, 2) == (0, 2, 4, 6)
    assert share_of(range(8), 1, 2) == (1, 3, 5, 7)
    assert share_of(range(7), 2, 3) == (1, 3)
    assert share_of(range(1), 0, 2) == ()


def test_host_without_a_gpu_requires_device_cpu(tmp_path: Path) -> None:
    stage = Stage(tmp_path, environment=records.environment(device={"kind": "cpu", "index": None}))
    with pytest.raises(
        DeviceError, match=r"local:0: this host has no such GPU .*--device cpu measures on its processor"
    ):
        stage.sweep(places=TWO)
    assert not stage.results.exists()
    assert stage.sweep("--device", "cpu", places="local:0") == []


def test_sigterm_during_preparation_does_not_wait_for_other_gpus(tmp_path: Path) -> None:
    finished = tmp_path / "finished"
    script = f'if [ "$CUDA_VISIBLE_DEVICES" = 0 ]; then kill -TERM $PPID; fi; sleep 10; touch {finished}'
    stage = Stage(tmp_path, prepare_host=("sh", "-c", script))
    with pytest.raises(Terminated):
        stage.sweep(places=TWO)
    assert not finished.exists()
    for process in psutil.Process().children(recursive=True):
        process.kill()
        process.wait()
