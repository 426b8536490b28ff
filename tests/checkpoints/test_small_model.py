"""Test the shipped small model: its perplexity, its dimensions, and the quality losses of quantizations."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarker.checkpoints.files import read_config, shipped_shape, shipped_text
from benchmarker.quantization.load import load_model
from benchmarker.schema.quality import WINDOW_TOKENS, Quality
from tests.benchmarks.calibration import MODEL, Outcome, outcomes, perplexity_of
from tests.quality.test_quality import run

FOLDER = shipped_shape("qwen3-small")
assert FOLDER is not None
TEXTS = Path("benchmarker/text")


def card_number(name: str) -> float:
    """Return a number from the table in the model's card."""
    match = re.search(rf"\| {re.escape(name)} \| ([0-9,.]+) \|", (FOLDER / "README.md").read_text())
    assert match, f"the card states no {name}"
    return float(match[1].replace(",", ""))


@pytest.fixture(scope="module")
def fp16(tmp_path_factory: pytest.TempPathFactory) -> Quality:
    with pytest.MonkeyPatch.context() as patched:
        # These tests do not use the greedy texts.
        patched.setattr("benchmarker.quality.judge.PROMPTS", 1)
        quality = run(Path("qwen3-small"), "fp16", tmp_path_factory.mktemp("fp16")).quality
    assert quality is not None
    return quality


def test_perplexity_is_far_below_chance_and_the_bigram_model() -> None:
    perplexity = perplexity_of(load_model(MODEL, dtype="float32", device="cpu"), "quick")
    assert card_number("chance") == read_config(FOLDER)["vocab_size"]
    assert perplexity < card_number("bigram model") / 2
    assert perplexity < card_number("chance") / 50
    assert perplexity == pytest.approx(card_number("`quick`"), rel=0.01)


def test_dimensions_are_multiples_of_128() -> None:
    config = read_config(FOLDER)
    assert config["hidden_size"] % 128 == 0
    assert config["intermediate_size"] % 128 == 0
    assert config["num_attention_heads"] * config["head_dim"] % 128 == 0
    assert config["num_key_value_heads"] * config["head_dim"] % 128 == 0


def test_weights_are_smaller_than_5_mb() -> None:
    assert (FOLDER / "model.safetensors").stat().st_size < 5_000_000


def test_texts_have_the_hashes_in_their_readme() -> None:
    stated = dict(re.findall(r"^    ([0-9a-f]{64})  (\S+)$", (TEXTS / "README.md").read_text(), re.MULTILINE))
    computed = {hashlib.sha256((TEXTS / name).read_bytes()).hexdigest(): name for name in set(stated.values())}
    assert computed == stated


def test_evaluation_and_calibration_texts_share_no_paragraph() -> None:
    def paragraphs(name: str) -> set[str]:
        return {" ".join(paragraph.split()) for paragraph in shipped_text(name).split("\n\n") if len(paragraph) >= 40}

    assert not paragraphs("evaluation.txt") & paragraphs("calibration.txt")


def test_bigram_perplexity_matches_a_hand_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend("script")
    from small_model.bigram import bigram_perplexity

    # Token 0 is followed by 1 twice and by 2 once. Token 1 occurs twice among 7; smoothing adds one per token (3).
    training = np.array([0, 1, 0, 1, 0, 2, 2])
    after_0 = (2 + 2 * (2 + 1) / (7 + 3)) / (3 + 2)
    assert bigram_perplexity(training, np.array([0, 1]), vocabulary=3) == pytest.approx(1 / after_0)


@pytest.fixture(scope="module")
def in_four_bits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """Return outcomes of 4-bit GPTQ and round-to-nearest.

    Four windows and a sixteenth of the usual calibration text suffice; GPTQ's layers compute in 16 bit only, in which
    a CPU may be slow.
    """
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("BENCHMARKER_CACHE", str(tmp_path_factory.mktemp("cache")))
        patched.setattr("benchmarker.quality.evaluation_text.QUICK_WINDOWS", 4)
        patched.setitem(WINDOW_TOKENS, "quick", 512)
        return outcomes(
            bits=4, group_size=128, size="quick", options={"calibration_samples": 16, "calibration_tokens": 128}
        )


@pytest.mark.slow
@pytest.mark.by_hand
def test_int8_diverges_less_than_4_bit_quantizations(
    fp16: Quality, in_four_bits: dict[str, Outcome], tmp_path: Path
) -> None:
    int8, bnb4 = (run(Path("qwen3-small"), quant, tmp_path).quality for quant in ("int8", "bnb4"))
    assert int8 is not None
    assert bnb4 is not None
    assert fp16.noise.kl_mean < int8.against.kl_mean
    assert int8.against.kl_mean < min(bnb4.against.kl_mean, in_four_bits["GPTQ"].kl) / 10


@pytest.mark.slow
@pytest.mark.by_hand
def test_gptq_diverges_less_than_round_to_nearest(in_four_bits: dict[str, Outcome]) -> None:
    # The perplexities of 32 windows do not differ significantly: by 1.7 and 1.3 standard errors in pairs of windows.
    assert in_four_bits["GPTQ"].kl < 0.75 * in_four_bits["round-to-nearest"].kl
