"""Typical first commands: mistakes print one line with the correct form."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarker.checkpoints.files import read_config
from benchmarker.core.console import Terminal
from benchmarker.core.errors import ModelError
from benchmarker.core.process import Streams
from benchmarker.execution.single_run import Run
from benchmarker.measure.repeat import warm_up
from benchmarker.quantization.registry import LOADERS
from benchmarker.schema.record import SampleBase
from tests.cli.test_cli import typed
from tests.records import cell, compare_records, environment, record, save

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: qwen3-small\nvariants: [{quant: fp16}]", "write model: {id: qwen3-small}"),
        (
            "model: {id: qwen3-small}\nvariants: {a: {quant: int8}}",
            "must be a list; write variants as a list: - {name: a, quant: int8}",
        ),
        ("workload: {new_tokens: [4]}\nvariants: [{quant: fp16}]", "generation; its sizes belong under grid"),
        (
            "model: {id: qwen3-small}\nvariants: [fp16]",
            "must be a mapping, not 'fp16'; write - {name: fp16, quant: fp16}",
        ),
    ],
)
def test_malformed_config_prints_the_correct_form(tmp_path, text, message):
    config = tmp_path / "config.yaml"
    config.write_text(f"grid: {{prompt_tokens: [26], new_tokens: [4]}}\n{text}\n")
    code, printed = typed("sweep", config, "--dry-run")
    assert code == 2
    assert message in printed


@pytest.mark.parametrize(
    ("limit", "corrected"),
    [("memory<6", "memory<6GiB"), ("ttft<50", "ttft<50ms"), ("weights<6", "weights<6GiB"), ("load<3", "load<3ms")],
)
def test_budget_without_unit_prints_the_correct_form(tmp_path, limit, corrected):
    code, printed = typed("compare", save(tmp_path, record("fp16")), "--budget", limit)
    assert code == 2
    assert printed.endswith(f"needs its unit; write {corrected}\n")


def test_misspelt_config_prints_the_closest_name():
    code, printed = typed("sweep", "configs/qwen4b.yaml", "--dry-run")
    assert code == 2
    assert printed == "error: configs/qwen4b.yaml: there is no such file; did you mean 'qwen3-4b'?\n"


def test_folder_of_gguf_files_raises_with_one_of_their_paths(tmp_path):
    (tmp_path / "a.gguf").touch()
    with pytest.raises(ModelError, match=r"holds GGUF files; give one of them: --model .*a\.gguf --quant gguf$"):
        read_config(tmp_path)


def test_warm_up_calls_back_after_each_run(tmp_path):
    times = [11.0, 11.0, 0.5]
    calls: list[tuple[int, float]] = []
    warm_up(
        lambda: SampleBase(latency_s=times.pop(0)),
        at_least=3,
        limit=3,
        after_each=lambda number, sample: calls.append((number, sample.latency_s)),
    )
    assert calls == [(1, 11.0), (2, 11.0), (3, 0.5)]


@pytest.mark.parametrize(
    ("limit", "runs", "line"),
    [
        (1, 1, "  warm-up 1 of 1 took 11 s; 1 timed run follows\n"),
        (4, 3, "  warm-up 1 of 1 to 4 took 11 s; 3 timed runs follow\n"),
    ],
)
def test_slow_warm_up_prints_the_remaining_runs(limit: int, runs: int, line: str) -> None:
    out = io.StringIO()
    procedure = SimpleNamespace(warmup=1, warmup_limit=limit, runs=runs)
    run: Any = SimpleNamespace(
        _read=lambda: None, job=SimpleNamespace(procedure=procedure), terminal=Terminal(streams=Streams(out, out))
    )
    Run._slow_warmup(run, 1, SampleBase(latency_s=11.0))
    assert out.getvalue() == line


def test_compare_of_several_devices_names_their_folders(tmp_path):
    for name in ("A100", "H100", "H200"):
        (tmp_path / name).mkdir()
        save(tmp_path / name, record("fp16", environment=environment(device={"name": name}), run_id=name))
    code, printed = typed("compare", tmp_path)
    assert code == 2
    assert printed.count("\n") == 1
    assert f"give one of those in {tmp_path}: A100, H100, H200" in printed
    shutil.rmtree(tmp_path / "A100")
    _, printed = typed("compare", tmp_path)
    assert "device is H100 in 1 record and H200 in 1 record" in printed
    assert f"They are in {tmp_path / 'H100'} and {tmp_path / 'H200'}" in printed
    _, printed = typed("compare", tmp_path, "--force", "--baseline", "int8")
    assert "They are in" not in printed


@pytest.mark.parametrize("arguments", [["benchmarker", "compare"], ["benchmarker.run", "--help"]])
def test_missing_libraries_print_the_environment_to_activate(arguments):
    # -S leaves out site-packages, as in a system Python.
    done = subprocess.run(
        [sys.executable, "-S", "-m", *arguments],
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


def test_history_lists_runs_by_device_and_the_known_variants(tmp_path, monkeypatch):
    def run(day: int, latency_s: float, device: str):
        hardware = environment(device={"name": device})
        return record(
            "int8", cell([latency_s]), started_at=f"2026-03-{day:02}T10:00:00Z", run_id=f"{day}", environment=hardware
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
    disturbed = record("bnb4", cell([1.0], flags=("disturbed",)))
    code, printed = typed("history", "bnb4", save(tmp_path / "busy", record("bnb4", run_id="quiet"), disturbed))
    assert [line.split()[3] for line in printed.splitlines() if " disturbed " in line] == ["disturbed"]
    (tmp_path / "results").symlink_to(folder)
    code, printed = typed("history")
    assert code == 0
    assert printed.splitlines()[-1].split() == ["int8", "3", "2026-03-03", "10:00"]
    save(tmp_path / "other", record("fp16", name="ring"), record("int8"))
    for variant, hint in (("nothing", "`benchmarker history` lists the variants"), ("int9", "did you mean 'int8'?")):
        code, printed = typed("history", variant, tmp_path / "other")
        assert code == 2
        assert printed.endswith(f"error: history {variant}: no record of that variant; {hint}\n")


def test_compare_prints_the_requested_columns_in_order(tmp_path):
    folder = save(tmp_path, record("fp16", cell([2.0])), record("int8", cell([1.0])))
    code, printed = typed("compare", folder, "--columns", "load,decode", "--sort", "decode", "--format", "csv")
    assert code == 0
    assert printed == "variant,load s,decode tok/s\nint8,12.3,50.00\nfp16,12.3,25.00\n"
    code, printed = typed("compare", folder, "--columns", "lod")
    assert code == 2
    assert "--columns lod: no such column; did you mean 'load s'?" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--columns ttft --format json", "--columns and --sort apply to one table; leave out --all and --format json"),
        ("--sort ttft --all", "--columns and --sort apply to one table; leave out --all and --format json"),
        ("--fail-if slower:5% --format csv", "--fail-if prints its own table; leave out --all, --columns, --sort"),
        ("--fail-if slower:5% --pool", "--fail-if prints its own table; leave out --all, --columns, --sort"),
    ],
)
def test_options_of_compare_without_effect_are_refused(tmp_path, arguments, message):
    folder = save(tmp_path, record("fp16", cell([2.0])), record("int8", cell([1.0])))
    code, printed = typed("compare", folder, folder, *arguments.split())
    assert code == 2
    assert f"error: {message}" in printed


def test_str_of_a_comparison_is_its_table():
    printed = str(compare_records([record("fp16", cell([2.0])), record("int8", cell([1.0]))]))
    assert "| int8" in printed
    assert "Row(" not in printed


def test_workload_name_may_have_a_hyphen():
    code, printed = typed("run", "context-parallel", "--help")
    assert code == 0
    assert "benchmarker run context_parallel" in printed


def test_columns_and_sort_accept_names_without_unit():
    code, printed = typed("compare", ROOT / "results/reference/h200-mixers", "--columns", "ms,peak", "--sort", "peak")
    assert code == 0, printed
    assert "variant              ms  peak GiB" in printed


def test_latency_below_1_ms_is_printed_with_seven_decimals(tmp_path):
    arguments = "run attention --variant naive --seq-len 64 --heads 1 --head-dim 16 --dtype float32 --device cpu"
    arguments += " --mode forward --runs 1 --warmup 1 --no-limits -o"
    code, printed = typed(*arguments.split(), tmp_path)
    assert code == 0, printed
    assert re.search(r"run 1/1: latency 0\.\d{7} s, ", printed)


def test_summary_of_fp16_does_not_mention_16_bits():
    assert "16" not in LOADERS["fp16"].summary


def test_help_text_is_wrapped_at_the_terminal_width():
    lines = typed("comply", "--help")[1].splitlines()
    assert not any(
        line.strip() == "tokens, prompts and times." or line.strip().endswith("A config is") for line in lines
    )


def test_doctor_on_another_workload_prints_the_command_to_try():
    code, printed = typed("doctor", "attention", "--quick")
    assert code == 2
    assert "`benchmarker run attention --help` shows how to try a variant" in printed
