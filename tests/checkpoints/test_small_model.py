"""The real model that ships: it has learned something, and quantizations cost on it what they should."""

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
    """A number that the model's card states."""
    found = re.search(rf"\| {re.escape(name)} \| ([0-9,.]+) \|", (FOLDER / "README.md").read_text())
    assert found, f"the card states no {name}"
    return float(found[1].replace(",", ""))


@pytest.fixture(scope="module")
def fp16(tmp_path_factory: pytest.TempPathFactory) -> Quality:
    with pytest.MonkeyPatch.context() as patched:
        # The greedy texts are not looked at here.
        patched.setattr("benchmarker.quality.judge.PROMPTS", 1)
        quality = run(Path("qwen3-small"), "fp16", tmp_path_factory.mktemp("fp16")).quality
    assert quality is not None
    return quality


def test_it_predicts_far_better_than_chance_and_than_pairs_of_tokens() -> None:
    perplexity = perplexity_of(load_model(MODEL, dtype="float32", device="cpu"), "quick")
    assert card_number("chance") == read_config(FOLDER)["vocab_size"]
    assert perplexity < card_number("bigram model") / 2
    assert perplexity < card_number("chance") / 50
    assert perplexity == pytest.approx(card_number("`quick`"), rel=0.01)


def test_every_quantization_finds_sides_that_it_can_divide() -> None:
    config = read_config(FOLDER)
    assert config["hidden_size"] % 128 == 0
    assert config["intermediate_size"] % 128 == 0
    assert config["num_attention_heads"] * config["head_dim"] % 128 == 0
    assert config["num_key_value_heads"] * config["head_dim"] % 128 == 0


def test_it_is_small_enough_to_ship() -> None:
    assert (FOLDER / "model.safetensors").stat().st_size < 5_000_000


def test_the_texts_are_those_whose_hashes_are_stated() -> None:
    stated = dict(re.findall(r"^    ([0-9a-f]{64})  (\S+)$", (TEXTS / "README.md").read_text(), re.MULTILINE))
    found = {hashlib.sha256((TEXTS / name).read_bytes()).hexdigest(): name for name in set(stated.values())}
    assert found == stated


def test_nothing_is_judged_on_what_it_was_calibrated_on() -> None:
    def paragraphs(name: str) -> set[str]:
        return {" ".join(one.split()) for one in shipped_text(name).split("\n\n") if len(one) >= 40}

    assert not paragraphs("evaluation.txt") & paragraphs("calibration.txt")


def test_the_bigram_model_is_right_on_a_text_that_can_be_counted_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend("script")
    from small_model.bigram import bigram_perplexity

    # 0 is followed by 1 twice and by 2 once. Token 1 occurs twice among 7; each of 3 has one occurrence more.
    learned = np.array([0, 1, 0, 1, 0, 2, 2])
    after_0 = (2 + 2 * (2 + 1) / (7 + 3)) / (3 + 2)
    assert bigram_perplexity(learned, np.array([0, 1]), vocabulary=3) == pytest.approx(1 / after_0)


@pytest.fixture(scope="module")
def in_four_bits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """GPTQ, on a sixteenth of the usual calibration text, and round-to-nearest; both on 4 long windows: GPTQ's layers
    know 16 bit alone, in which a processor may be slow."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("BENCHMARKER_CACHE", str(tmp_path_factory.mktemp("cache")))
        patched.setattr("benchmarker.quality.evaluation_text.QUICK_WINDOWS", 4)
        patched.setitem(WINDOW_TOKENS, "quick", 512)
        return outcomes(
            bits=4, group_size=128, size="quick", options={"calibration_samples": 16, "calibration_tokens": 128}
        )


@pytest.mark.slow
@pytest.mark.by_hand
def test_int8_costs_less_than_either_form_in_four_bits(
    fp16: Quality, in_four_bits: dict[str, Outcome], tmp_path: Path
) -> None:
    int8, bnb4 = (run(Path("qwen3-small"), quant, tmp_path).quality for quant in ("int8", "bnb4"))
    assert int8 is not None
    assert bnb4 is not None
    assert fp16.noise.kl_mean < int8.against.kl_mean
    assert int8.against.kl_mean < min(bnb4.against.kl_mean, in_four_bits["GPTQ"].kl) / 10


@pytest.mark.slow
@pytest.mark.by_hand
def test_calibrated_gptq_beats_rounding_to_nearest_at_equal_bits_and_groups(in_four_bits: dict[str, Outcome]) -> None:
    # 32 windows cannot tell their perplexities apart: in pairs of windows they
    # differ by 1.7 and 1.3 standard errors.
    assert in_four_bits["GPTQ"].kl < 0.75 * in_four_bits["round-to-nearest"].kl
