"""What people type first: each mistake has one line that says what to write."""

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
from benchmarker.core.errors import ModelError, UnsupportedError
from benchmarker.core.process import Streams
from benchmarker.execution.single_run import Run
from benchmarker.measure.repeat import warm_up
from benchmarker.quantization.registry import LOADERS
from benchmarker.schema.record import SampleBase
from benchmarker.workloads.generation.workload import WORKLOAD
from tests.cli.test_cli import typed
from tests.records import cell, compare_records, environment, record, save

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("written", "words"),
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
def test_a_config_as_it_comes_to_mind_first_is_answered_with_how_to_write_it(tmp_path, written, words):
    config = tmp_path / "config.yaml"
    config.write_text(f"grid: {{prompt_tokens: [26], new_tokens: [4]}}\n{written}\n")
    code, printed = typed("sweep", config, "--dry-run")
    assert code == 2
    assert words in printed


@pytest.mark.parametrize(
    ("limit", "written"),
    [("memory<6", "memory<6GiB"), ("ttft<50", "ttft<50ms"), ("weights<6", "weights<6GiB"), ("load<3", "load<3ms")],
)
def test_a_limit_without_its_unit_is_answered_with_how_to_write_it(tmp_path, limit, written):
    code, printed = typed("compare", save(tmp_path, record("fp16")), "--budget", limit)
    assert code == 2
    assert printed.endswith(f"needs its unit; write {written}\n")


def test_a_config_with_nearly_the_right_name_is_named():
    code, printed = typed("sweep", "configs/qwen4b.yaml", "--dry-run")
    assert code == 2
    assert printed == "error: configs/qwen4b.yaml: there is no such file; did you mean 'qwen3-4b'?\n"


def test_a_folder_of_gguf_files_is_answered_with_one_of_them(tmp_path):
    (tmp_path / "a.gguf").touch()
    with pytest.raises(ModelError, match=r"holds GGUF files; give one of them: --model .*a\.gguf --quant gguf$"):
        read_config(tmp_path)


def test_an_engine_that_needs_a_gpu_is_refused_before_anything_is_loaded():
    job: Any = SimpleNamespace(variant=SimpleNamespace(engine="cuda_graph"))
    processor: Any = SimpleNamespace(kind="cpu")
    untouched: Any = None
    with (
        pytest.raises(UnsupportedError, match="a CPU has no graphs to capture; use --engine eager or compile there"),
        WORKLOAD.open(job, processor, untouched),
    ):
        pass


def test_a_slow_warm_up_prints_a_line(tmp_path):
    times = [11.0, 11.0, 0.5]
    told: list[tuple[int, float]] = []
    warm_up(
        lambda: SampleBase(latency_s=times.pop(0)),
        at_least=3,
        limit=3,
        after_each=lambda number, sample: told.append((number, sample.latency_s)),
    )
    assert told == [(1, 11.0), (2, 11.0), (3, 0.5)]


@pytest.mark.parametrize(
    ("limit", "runs", "line"),
    [
        (1, 1, "  warm-up 1 of 1 took 11 s; 1 timed run follows\n"),
        (4, 3, "  warm-up 1 of 1 to 4 took 11 s; 3 timed runs follow\n"),
    ],
)
def test_the_line_of_a_slow_warm_up_counts_in_words(limit: int, runs: int, line: str) -> None:
    out = io.StringIO()
    procedure = SimpleNamespace(warmup=1, warmup_limit=limit, runs=runs)
    run: Any = SimpleNamespace(
        _read=lambda: None, job=SimpleNamespace(procedure=procedure), terminal=Terminal(streams=Streams(out, out))
    )
    Run._slow_warmup(run, 1, SampleBase(latency_s=11.0))
    assert out.getvalue() == line


def test_a_folder_of_many_sweeps_is_answered_with_their_names(tmp_path):
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


@pytest.mark.parametrize("words", [["benchmarker", "compare"], ["benchmarker.run", "--help"]])
def test_a_python_without_the_libraries_names_the_environment_to_activate(words):
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


def test_compare_shows_the_requested_columns_in_the_requested_order(tmp_path):
    folder = save(tmp_path, record("fp16", cell([2.0])), record("int8", cell([1.0])))
    code, printed = typed("compare", folder, "--columns", "load,decode", "--sort", "decode", "--format", "csv")
    assert code == 0
    assert printed == "variant,load s,decode tok/s\nint8,12.3,50.00\nfp16,12.3,25.00\n"
    code, printed = typed("compare", folder, "--columns", "lod")
    assert code == 2
    assert "--columns lod: no such column; did you mean 'load s'?" in printed


def test_a_comparison_is_printed_as_its_answer_and_one_table():
    printed = str(compare_records([record("fp16", cell([2.0])), record("int8", cell([1.0]))]))
    assert "| int8" in printed
    assert "Row(" not in printed


def test_a_workload_may_be_written_with_a_hyphen():
    code, printed = typed("run", "context-parallel", "--help")
    assert code == 0
    assert "benchmarker run context_parallel" in printed


def test_a_column_in_two_units_is_chosen_by_its_name_alone():
    code, printed = typed("compare", ROOT / "results/reference/h200-mixers", "--columns", "ms,peak", "--sort", "peak")
    assert code == 0, printed
    assert "variant              ms  peak GiB" in printed


def test_a_printed_time_of_a_millisecond_has_the_digits_of_its_rate(tmp_path):
    words = "run attention --variant naive --seq-len 64 --heads 1 --head-dim 16 --dtype float32 --device cpu"
    words += " --mode forward --runs 1 --warmup 1 --no-limits -o"
    code, printed = typed(*words.split(), tmp_path)
    assert code == 0, printed
    assert re.search(r"run 1/1: latency 0\.\d{7} s, ", printed)


def test_a_models_weights_without_quantization_are_not_called_16_bit():
    assert "16" not in LOADERS["fp16"].summary


def test_a_help_text_is_wrapped_by_the_terminal_and_not_by_its_docstring():
    lines = typed("comply", "--help")[1].splitlines()
    assert not any(
        line.strip() == "tokens, prompts and times." or line.strip().endswith("A config is") for line in lines
    )


def test_doctor_names_how_to_try_a_workload_that_it_does_not_examine():
    code, printed = typed("doctor", "attention", "--quick")
    assert code == 2
    assert "`benchmarker run attention --help` shows how to try a variant" in printed
