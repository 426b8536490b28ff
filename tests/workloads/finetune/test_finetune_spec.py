"""Specification of fine-tuning: recipes, refusals, and FLOPs."""

import pytest

from benchmarker.core.errors import SpecError
from benchmarker.workloads.finetune.finetune_bench import TokenText, inputs_sha256, token_text, windows
from benchmarker.workloads.finetune.record import FinetuneFacts
from benchmarker.workloads.finetune.spec import RECIPES, FinetuneGrid, FinetunePoint, FinetuneVariant
from benchmarker.workloads.finetune.trainee import demand_of
from tests.jobs import read_job

MODEL = ("--model", "qwen3-small", "--dtype", "float32")


def job(*options):
    return read_job(["finetune", *MODEL, *options])


def test_option_overrides_the_recipe():
    recipe = FinetuneVariant(variant="qlora", checkpointing="none", rank=4).recipe
    assert (recipe.base, recipe.prepare, recipe.checkpointing, recipe.rank) == ("nf4", "peft", "none", 4)
    assert FinetuneVariant(variant="qlora", checkpointing="none").recipe == RECIPES["qlora-nocheckpoint"]


def test_points_are_sorted_by_size():
    points = FinetuneGrid(seq_len=(512, 128), batch_size=(8, 1)).points()
    assert [(point.seq_len, point.batch_size) for point in points] == [(128, 1), (512, 1), (128, 8), (512, 8)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--variant", "full", "--base", "nf4"), "quantized weights (nf4) are not trained; use base plain"),
        (("--variant", "lora", "--prepare", "peft"), "prepare peft is for a quantized base; it would make all weights"),
        (("--variant", "lora", "--dtype", "float16"), "--dtype float16: needs a scaled loss"),
        (("--variant", "lora", "--energy"), "--energy: is not counted"),
        (("--variant", "lora", "--profile-tokens", "8"), "--profile-tokens: one whole step is profiled"),
        (("--variant", "qlra"), "qlra"),
    ],
)
def test_invalid_recipes_are_refused(options, expected):
    with pytest.raises(SpecError) as caught:
        job(*options)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_peft_is_reported_with_the_install_command(monkeypatch):
    monkeypatch.setattr("benchmarker.workloads.finetune.workload.installed_version", lambda package: None)
    with pytest.raises(Exception, match=r"variant lora: the library 'peft' is not installed; pip install -e '\.\[fine"):
        job("--variant", "lora")


def facts(**values):
    defaults = {
        "trained_parameters": 1, "trained_linear_weights": 1, "frozen_linear_weights": 0, "adapted_layers": 0,
        "checkpointed_linear_weights": 0, "weight_bytes": 1, "trained_bytes": 1,
    }  # fmt: skip
    return FinetuneFacts(**{**defaults, **values})


def test_frozen_weight_takes_four_flops_per_token_and_trained_six():
    lora = facts(frozen_linear_weights=1000, trained_linear_weights=10)
    demand = demand_of(lora, 4 * 2 * 3 * 5, FinetunePoint(seq_len=4, batch_size=2, accumulate=3))
    tokens, sequences, pairs = 24, 6, 10
    attention = 4 * 2 * 3 * 5 * sequences * pairs
    assert demand.tokens == tokens
    assert demand.linear_flops == tokens * (4 * 1000 + 6 * 10)
    assert demand.flops == demand.linear_flops + 3.5 * attention
    assert demand.recompute_flops == 0


def test_checkpointing_recomputes_the_forward_pass_of_its_layers():
    both = facts(frozen_linear_weights=1000, trained_linear_weights=10, checkpointed_linear_weights=910)
    demand = demand_of(both, 4, FinetunePoint(seq_len=4, batch_size=1, accumulate=1))
    assert demand.recompute_flops == 4 * 2 * 910 + 4 * 10


def test_batches_are_distinct_windows_of_the_text():
    text = TokenText(tuple(range(100)), (), "numbers")
    batches = text.batches(FinetunePoint(seq_len=3, batch_size=2, accumulate=1))
    assert batches[:2].tolist() == [[[0, 1, 2], [3, 4, 5]], [[6, 7, 8], [9, 10, 11]]]
    assert len({inputs_sha256(batch[None]) for batch in batches}) == 8


def test_short_text_is_repeated():
    assert windows((1, 2, 3), 2, 1, 3).tolist() == [[[1, 2]], [[3, 1]], [[2, 3]]]


def test_token_ids_without_a_tokenizer_are_random_and_reproducible():
    first, second = (token_text(None, 50, seed=7) for _ in range(2))
    assert first == second
    assert first.source == "random ids (no tokenizer)"
    assert max(first.train) == 49
    assert first != token_text(None, 50, seed=8)
