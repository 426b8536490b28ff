"""`benchmarker run` on a random model of two layers with the real libraries."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarker import Grid, ModelBenchmarker, Procedure, load_model
from benchmarker.report.verify import verify
from benchmarker.schema.record_io import read_record
from benchmarker.sweep.resume import locked
from tests import records
from tests.cli.test_cli import typed

SMALL = (
    *("--device", "cpu", "--dtype", "bfloat16", "--prompt-tokens", "3,5", "--new-tokens", "4"),
    *("--runs", "2", "--warmup", "1", "--warmup-limit", "1", "--no-limits"),
)
VARIANTS = {
    "fp16": (("--quant", "fp16"), "Linear", 16.0),
    "int8": (("--quant", "int8"), "Linear", 8.0),
    "gptq": (("--quant", "gptq", "--option", "calibration_samples=4"), "TorchAtenLinear", 4.0),
    "gptq compiled": (("--quant", "gptq", "--load-format", "dummy", "--compile"), "TorchAtenLinear", 4.0),
    "bnb4": (("--quant", "bnb4"), "Linear4bit", 4.0),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.usefixtures("traced_only")
def test_run_measures_profiles_and_records_every_quantization(session_model: Path, tmp_path: Path, name: str) -> None:
    arguments, linear, bits = VARIANTS[name]
    code, printed = typed("run", "--model", session_model, *arguments, *SMALL, "--output", tmp_path / "results")
    assert code == 0, printed
    (path,) = (tmp_path / "results").glob("*.json")
    record = read_record(path)
    assert [(cell.prompt_tokens, cell.new_tokens, cell.status) for cell in record.cells] == [(3, 4, "ok"), (5, 4, "ok")]
    for cell in record.cells:
        assert len(cell.samples) == 2
        for sample in cell.samples:
            assert sample.new_tokens == 4
            # The latency includes the final synchronization.
            assert sample.ttft_s + 3 * sample.tpot_s <= sample.latency_s * (1 + 1e-9)
    assert record.load is not None
    assert record.load.linear_classes[linear] > 0
    assert bits <= record.load.bits_per_weight < 16.1
    assert record.profile is not None
    assert sum(kernel.total_s for kernel in record.profile.kernels) == pytest.approx(record.profile.kernel_s)
    assert verify([path]).mismatches == ()
    assert f"record: {path}" in printed.replace("\n", "")
    assert re.search(r"^ +3 +4 +1 ", printed, re.MULTILINE)


def test_too_long_prompt_is_refused_before_weights_are_created(cache_folder: Path, tmp_path: Path) -> None:
    options = ("--model", "qwen3-tiny", "--load-format", "dummy", "--quant", "fp16", "--device", "cpu")
    code, printed = typed("run", *options, "--prompt-tokens", 100_000, "--output", tmp_path / "results")
    assert code == 2
    remedy = "use at most 4096 prompt and new tokens together"
    assert f"prompt of 100000 + 50 new tokens is past the 4096 positions of qwen3-tiny; {remedy}" in printed
    assert not list(cache_folder.rglob("*.safetensors"))
    assert not list((tmp_path / "results").glob("*"))


def test_output_folder_of_a_running_sweep_is_refused(tmp_path: Path) -> None:
    shape = ("--device", "cpu", "--prompt-tokens", 8, "--new-tokens", 4, "--output", tmp_path)
    with locked(tmp_path):
        code, printed = typed("run", "--model", "qwen3-tiny", "--load-format", "dummy", "--quant", "fp16", *shape)
    assert code == 2
    assert "another sweep (process" in printed
    assert "choose another folder with --output" in printed
    assert not list(tmp_path.glob("*.json"))


def test_too_large_batch_is_refused_before_weights_are_created(cache_folder: Path, tmp_path: Path) -> None:
    options = ("--model", "qwen3-tiny", "--load-format", "dummy", "--quant", "int8", "--device", "cpu")
    shape = ("--prompt-tokens", 8, "--new-tokens", 4, "--batch-size", 10**9, "--same-prompt")
    code, printed = typed("run", *options, *shape, "--output", tmp_path / "results")
    assert code == 1
    (line,) = (line for line in printed.splitlines() if line.startswith("error: "))
    assert line.startswith(
        "error: memory for the weights (4.0 MiB) and the KV cache of a batch of 1000000000 (22888.18 GiB): "
        "22888.19 GiB needed, "
    )
    assert line.endswith(" GiB free; use a smaller model, batch, depth or prompt")
    assert not list(cache_folder.rglob("*.safetensors"))
    assert not list((tmp_path / "results").glob("*"))


def test_cell_too_large_for_memory_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model("qwen3-tiny", load_format="dummy", device="cpu", dtype="float32")
    monkeypatch.setattr("benchmarker.workloads.generation.generation_job.available_bytes", lambda: 2**20)
    grid = Grid(prompt_tokens=(8,), new_tokens=(4,), batch_size=(1, 64), same_prompt=True)
    small, large = ModelBenchmarker(model).run(grid, Procedure(warmup=1, warmup_limit=1, runs=1))
    assert (small.status, len(small.samples)) == ("ok", 1)
    assert (large.status, large.error_kind) == ("oom_host", "oom_host")
    assert large.reason == (
        "memory for the KV cache of a batch of 64: 3.0 MiB needed, 1.0 MiB free; use a smaller model, batch, depth or "
        "prompt"
    )


@pytest.mark.parametrize(
    ("stop", "code", "message"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_stopped_run_keeps_finished_cells_and_prints_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: signal.Signals, code: int, message: str
) -> None:
    grid = ("--prompt-tokens", 3, "--new-tokens", "4,5", "--no-limits", "--no-profile", "--output", tmp_path)

    def measured(*_: Any, **__: Any) -> Any:
        if list(tmp_path.glob("*.json")):
            signal.raise_signal(stop)
        return records.cell([1.0], prompt_tokens=3, new_tokens=4)

    monkeypatch.setattr("benchmarker.execution.single_run.measure_cell", measured)
    options = ("--quant", "fp16", "--model", "qwen3-tiny", "--load-format", "dummy", "--device", "cpu")
    exit_code, printed = typed("run", *options, *grid)
    (path,) = tmp_path.glob("*.json")
    assert exit_code == code, printed
    assert f"1 of 2 cells are in the record: {path}\n{message}\n" in printed
    assert (read_record(path).status, len(read_record(path).cells)) == ("interrupted", 1)


@pytest.mark.slow
def test_sigint_prints_the_path_of_finished_cells(session_model: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    options = ("--model", session_model, "--quant", "fp16", "--device", "cpu", "--no-profile", "--no-limits")
    grid = ("--new-tokens", "4,400", "--prompt-tokens", 3, "--output", results)
    command = [str(argument) for argument in (sys.executable, "-m", "benchmarker.run", *options, *grid)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as running:
        assert running.stdout is not None
        # Wait for the second cell.
        output = next(line for line in running.stdout if b"400 new tokens" in line)
        running.send_signal(signal.SIGINT)
        output += running.stdout.read()
    (path,) = results.glob("*.json")
    assert running.returncode == 130, output
    assert f"1 of 2 cells are in the record: {path}\ninterrupted" in output.decode()
    assert read_record(path).status == "interrupted"
