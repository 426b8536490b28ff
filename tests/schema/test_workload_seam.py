"""A workload from one module and one line of the registry, in runs and sweeps of real processes."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from benchmarker.cli.sweep_command import sweep_config
from benchmarker.core.console import Streams, Terminal
from benchmarker.core.errors import SpecError
from benchmarker.schema.config_io import read_experiment
from benchmarker.schema.options import option_names
from benchmarker.schema.record import CellBase, Missing, RunRecord
from benchmarker.schema.record_io import collect
from benchmarker.schema.registry import WORKLOADS, workload_of
from benchmarker.sweep.request import Settings
from benchmarker.sweep.retries import decide
from benchmarker.sweep.workers import Tools
from tests.cli.test_cli import typed
from tests.jobs import known_host, read_job
from tests.throwaway import MODULE, NAME, PACKAGE, SITE

QUICK = {"warmup": 1, "warmup_limit": 1, "runs": 2, "rounds": 2, "limits": False, "profile": False}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder with the workload, registered in this process and its child processes."""
    (tmp_path / f"{MODULE}.py").write_text(PACKAGE)
    (tmp_path / "sitecustomize.py").write_text(SITE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{Path(__file__).parents[2]}")
    monkeypatch.setitem(WORKLOADS, NAME, MODULE)
    yield tmp_path
    sys.modules.pop(MODULE, None)


def config(home: Path, *variants: str) -> Path:
    path = home / "config.yaml"
    experiment = {
        "workload": NAME,
        "grid": {"ms": [1, 2], "naps": [1]},
        "procedure": QUICK,
        "variants": [{"name": name, "variant": name} for name in variants],
    }
    path.write_text(yaml.safe_dump(experiment))
    return path


def cell_times(record: RunRecord) -> list[float]:
    return [min(sample.latency_s for sample in cell.samples) for cell in record.cells]


def test_options_of_the_workload_are_its_fields(home: Path) -> None:
    names = option_names(workload_of(NAME))
    assert {"--dreams": False, "--ms": True, "--naps": True, "--runs": True}.items() <= names.items()
    assert "--quant" not in names
    job = read_job([NAME, "--variant", "still", "--ms", "3,4", "--runs", "7"])
    assert (job.workload, job.variant.name, job.grid.ms, job.procedure.runs) == (NAME, "still", (3, 4), 7)
    assert job.reproduce == "python -m benchmarker.run sleep --variant still --ms 3,4 --runs 7"
    with pytest.raises(SpecError, match="--dreams: nobody can measure them; leave them out"):
        read_job([NAME, "--variant", "still", "--dreams"])


def test_config_of_the_workload_is_read_or_raises(home: Path) -> None:
    path = config(home, "still")
    assert read_experiment(path).grid.ms == (1, 2)
    path.write_text("workload: slep\nvariants: [{variant: still}]\n")
    with pytest.raises(SpecError, match=r"config.yaml: workload: no workload 'slep'; did you mean 'sleep'\?"):
        read_experiment(path)
    path.write_text("workload: sleep\ngrid: {mss: [1]}\nvariants: [{name: a, variant: still}]\n")
    with pytest.raises(SpecError, match=r"config.yaml: grid: no key 'mss'; did you mean 'ms'\?"):
        read_experiment(path)


def test_run_of_the_workload_writes_raw_samples(home: Path) -> None:
    quick = ("--runs", "2", "--warmup", "1", "--warmup-limit", "1", "--no-limits", "--no-profile", "--device", "cpu")
    text = output_of("run", NAME, "--variant", "still", "--ms", "1,2", *quick, "--output", home / "results")
    assert "cell: 1 ms, 1 naps" in text
    (record,) = collect([home / "results"]).records
    assert (record.workload, record.status, [cell.status for cell in record.cells]) == (NAME, "complete", ["ok"] * 2)
    assert all(sample.calls > 1 for cell in record.cells for sample in cell.samples), "a nap of 1 ms is too short"
    assert cell_times(record)[0] >= 0.001
    assert cell_times(record)[1] >= 0.002
    assert {cell.checked.against for cell in record.cells if cell.checked} == {"a clock"}


def test_wrong_result_has_no_samples(home: Path) -> None:
    arguments = ("--config", config(home, "wrong", "insomniac"), "--variant", "wrong")
    code, text = typed("run", *arguments, "--device", "cpu", "--output", home / "results")
    assert code == 1, text
    (record,) = collect([home / "results"]).records
    kinds = {(cell.status, cell.error_kind, cell.reason, cell.samples) for cell in record.cells}
    assert kinds == {("invalid", "wrong_result", "it was awake", ())}


def test_sweep_of_the_workload_resumes_with_a_new_metric(home: Path) -> None:
    path, out = config(home, "still", "restless"), io.StringIO()

    def sweep(tools: Tools, **settings: object) -> list[str]:
        shared = {"output": home / "results", "seed": 1, "shared_imports": True}
        requested = Settings(**{**shared, **settings})  # type: ignore[arg-type]
        return sweep_config(
            path, ["--device", "cpu"], Terminal(streams=Streams(out, out)), requested, tools=tools, report=("true",)
        )

    assert sweep(Tools(watch_host=None), rounds=1) == []
    assert "cells: 1 ms, 1 naps; 2 ms, 1 naps" in out.getvalue()
    assert "naps/s" in out.getvalue()
    add_a_metric(home)
    assert sweep(Tools(watch_host=None, prepare_host=known_host(home)), rounds=2, resume=True) == []
    assert "of 8 cells are there already" in out.getvalue()
    results = str(home / "results")
    records = collect([home / "results"]).records
    times = {(record.variant.name, record.round): cell_times(record) for record in records if record.cells[0].samples}
    assert set(times) == {("still", 0), ("restless", 0), ("still", 1), ("restless", 1)}
    assert min(times["restless", 0]) >= 0.002

    # Both rounds have the metric, although it was added after the first round.
    assert "ms a nap" in output_of("compare", results, "--all")
    rows = json.loads(output_of("compare", results, "--format", "json"))
    assert {row["rounds"] for row in rows if row["nap_time_s"] is not None} == {2}
    assert "`nap_time<1s`" in output_of("compare", results, "--budget", "nap_time<1s")
    assert "still" in output_of("explain", results)
    assert "all follow from the raw samples" in output_of("verify", results)
    output_of("report", results, "--output", str(home / "page.html"))
    assert "ms a nap" in (home / "page.html").read_text()


def add_a_metric(home: Path) -> None:
    """Add one entry to the metrics, as in docs/extending.md."""
    entry = """
        Metric(
            "nap_time", "ms a nap", "s", 1e3, "lower", "latency divided by naps",
            of_sample=lambda cell, sample: sample.latency_s / cell.naps,
        ),
    )
    headline = """
    (home / f"{MODULE}.py").write_text(PACKAGE.replace("    )\n    headline = ", entry.lstrip("\n")))
    sys.modules.pop(MODULE)


def output_of(*arguments: object) -> str:
    """Run a command that must exit with 0, and return its output."""
    code, text = typed(*arguments)
    assert code == 0, text
    return text


def test_cells_larger_than_an_oom_cell_are_skipped(home: Path) -> None:
    workload = workload_of(NAME)
    points = read_job([NAME, "--variant", "still", "--ms", "1,2", "--naps", "1,2"]).grid.points()
    fault = Missing(error_kind="oom_host", reason="no room")
    decision = decide((0, 1, 2, 3), [], fault, phase="cell", tries={}, points=points, workload=workload)
    assert [points[position][:2] for position in decision.failed] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    decision = decide((1, 2, 3), [], fault, phase="cell", tries={}, points=points, workload=workload)
    assert decision.pending == (2,)
    assert decision.failed[3].reason == "not tried: the smaller 1 ms, 2 naps ran out of memory"


def test_unmeasured_cell_has_its_axes(home: Path) -> None:
    workload = workload_of(NAME)
    job = read_job([NAME, "--variant", "still"])
    fields = workload.cell_fields(job, job.grid.points()[0], [])
    assert fields == {"ms": 1, "naps": 1}
    assert issubclass(workload.cell_class, CellBase)
