"""Sweeps on Ray: on a fake, and on a cluster of two hosts on this machine with a simulated GPU each."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarker.cli.sweep_command import sweep_config
from benchmarker.core.console import Terminal
from benchmarker.core.errors import DeviceError, ResultsError, SpecError
from benchmarker.schema.config_io import find_config
from benchmarker.schema.record_io import collect
from benchmarker.sweep.ray_workers import RayPool, cores_each, measure, workers_of
from benchmarker.sweep.request import Settings
from tests.faults.stage import Stage
from tests.sweep.fake_ray import FakeRay, WorkerCrashedError
from tests.sweep.test_workers import running_in, workers_of_rounds

slow = pytest.mark.slow
"""Slow tests fail without Ray; they are not skipped."""


def node(name: str, **resources: float) -> dict[str, Any]:
    return {"NodeID": f"id-of-{name}", "NodeManagerHostname": name, "Alive": True, "Resources": resources}


def test_each_gpu_of_an_alive_host_is_a_worker() -> None:
    nodes = [node("head", CPU=8.0), node("big", GPU=2.0, CPU=64.0), node("small", GPU=1.0, CPU=12.0)]
    nodes.append({**node("dead", GPU=8.0, CPU=8.0), "Alive": False})
    assert [worker.name for worker in workers_of(nodes)] == ["big/0", "big/1", "small/0"]
    assert [worker.slots for worker in workers_of(nodes)] == [2, 2, 1]
    assert cores_each(nodes) == 12
    assert cores_each([node("poor", GPU=4.0, CPU=2.0)]) == 1


def test_hosts_with_equal_names_get_different_worker_names() -> None:
    twins = [{**node("twin", GPU=1.0, CPU=1.0), "NodeID": identity} for identity in ("aaaaaaaa", "bbbbbbbb")]
    assert [worker.name for worker in workers_of(twins)] == ["twin-aaaaaa/0", "twin-bbbbbb/0"]


def test_runtime_env_without_ray_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="--runtime-env goes with --places ray"):
        Stage(tmp_path).sweep(places="local:0", runtime_env=tmp_path / "env.yaml")


@pytest.fixture
def fake_ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    ray = FakeRay()
    # Tasks change these environment variables of their process.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", ".")
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(RayPool, "_near", lambda self, host: None)
    return ray


def test_sweep_on_ray_measures_entire_rounds_and_returns_their_files(fake_ray: FakeRay, tmp_path: Path) -> None:
    alone, stage = Stage(tmp_path / "alone", rounds=4), Stage(tmp_path / "ray", rounds=4)
    alone.sweep()
    assert stage.sweep(places="ray") == []
    assert stage.cells() == alone.cells()
    assert all(len(workers) == 1 for workers in workers_of_rounds(stage).values())
    assert {line.worker for line in stage.order()} <= {"node/0", "node/1"}
    assert len(stage.order()) == 8
    assert sorted(record.variant.name for record in stage.records() if record.procedure["profile"]) == ["a", "b"]
    assert not fake_ray.is_up


def test_round_of_a_lost_task_is_repeated_without_abandoned_cells(
    fake_ray: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path, rounds=3, faults=[{"variant": "a", "at": "load", "do": "unsupported", "round": 0}])
    deaths = iter([False, False, True])

    def measure_or_die(*arguments: Any) -> Any:
        if next(deaths, False):
            raise WorkerCrashedError
        return measure(*arguments)

    monkeypatch.setattr("benchmarker.sweep.ray_workers.measure", measure_or_die)
    assert stage.sweep(places="ray") == ["a, round 1"]
    assert "Ray lost it: WorkerCrashedError; round 2 is run again" in stage.printed
    assert {cell[:2] for cell in stage.cells() if cell[3] == "ok"} >= {(number, "b") for number in range(3)}
    failure = next(line for line in stage.printed.splitlines() if line.startswith("  log: "))
    assert Path(failure.removeprefix("  log: ")).parent == stage.results
    assert Path(failure.removeprefix("  log: ")).exists()


def test_time_left_of_a_round_on_ray_excludes_quality(
    fake_ray: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judgements: dict[str, Any] = {}

    def measure_and_note(*arguments: Any) -> Any:
        judgements[str(arguments[2])] = arguments[3].schedule.judgements
        return measure(*arguments)

    monkeypatch.setattr("benchmarker.sweep.ray_workers.measure", measure_and_note)
    stage = Stage(tmp_path, new_tokens=[50], rounds=2)
    assert stage.sweep("--quality", "quick", places="ray") == []
    assert judgements == {"round 1": [], "round 2": [], "judging a, b": [("a", "b")]}


def test_full_disk_ends_a_sweep_on_ray(fake_ray: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, text: str) -> None:
        raise ResultsError(f"{path}: not saved: the disk is full")

    stage = Stage(tmp_path, variants=["a"])
    monkeypatch.setattr("benchmarker.sweep.ray_workers.write_atomically", full)
    with pytest.raises(ResultsError, match="not saved: the disk is full"):
        stage.sweep(places="ray")
    assert "resume with: benchmarker sweep" in stage.printed


def once(action: str, round_number: int) -> dict[str, Any]:
    return {"variant": "a", "at": "cell 1", "do": action, "round": round_number, "times": 1}


@slow
@pytest.mark.by_hand
def test_entire_rounds_are_returned_through_the_object_store(cluster: Any, tmp_path: Path) -> None:
    alone, stage = Stage(tmp_path / "alone", rounds=4), Stage(tmp_path / "ray", rounds=4)
    alone.sweep()
    assert stage.sweep(places="ray") == []
    assert all(len(workers) == 1 for workers in workers_of_rounds(stage).values())
    assert [cell.key for record in stage.records() for cell in record.cells] == [
        cell.key for record in alone.records() for cell in record.cells
    ]
    assert stage.cells() == alone.cells()


@slow
@pytest.mark.by_hand
def test_round_of_a_killed_worker_is_repeated(cluster: Any, tmp_path: Path) -> None:
    stage = Stage(tmp_path, rounds=3, faults=[once("kill the worker's parent", 1)])
    assert stage.sweep(places="ray") == []
    assert [cell[3] for cell in stage.cells()] == ["ok"] * 12
    assert all(len(workers) == 1 for workers in workers_of_rounds(stage).values())


@slow
@pytest.mark.by_hand
def test_round_of_a_killed_host_is_repeated_on_another_host(cluster: Any, tmp_path: Path) -> None:
    stage = Stage(tmp_path, rounds=4, faults=[once("kill the host", 2)])
    assert stage.sweep(places="ray") == []
    assert [cell[3] for cell in stage.cells()] == ["ok"] * 16
    assert all(len(workers) == 1 for workers in workers_of_rounds(stage).values())


@slow
@pytest.mark.by_hand
def test_killed_driver_loses_no_finished_round_and_leaves_no_task(cluster: Any, tmp_path: Path) -> None:
    stage = Stage(tmp_path, rounds=3, variants=["a"], faults=[once("hang", 2)])
    # Not a fork, because the threads that Ray started in this process do not exist in a fork.
    driver = subprocess.Popen([sys.executable, "-m", "tests.faults.ray_driver", str(tmp_path)])
    while not ((tmp_path / "script.0").exists() and list(stage.results.glob("a-round*.json"))):
        assert driver.poll() is None
        time.sleep(0.1)
    driver.kill()
    driver.wait()
    first = {record.run_id for record in stage.records()}
    ended_s = time.monotonic() + 60
    while (left := running_in(tmp_path)) and time.monotonic() < ended_s:
        time.sleep(0.5)
    assert not left
    assert stage.sweep(resume=True, places="ray") == []
    assert first < {record.run_id for record in stage.records()}
    assert [cell[3] for cell in stage.cells()] == ["ok"] * 6


@slow
@pytest.mark.by_hand
def test_cluster_without_a_gpu_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.cluster_utils import Cluster

    bare = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 0, "include_dashboard": False})
    monkeypatch.setenv("RAY_ADDRESS", bare.address)
    try:
        with pytest.raises(DeviceError, match="the cluster has no GPU"):
            Stage(tmp_path).sweep(places="ray")
    finally:
        bare.shutdown()
    assert not [process for process in psutil.Process().children(recursive=True) if "raylet" in process.name()]


@slow
@pytest.mark.by_hand
@pytest.mark.timeout(1800)
def test_quickstart_variants_run_on_two_hosts(cluster: Any, tmp_path: Path) -> None:
    config = find_config(Path("quickstart"))
    options = ("--runs", "1", "--warmup", "1", "--warmup-limit", "1", "--no-profile", "--quality", "off")
    settings = Settings(rounds=2, seed=1, places="ray", output=tmp_path / "ray")
    assert sweep_config(config, options, Terminal(), settings) == []
    records = collect([tmp_path / "ray"]).records
    valid = [record for record in records if {cell.status for cell in record.cells} == {"ok"}]
    assert sorted((record.round, record.variant.name) for record in valid) == sorted(
        (number, name)
        for number in range(2)
        for name in ("fp16", "fp16-compile", "int8", "gptq", "gptq-compile", "bnb4")
    )
    # Both hosts share the cores of this machine: a disturbed run is repeated, and its record keeps the reason.
    disturbed = [cell for record in records if record not in valid for cell in record.cells]
    assert all(cell.status == "invalid" and "other programs took" in (cell.reason or "") for cell in disturbed)
    assert len({record.place for record in records}) == 2
