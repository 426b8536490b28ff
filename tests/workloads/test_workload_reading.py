"""A workload with one module and one entry in the registry is compared, gated, budgeted, reported and verified.

The workload only sleeps. All properties of its numbers come from its description.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarker.comparison.gate import check, gate_blocks, gate_to_rows
from benchmarker.comparison.recommend import recommend
from benchmarker.comparison.results import to_rows
from benchmarker.comparison.rows import cell_of, keys_of
from benchmarker.core import tables
from benchmarker.core.errors import ResultsError, SpecError
from benchmarker.report.answer import recommendation_blocks, recommendation_to_dict
from benchmarker.report.compare import compare, to_markdown
from benchmarker.report.html.page import to_html
from benchmarker.report.run_summary import read_record, run_blocks
from benchmarker.report.verify import verify
from benchmarker.schema import registry
from benchmarker.schema.record import Demand, Limits, Memory, RunRecord, VariantFacts
from benchmarker.schema.record_io import write_json
from tests.cli.test_cli import typed
from tests.records import compare_records, environment, record

SOURCE = '''
"""Sleeping: how well does a bed of this length sleep?"""

from typing import Literal

from benchmarker.schema.job import ExperimentBase
from benchmarker.schema.job import Job
from benchmarker.schema.record import CellBase, RunRecord, SampleBase
from benchmarker.schema.registry import Axis, Metric
from benchmarker.workloads.base import Workload


class NapCell(CellBase):
    naps: int
    mode: str
    snores: int = 3


class NapRecord(RunRecord):
    workload: Literal["sleeping"] = "sleeping"
    cells: tuple[NapCell, ...] = ()


class Sleeping(Workload):
    name = "sleeping"
    unit = "nap"
    experiment = ExperimentBase
    job = Job
    record = NapRecord
    axes = (
        Axis("naps", "naps", lambda naps: f"{naps} naps"),
        Axis("mode", "mode", lambda mode: f"{mode} sleep", is_size=False),
    )
    metrics = (
        Metric("knaps", "kNAP/s", "1/s", 1e-3, "higher", "naps by seconds", of_latency=lambda cell, s: cell.naps / s),
        Metric("doze", "doze ms", "s", 1e3, "lower", "dozing", of_sample=lambda cell, sample: sample.parts_s["doze"]),
        Metric("snores", "snores", "", 1.0, "lower", "snores", of_cell=lambda record, cell: cell.snores, combine="max"),
    )
    headline = "knaps"


WORKLOAD = Sleeping()
'''
LIMITS = Limits(
    read_bytes_per_s=1e9,
    copy_bytes_per_s=2e9,
    array_bytes=2**20,
    matmul_flops_per_s=1e12,
    matmul_dtype="float32",
    matmul_size=1024,
)


@pytest.fixture(autouse=True)
def sleeping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Write the workload's package and register it."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "sleeping_workload.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(package))
    monkeypatch.setitem(registry.WORKLOADS, "sleeping", "sleeping_workload")
    yield __import__("sleeping_workload")
    del sys.modules["sleeping_workload"]


def nap(name: str, latencies_s: Sequence[float], round_number: int, **fields: Any) -> RunRecord:
    """Return the record of one process with two lengths, in which dozing takes half of the time."""
    module: Any = sys.modules["sleeping_workload"]
    cells = tuple(
        module.NapCell(
            status="ok",
            naps=naps,
            mode="deep",
            inputs_sha256="ab" * 32,
            samples=tuple(
                module.SampleBase(
                    latency_s=naps * latency_s, parts_s={"doze": naps * latency_s / 2}, peak_allocated_bytes=2**30
                )
                for latency_s in latencies_s
            ),
            memory=Memory(peak_allocated_bytes=2**30, peak_reserved_bytes=2**31),
            demand=Demand(flops=0, bytes=naps * 1_000_000),
        )
        for naps in (10, 1000)
    )
    defaults: dict[str, Any] = {
        "benchmarker": "0.1.0",
        "run_id": f"{name}-{round_number}",
        "started_at": f"2026-03-01T10:{round_number:02}:00Z",
        "status": "complete",
        "round": round_number,
        "sweep": "2026-03-01T10:00:00Z",
        "variant": VariantFacts(name=name),
        "environment": environment(),
        "procedure": {"warmup": 3, "runs": len(latencies_s)},
        "limits": LIMITS,
        "cells": cells,
        "reproduce": f"benchmarker run sleeping --variant {name}",
    }
    run_record: RunRecord = module.NapRecord(**{**defaults, **fields})
    return run_record


def sweep(folder: Path, bunk_s: float = 0.02) -> Path:
    for number, drift in enumerate((1.0, 1.01, 0.99)):
        for name, middle_s in (("bed", 0.01), ("bunk", bunk_s)):
            times = [drift * middle_s * share for share in (0.999, 1.0, 1.001, 1.002)]
            write_json(nap(name, times, number), folder / f"{name}-{number}.json")
    return folder


def test_rows_have_the_axes_and_metrics_of_the_workload(tmp_path):
    rows = to_rows(compare(sweep(tmp_path / "a")))
    assert [(row["variant"], row["naps"], row["mode"]) for row in rows] == [
        ("bed", 10, "deep"),
        ("bunk", 10, "deep"),
        ("bed", 1000, "deep"),
        ("bunk", 1000, "deep"),
    ]
    bed, bunk = rows[2:]
    # The rate is computed from the median time (1.0005 of the middle time), not as the mean of the four rates.
    assert bed["knaps_per_s"] == pytest.approx(100 / 1.0005, rel=1e-4)
    assert bed["doze_s"] == pytest.approx(5 * 1.0005, rel=1e-4)
    assert (bed["snores"], bed["verdict"], bunk["verdict"]) == (3, "baseline", "slower")
    assert bed["floor_s"] == 0.5


def test_tables_have_the_units_of_the_workload(tmp_path):
    text = to_markdown(compare(sweep(tmp_path / "a")))
    for phrase in (
        "At 1000 naps, deep sleep",
        "kNAP/s",
        "doze ms",
        "snores",
        "Speed-up is relative to bed, in kNAP/s",
        "Floor",
    ):
        assert phrase in text
    assert "0.09995 [" in text
    for phrase in ("tok", "TTFT", "MBU", "prompt", "model:"):
        assert phrase not in text


def test_run_summary_shows_the_cells(tmp_path):
    text = tables.to_markdown(run_blocks(compare_records([read_record(sweep(tmp_path / "a") / "bed-0.json")])))
    assert "| naps | mode |" in text
    assert "variant: bed" in text


def test_gate_compares_two_sweeps(tmp_path):
    before, after = compare(sweep(tmp_path / "a")), compare(sweep(tmp_path / "b", bunk_s=0.03))
    gate = check(before, after, limit="slower:5%")
    assert gate.is_failed
    assert "before kNAP/s" in tables.to_markdown(gate_blocks(gate))
    assert [(row["variant"], row["naps"], row["failed"]) for row in gate_to_rows(gate)] == [
        ("bed", 10, False),
        ("bunk", 10, True),
        ("bed", 1000, False),
        ("bunk", 1000, True),
    ]


def test_budget_accepts_the_names_and_units_of_the_metrics(tmp_path):
    results = compare(sweep(tmp_path / "a"))
    recommendation = recommend(results, "knaps>0.09kNAP/s, doze<6000ms, memory<2GiB, snores<4")
    assert recommendation_to_dict(recommendation)["variant"] == "bed"
    assert "runtime" not in tables.to_markdown(recommendation_blocks(recommendation))
    assert recommend(results, "knaps>90").chosen is None
    with pytest.raises(SpecError, match="'ttft' cannot be limited"):
        recommend(results, "ttft<1s")


def test_report_has_the_charts_that_apply(tmp_path):
    comparison = compare(sweep(tmp_path / "a"))
    charts = registry.workload_of(comparison.workload).charts(comparison)
    assert [chart.name for chart in charts] == ["speed", "speed-memory", "naps", "cells", "rounds"]
    page = to_html(comparison, charts)
    assert "sleeping on NVIDIA H100 80GB HBM3" in page
    assert "tokens per second" not in page
    code, text = typed("report", str(tmp_path / "a"), "-o", str(tmp_path / "page.html"))
    assert code == 0, text


def test_chart_note_has_a_wide_interval_in_the_metrics_unit(tmp_path):
    for number, drift in enumerate((1.0, 1.5, 2.5)):
        for name, drift_of in (("bed", 1.0), ("bunk", drift)):
            write_json(nap(name, [0.02 * drift_of] * 4, number), tmp_path / "a" / f"{name}-{number}.json")
    comparison = compare(tmp_path / "a")
    speed, *_ = registry.workload_of(comparison.workload).charts(comparison)
    assert speed.note.endswith("Without a number: bunk: wide [0.01029, 0.10069].")


def test_numbers_are_verified(tmp_path):
    folder = sweep(tmp_path / "a")
    verified = verify([folder])
    assert verified.is_right
    assert verified.numbers > 100


@pytest.mark.parametrize(
    ("keys", "value", "field"),
    [
        (("samples", 0, "parts_s", "doze"), 99.0, "parts_s"),
        (("memory", "peak_allocated_bytes"), 7, "memory.peak_allocated_bytes"),
        (("inputs_sha256",), "abc", "inputs_sha256"),
        (("demand", "bytes"), 10**15, "latency_s"),
    ],
)
def test_impossible_values_are_detected(tmp_path, keys, value, field):
    path = sweep(tmp_path / "a") / "bed-0.json"
    content = json.loads(path.read_text())
    part = content["cells"][0]
    for key in keys[:-1]:
        part = part[key]
    part[keys[-1]] = value
    path.write_text(json.dumps(content))
    assert field in [mismatch.field for mismatch in verify([tmp_path / "a"]).mismatches]


def test_wrong_formula_is_detected(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarker.comparison.results.geometric_mean", lambda values: 1.1 * max(values))
    fields = {mismatch.field for mismatch in verify([sweep(tmp_path / "a")]).mismatches}
    assert {"doze", "knaps", "latency_s"} <= fields


def test_records_of_two_workloads_are_refused_even_with_force(tmp_path):
    folder = sweep(tmp_path / "a")
    write_json(record("fp16"), folder / "fp16.json")
    with pytest.raises(ResultsError, match="workload is sleeping in 6 records and generation in 1") as error:
        compare(folder, force=True)
    assert "\n" not in str(error.value)
    assert verify([folder]).is_right


def test_different_inputs_are_refused_with_the_names_of_the_axes(tmp_path):
    folder = sweep(tmp_path / "a")
    content = json.loads((folder / "bed-0.json").read_text())
    content["cells"][0]["inputs_sha256"] = "cd" * 32
    (folder / "bed-0.json").write_text(json.dumps(content))
    with pytest.raises(ResultsError, match="input at 10 naps, deep sleep"):
        compare(folder)


def test_cell_is_found_by_its_key(tmp_path):
    run_record = read_record(sweep(tmp_path / "a") / "bed-0.json")
    key = keys_of(run_record)[1]
    assert (key.naps, key["mode"]) == (1000, "deep")
    assert cell_of(run_record, key) is run_record.cells[1]
