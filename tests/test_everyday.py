"""What people type first: each mistake has one line that says what to write."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.records import cell, environment, record, save
from tests.test_cli import typed

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("model: qwen3-small\nvariants: [{quant: fp16}]", "write model: {id: qwen3-small}"),
        (
            "model: {id: qwen3-small}\nvariants: {a: {quant: int8}}",
            "write variants as a list: - {name: a, quant: int8}",
        ),
    ],
)
def test_a_config_as_it_comes_to_mind_first_is_answered_with_how_to_write_it(tmp_path, written, words):
    config = tmp_path / "config.yaml"
    config.write_text(f"grid: {{prompt_tokens: [26], new_tokens: [4]}}\n{written}\n")
    code, printed = typed("sweep", config, "--dry-run")
    assert code == 2
    assert words in printed


def test_a_folder_of_many_sweeps_is_answered_with_their_names(tmp_path):
    for name in ("A100", "H100", "H200"):
        (tmp_path / name).mkdir()
        save(tmp_path / name, record("fp16", environment=environment(device={"name": name}), run_id=name))
    code, printed = typed("compare", tmp_path)
    assert code == 2
    assert printed.count("\n") == 1
    assert f"give one of them: {tmp_path / 'A100'}, {tmp_path / 'H100'}, {tmp_path / 'H200'}" in printed


@pytest.mark.parametrize("words", [["benchmarker", "compare"], ["benchmarker.run", "--help"]])
def test_a_python_without_the_libraries_says_which_environment_to_activate(words):
    # -S: without site-packages, as the system's own Python is.
    done = subprocess.run(
        [sys.executable, "-S", "-m", *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "is not installed for" in done.stderr
    assert "activate the environment" in done.stderr


def test_history_shows_a_variant_run_by_run_and_no_two_devices_in_one_table(tmp_path, monkeypatch):
    def run(day: int, latency_s: float, device: str):
        where = environment(device={"name": device})
        return record(
            "int8", cell([latency_s]), started_at=f"2026-03-{day:02}T10:00:00Z", run_id=f"{day}", environment=where
        )

    folder = save(tmp_path, run(2, 1.0, "H100"), run(1, 2.0, "H100"), run(3, 4.0, "A100"))
    monkeypatch.chdir(folder)
    code, printed = typed("history", "int8", ".")
    assert code == 0
    lines = [line for line in printed.splitlines() if line.startswith("2026")]
    assert [line.split()[:3] for line in lines] == [
        ["2026-03-03", "10:00", "12.50"],
        ["2026-03-01", "10:00", "25.00"],
        ["2026-03-02", "10:00", "50.00"],
    ]
    code, printed = typed("history", "int4", folder)
    assert code == 2
    assert "no record of that variant" in printed


def test_compare_shows_the_columns_that_are_asked_for_in_the_order_that_is_asked_for(tmp_path):
    folder = save(tmp_path, record("fp16", cell([2.0])), record("int8", cell([1.0])))
    code, printed = typed("compare", folder, "--columns", "load,decode", "--sort", "decode", "--format", "csv")
    assert code == 0
    assert printed == "variant,load s,decode tok/s\nint8,12.3,50.00\nfp16,12.3,25.00\n"
    code, printed = typed("compare", folder, "--columns", "lod")
    assert code == 2
    assert "--columns lod: no such column; did you mean 'load s'?" in printed
