"""Rows of the reference records compared with an independent computation from their files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarker.comparison.results import results_of_records
from benchmarker.core.stats import Estimate
from benchmarker.schema.record import Energy, EnergyWindow
from benchmarker.schema.record_io import collect, parse_json
from benchmarker.workloads.generation.reading import generation_rows
from tests.oracles import attention, context_parallel, finetune, generation, mixers, serving
from tests.records import cell, record, save

REFERENCE = Path(__file__).parents[2] / "results" / "reference"
SHAPES = {
    "generation": ("batch_size", "prompt_tokens", "new_tokens", "text", "depth"),
    "attention": ("seq_len", "batch_size", "mode"),
    "mixers": ("seq_len", "batch_size", "mode"),
    "finetune": ("seq_len", "batch_size", "accumulate"),
    "context_parallel": ("ranks", "seq_len", "mode"),
    "serving": ("prompt_tokens", "new_tokens", "concurrency", "rate"),
}
ORACLES: dict[str, Any] = {
    "generation": generation,
    "attention": attention,
    "mixers": mixers,
    "finetune": finetune,
    "context_parallel": context_parallel,
    "serving": serving,
}
LEAST_NUMBERS = {"generation": 30, "attention": 15, "mixers": 15, "finetune": 25, "context_parallel": 15, "serving": 25}


def spreads(name: str, measured: Estimate | None) -> dict[str, float | None]:
    return {f"{name} {part}": getattr(measured, part, None) for part in ("low", "high", "deviation")}


def is_same(stated: float | None, expected: float | None) -> bool:
    if stated is None or expected is None:
        return stated is expected
    return stated == pytest.approx(expected, rel=1e-7)


def differing(folder: Path) -> list[str]:
    """Return the names of row values that differ from the oracle."""
    collected = collect([folder])
    results = results_of_records(collected.records, sweep_baseline=collected.baseline)
    paths = {run_record.run_id: path for path, run_record in collected.files}
    fields = []
    for row in results.rows:
        if row.cell is None or row.status != "ok":
            continue
        raw = [
            parse_json(paths[run_record.run_id].read_bytes(), paths[run_record.run_id])
            for run_record in results.members[row.variant]
        ]
        shape = [row.cell[name] for name in SHAPES[row.workload]]
        stated = {
            **row.values(),
            **spreads("latency_s", row.latency),
            **{name: value for metric in row.metrics for name, value in spreads(metric, row.metrics[metric]).items()},
            **spreads("ttft_s", row.metrics.get("ttft")),
            **spreads("tpot_s", row.metrics.get("tpot")),
            **spreads("tokens_per_s", row.rate),
        }
        oracle = ORACLES[row.workload]
        expected = {**oracle.numbers_of(raw, shape), **oracle.spreads_of(raw, shape)}
        assert len(expected) > LEAST_NUMBERS[row.workload]
        fields += [name for name, value in expected.items() if not is_same(stated[name], value)]
    return fields


@pytest.mark.parametrize("folder", sorted(path.name for path in REFERENCE.iterdir()))
def test_reference_rows_equal_the_oracle(folder):
    assert differing(REFERENCE / folder) == []


@pytest.fixture
def energy_folder(tmp_path: Path) -> Path:
    windows = [EnergyWindow(seconds=10.0, energy_j=3000.0 + extra_j, generations=7) for extra_j in (0, 40, -20)]
    prompts = [EnergyWindow(seconds=10.0, energy_j=2500.0, generations=200)] * 3
    energy = Energy(idle_power_w=70.0, generation=tuple(windows), prefill=tuple(prompts))
    return save(tmp_path, record("fp16", cell([1.4, 1.5], energy=energy)))


def test_wrong_energy_per_token_differs_from_the_oracle(energy_folder, monkeypatch):
    assert differing(energy_folder) == []
    correct = generation_rows._per_generation
    monkeypatch.setattr(
        generation_rows, "_per_generation", lambda windows: (7 * correct(windows)[0], correct(windows)[1])
    )
    assert "energy_per_token_j" in differing(energy_folder)


def test_wrong_floor_differs_from_the_oracle(tmp_path, monkeypatch):
    folder = tmp_path / "one"
    folder.mkdir()
    path = next(path for path, run_record in collect([REFERENCE / "h100-runtimes"]).files if run_record.limits)
    (folder / "000.json").write_bytes(path.read_bytes())
    assert differing(folder) == []
    monkeypatch.setattr("benchmarker.workloads.generation.reading.generation_rows.floor_s", lambda demand, limits: 1.0)
    assert "floor_s" in differing(folder)


def test_wrong_flops_and_weight_bytes_differ_from_the_oracle(tmp_path):
    path = next((REFERENCE / "h200-finetune").glob("lora-round1*.json"))
    raw = parse_json(path.read_bytes(), path)
    raw["cells"][0]["demand"]["flops"] *= 6 / 4
    raw["cells"][0]["demand"]["flops"] = round(raw["cells"][0]["demand"]["flops"])
    raw["built"]["weight_bytes"] += 4096
    (tmp_path / path.name).write_text(json.dumps(raw))
    assert {"mfu", "hfu", "weights_bytes"} <= set(differing(tmp_path))
