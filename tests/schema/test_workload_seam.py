"""A workload is a folder and one line of the registry: here one that sleeps runs and sweeps, in real processes."""

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
    """A folder with the workload, known to this process and to those that it starts."""
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


def test_its_options_are_its_fields(home: Path) -> None:
    names = option_names(workload_of(NAME))
    assert {"--dreams": False, "--ms": True, "--naps": True, "--runs": True}.items() <= names.items()
    assert "--quant" not in names
    job = read_job([NAME, "--variant", "still", "--ms", "3,4", "--runs", "7"])
    assert (job.workload, job.variant.name, job.grid.ms, job.procedure.runs) == (NAME, "still", (3, 4), 7)
    assert job.reproduce == "python -m benchmarker.run sleep --variant still --ms 3,4 --runs 7"
    with pytest.raises(SpecError, match="--dreams: nobody can measure them; leave them out"):
        read_job([NAME, "--variant", "still", "--dreams"])


def test_a_config_names_it_and_its_mistakes_are_one_line(home: Path) -> None:
    path = config(home, "still")
    assert read_experiment(path).grid.ms == (1, 2)
    path.write_text("workload: slep\nvariants: [{variant: still}]\n")
    with pytest.raises(SpecError, match=r"config.yaml: workload: no workload 'slep'; did you mean 'sleep'\?"):
        read_experiment(path)
    path.write_text("workload: sleep\ngrid: {mss: [1]}\nvariants: [{name: a, variant: still}]\n")
    with pytest.raises(SpecError, match=r"config.yaml: grid: no key 'mss'; did you mean 'ms'\?"):
        read_experiment(path)


def test_one_run_of_it_is_a_record_with_raw_samples(home: Path) -> None:
    quick = ("--runs", "2", "--warmup", "1", "--warmup-limit", "1", "--no-limits", "--no-profile", "--device", "cpu")
    text = succeeding("run", NAME, "--variant", "still", "--ms", "1,2", *quick, "--output", home / "results")
    assert "cell: 1 ms, 1 naps" in text
    (record,) = collect([home / "results"]).records
    assert (record.workload, record.status, [cell.status for cell in record.cells]) == (NAME, "complete", ["ok"] * 2)
    assert all(sample.calls > 1 for cell in record.cells for sample in cell.samples), "a nap of 1 ms is too short"
    assert cell_times(record)[0] >= 0.001
    assert cell_times(record)[1] >= 0.002
    assert {cell.checked.against for cell in record.cells if cell.checked} == {"a clock"}


def test_what_is_wrong_or_cannot_be_done_has_no_times(home: Path) -> None:
    given = ("--config", config(home, "wrong", "insomniac"), "--variant", "wrong")
    code, text = typed("run", *given, "--device", "cpu", "--output", home / "results")
    assert code == 1, text
    (record,) = collect([home / "results"]).records
    kinds = {(cell.status, cell.error_kind, cell.reason, cell.samples) for cell in record.cells}
    assert kinds == {("invalid", "wrong_result", "it was awake", ())}


def test_a_sweep_of_it_goes_on_where_it_was_with_a_metric_more_and_is_compared_explained_reported_and_verified(
    home: Path,
) -> None:
    path, out = config(home, "still", "restless"), io.StringIO()

    def sweep(tools: Tools, **settings: object) -> list[str]:
        shared = {"output": home / "results", "seed": 1, "shared_imports": True}
        asked = Settings(**{**shared, **settings})  # type: ignore[arg-type]
        return sweep_config(
            path, ["--device", "cpu"], Terminal(streams=Streams(out, out)), asked, tools=tools, report=("true",)
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

    # Both rounds have the metric, although the first was measured before anybody thought of it.
    assert "ms a nap" in succeeding("compare", results, "--all")
    rows = json.loads(succeeding("compare", results, "--format", "json"))
    assert {row["rounds"] for row in rows if row["nap_time_s"] is not None} == {2}
    assert "`nap_time<1s`" in succeeding("compare", results, "--budget", "nap_time<1s")
    assert "still" in succeeding("explain", results)
    assert "all follow from the raw samples" in succeeding("verify", results)
    succeeding("report", results, "--output", str(home / "page.html"))
    assert "ms a nap" in (home / "page.html").read_text()


def add_a_metric(home: Path) -> None:
    """As docs/extending.md says: one entry."""
    entry = """
        Metric(
            "nap_time", "ms a nap", "s", 1e3, "lower", "latency divided by naps",
            of_sample=lambda cell, sample: sample.latency_s / cell.naps,
        ),
    )
    headline = """
    (home / f"{MODULE}.py").write_text(PACKAGE.replace("    )\n    headline = ", entry.lstrip("\n")))
    sys.modules.pop(MODULE)


def succeeding(*arguments: object) -> str:
    """What a command prints, which exits with 0."""
    code, text = typed(*arguments)
    assert code == 0, text
    return text


def test_what_is_at_least_as_large_as_a_cell_that_did_not_fit_is_not_tried(home: Path) -> None:
    workload = workload_of(NAME)
    points = read_job([NAME, "--variant", "still", "--ms", "1,2", "--naps", "1,2"]).grid.points()
    fault = Missing(error_kind="oom_host", reason="no room")
    decision = decide((0, 1, 2, 3), [], fault, phase="cell", tries={}, points=points, workload=workload)
    assert [points[position][:2] for position in decision.failed] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    decision = decide((1, 2, 3), [], fault, phase="cell", tries={}, points=points, workload=workload)
    assert decision.pending == (2,)
    assert decision.failed[3].reason == "not tried: the smaller 1 ms, 2 naps ran out of memory"


def test_a_cell_that_nobody_measured_has_its_axes(home: Path) -> None:
    workload = workload_of(NAME)
    job = read_job([NAME, "--variant", "still"])
    fields = workload.cell_fields(job, job.grid.points()[0], [])
    assert fields == {"ms": 1, "naps": 1}
    assert issubclass(workload.cell_class, CellBase)
