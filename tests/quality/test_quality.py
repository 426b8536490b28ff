"""Test the quality measurement end to end with real loaders and runs on a random two-layer Qwen3."""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarker.comparison.results import results_of_records
from benchmarker.core.console import Terminal
from benchmarker.core.errors import SpecError
from benchmarker.engines.decoders.eager import EagerDecoder
from benchmarker.execution.single_run import Run
from benchmarker.quality import evaluation_text, judge
from benchmarker.quantization.load import load_model
from benchmarker.report.verify import verify
from benchmarker.schema.record_io import read_record
from benchmarker.workloads.generation.record import GenerationRecord
from tests.jobs import job_of
from tests.quality.test_quality_inputs import plan


def run(
    folder: Path, quant: str, output: Path, *, runtime: str = "eager", dtype: str = "float32", **quality: Any
) -> GenerationRecord:
    """Run `benchmarker run --quality quick` in this process.

    The default type is float32, since a CPU without 16-bit instructions takes ten times as long in 16 bit.
    """
    job = job_of(
        model={"id": str(folder), "dtype": dtype},
        form={"quant": quant, "engine": runtime},
        grid={"prompt_tokens": [3], "new_tokens": [2]},
        procedure={"runs": 1, "warmup": 1, "warmup_limit": 1, "profile": False, "limits": False},
        quality={"size": "quick", **quality},
        device="cpu",
        output=output,
    )
    return Run(job, Terminal(quiet=True)).execute()


@pytest.fixture(autouse=True, scope="module")
def _few_windows_and_texts() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation_text, "QUICK_WINDOWS", 2)
        patch.setattr(judge, "PROMPTS", 1)
        yield


@pytest.fixture(scope="module")
def peaked(session_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with random weights and a larger final norm, without which distributions are nearly flat."""
    folder = Path(shutil.copytree(session_model, tmp_path_factory.mktemp("peaked") / "model"))
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] = weights["model.norm.weight"] * 3
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def int8_results(peaked: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of one int8 record; tests must not change it."""
    folder = tmp_path_factory.mktemp("int8")
    run(peaked, "int8", folder)
    return folder


@pytest.fixture
def int8(int8_results: Path) -> GenerationRecord:
    (path,) = int8_results.glob("*.json")
    record = read_record(path)
    assert isinstance(record, GenerationRecord)
    return record


def test_baseline_step_differs_from_its_forward_by_rounding(peaked: Path, tmp_path: Path) -> None:
    quality = run(peaked, "fp16", tmp_path).quality
    assert quality is not None
    assert (quality.is_baseline, quality.path) == (True, "step")
    assert quality.perplexity == pytest.approx(quality.baseline_perplexity, rel=1e-4)
    assert quality.against.kl_mean < 1e-4
    assert (quality.noise.kl_max, quality.noise.same_top, quality.noise.ln_ratio) == (0, 1, 0)


def test_fault_in_the_step_lowers_the_measured_quality(
    peaked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = EagerDecoder.log_probabilities

    def sharpened(self: EagerDecoder, ids: torch.Tensor, **prompt: int) -> torch.Tensor:
        return (1.5 * original(self, ids, **prompt)).log_softmax(dim=-1)

    monkeypatch.setattr(EagerDecoder, "log_probabilities", sharpened)
    quality = run(peaked, "fp16", tmp_path).quality
    assert quality is not None
    assert quality.against.kl_mean > 0.01
    assert quality.baseline_perplexity < quality.perplexity


def test_quality_of_a_quantized_model_is_measured_after_timing(peaked: Path, int8: GenerationRecord) -> None:
    quality = int8.quality
    assert [cell.status for cell in int8.cells] == ["ok"]
    assert quality is not None
    assert quality.baseline == f"fp16 of {peaked} in float32"
    assert (quality.positions, quality.window_tokens, quality.scored_from) == (64, 289, 256)
    assert quality.text == "benchmarker evaluation.txt"
    assert quality.file_bytes == 2 * 32 * 2048 * 4
    assert 0 < quality.against.kl_mean < 0.1
    assert 0.9 < quality.against.same_top <= 1
    assert quality.noise.kl_mean == 0
    assert quality.is_distinguishable
    assert quality.perplexity / quality.baseline_perplexity == pytest.approx(math.exp(quality.against.ln_ratio))


def test_verify_recomputes_statistics_from_the_windows(int8_results: Path, tmp_path: Path) -> None:
    shutil.copytree(int8_results, tmp_path, dirs_exist_ok=True)
    assert verify([tmp_path]).mismatches == ()
    (path,) = tmp_path.glob("*.json")
    record = json.loads(path.read_text())
    record["quality"]["against"]["kl_mean"] *= 0.9
    path.write_text(json.dumps(record))
    (mismatch,) = verify([tmp_path]).mismatches
    assert (mismatch.place, mismatch.field) == ("quality", "against.kl_mean")


def test_quality_matches_a_forward_of_the_loaded_model(peaked: Path, int8: GenerationRecord) -> None:
    """Recompute the mean negative log-likelihood from whole windows in float64."""
    windows = plan(peaked).windows.ids
    model = load_model(str(peaked), "int8", device="cpu", dtype="float32")
    nats = []
    with torch.no_grad():
        for window in torch.from_numpy(windows):
            logs = model(window[None]).logits[0].double().log_softmax(-1)
            nats += [-logs[position, window[position + 1]] for position in range(256, 288)]
    assert int8.quality is not None
    mean_nats = sum(window.nats for window in int8.quality.windows) / 2
    assert mean_nats == pytest.approx(float(sum(nats) / len(nats)), rel=1e-3)


def test_top_k_is_recorded_and_is_a_lower_bound(peaked: Path, tmp_path: Path, int8: GenerationRecord) -> None:
    full, truncated = int8.quality, run(peaked, "int8", tmp_path, top_k=50).quality
    assert full is not None
    assert truncated is not None
    assert truncated.top_k == 50
    assert truncated.file_bytes < full.file_bytes / 4
    assert 0 < truncated.against.kl_mean <= full.against.kl_mean
    assert truncated.perplexity == pytest.approx(full.perplexity, rel=1e-5)


def test_nonfinite_logits_invalidate_the_row_with_a_reason(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = load_file(model_folder / "model.safetensors")
    weights["model.norm.weight"] = torch.full_like(weights["model.norm.weight"], float("inf"))
    save_file(weights, model_folder / "model.safetensors", metadata={"format": "pt"})
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    record = run(model_folder, "fp16", tmp_path / "results", dtype="bfloat16")
    assert [cell.status for cell in record.cells] == ["ok"]
    assert (record.status, record.quality) == ("complete", None)
    assert record.no_quality
    assert (record.no_quality.error_kind, record.no_quality.reason) == (
        "wrong_result",
        "--quality: fp16 gives logits that are not finite in window 1 of 2, so that there is no perplexity; "
        "the range of bfloat16 is wide enough, so check the weights",
    )
    row = results_of_records([record]).rows[0]
    assert (row.status, row.pace, row.reason) == ("invalid", None, record.no_quality.reason)
    assert list(scratch.iterdir()) == []


def test_quality_of_random_weights_is_refused(session_model: Path) -> None:
    dummy = {"id": str(session_model), "load_format": "dummy"}
    with pytest.raises(SpecError) as caught:
        job_of(model=dummy, quality={"size": "quick"})
    assert str(caught.value) == (
        "--quality, --tasks: random weights have no quality to lose; measure real weights, or leave them out"
    )
    assert job_of(model=dummy, quality={"size": "off"}).quality.size == "off"
    with pytest.raises(SpecError, match="--eval-text: does nothing without --quality; add --quality quick"):
        job_of(quality={"text": "some.txt"})


@pytest.mark.slow
@pytest.mark.by_hand
def test_quality_of_compile_matches_eager(peaked: Path, tmp_path: Path, int8: GenerationRecord) -> None:
    eager, compiled = int8.quality, run(peaked, "int8", tmp_path, runtime="compile").quality
    assert eager is not None
    assert compiled is not None
    assert compiled.against.kl_mean == pytest.approx(eager.against.kl_mean, rel=0.1)
    assert compiled.against != eager.against
