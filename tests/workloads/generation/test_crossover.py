"""Until which batch a form wins and from which prompt on it loses, from made-up records with known crossings."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarker.report.compare import compare, to_markdown
from benchmarker.workloads.generation.reading.batch_crossover import _batches, _prompts
from tests.comparison.test_crossing import within
from tests.records import cell, record, sample, save

NEW = 11
ROUNDS = (0.99, 1.0, 1.01)
"""How much longer each round takes: three rounds give an interval."""


def shown(tmp_path: Path, forms: Mapping[str, Mapping[tuple[int, int], tuple[float, float]]], rounds=ROUNDS) -> str:
    """The report of forms whose cells, by prompt and batch, have a TTFT and a TPOT in seconds."""
    records = []
    for quant, cells in forms.items():
        for number, slower in enumerate(rounds):
            made = [
                cell([], prompt_tokens=prompt, new_tokens=NEW, batch_size=batch).model_copy(
                    update={
                        "samples": tuple(
                            sample(slower * (ttft + (NEW - 1) * tpot), new_tokens=NEW, ttft_s=slower * ttft)
                            for _ in range(3)
                        )
                    }
                )
                for (prompt, batch), (ttft, tpot) in cells.items()
            ]
            records.append(record(quant, *made, round_number=number))
    save(tmp_path, *records)
    return to_markdown(compare([tmp_path]))


def test_words_name_the_batch_until_which_a_form_wins_and_the_prompt_from_which_it_loses(tmp_path: Path) -> None:
    plain = {(prompt, batch): (prompt / 1e3, 0.010) for prompt in (32, 512) for batch in (1, 64)}
    mixed = {
        (prompt, batch): (prompt / 1e3 * (0.5 if prompt == 32 else 1.95), 0.005 if batch == 1 else 0.019)
        for prompt, batch in plain
    }
    text = shown(tmp_path, {"fp16": plain, "int8": mixed})
    # Of both the rounds are 1 % apart, which is the spread of each speed-up.
    assert "- int8 wins against fp16 in decode until batch 8 [7, 9] (prompt 32, 11 new tokens)." in text
    assert "- int8 loses to fp16 in prefill from 132 tokens on [123, 142] (batch 1)." in text
    assert "in the whole request until batch" in text


def test_words_say_where_a_form_always_wins_never_wins_or_has_too_few_rounds(tmp_path: Path) -> None:
    batches = (1, 8, 128)
    plain = {(26, batch): (0.01, 0.010) for batch in batches}
    text = shown(
        tmp_path,
        {
            "fp16": plain,
            "int8": {(26, batch): (0.01, 0.008) for batch in batches},
            "gptq": {(26, batch): (0.01, 0.011) for batch in batches},
            "bnb4": {(26, batch): (0.01, tpot) for batch, tpot in zip(batches, (0.008, 0.012, 0.009), strict=True)},
        },
        rounds=(1.0,),
    )
    assert "int8 wins against fp16 in decode at every batch, from batch 1 (1.25x) to batch 128 (1.25x)" in text
    assert "gptq wins against fp16 in decode at no batch: at best batch 1 (0.91x)" in text
    assert "bnb4 wins against fp16 in decode only at batch 1 (1.25x), batch 128 (1.11x)" in text
    # One prompt length: nothing is said of the prefill.
    assert "in prefill" not in text


def test_a_batch_whose_interval_has_1_in_it_is_neither_won_nor_lost(tmp_path: Path) -> None:
    # Of both the rounds are 1 % apart: a speed-up of 1.01 has 1 in its interval, and one of 1.25 has not.
    plain = {(prompt, batch): (prompt / 1e3, 0.010) for prompt in (32, 512) for batch in (1, 8, 64)}
    forms = {
        "fp16": plain,
        "int8": {(prompt, batch): (prompt / 990, 0.0099 if batch == 64 else 0.008) for prompt, batch in plain},
        "gptq": {size: (size[0] / 1e3 * (1.01 if size[0] == 32 else 1.25), 0.0099) for size in plain},
    }
    text = shown(tmp_path, forms)
    assert (
        "- int8 wins against fp16 in decode from batch 1 (1.25x) to batch 8 (1.25x); "
        "at batch 64 (1.01x [0.98, 1.05]) it is not decided (prompt 32, 11 new tokens)." in text
    )
    assert "- it is not decided whether gptq wins against fp16 in decode: batch 1 (1.01x [0.98, 1.05]), batch 8" in text
    assert (
        "- gptq loses to fp16 in prefill at 512 (0.80x) tokens; at 32 (0.99x [0.96, 1.03]) tokens it is not decided"
        " (batch 1)." in text
    )


@pytest.mark.parametrize(
    ("ratios", "in_batches", "in_prompts"),
    [
        ((0.99, 0.80), "at no batch: at best batch 8 (0.80x); at batch 1 (0.99x [0.97, 1.01]) it", "at 8 (0.80x) to"),
        ((1.50, 1.01, 0.80), "until batch 8 [7, 10]", "from 9 tokens on [8, 11]"),
        ((1.50, 0.70, 1.30, 1.01), "only at batch 1 (1.50x), batch 64 (1.30x); at batch 128 (1", "only at 8 (0.70x)"),
        ((1.50, 1.01, 1.30), "decode at batch 1 (1.50x), batch 64 (1.30x); at batch 8 (1", "no prompt: at worst 64"),
        ((1.01, 0.99), "it is not decided whether a wins against b in decode: batch 1 (1", "it is not decided whether"),
    ],
)  # fmt: skip
def test_what_is_not_decided_counts_on_no_side(ratios: tuple[float, ...], in_batches: str, in_prompts: str) -> None:
    speed_ups = {size: within(ratio, 1.02) for size, ratio in zip((1, 8, 64, 128), ratios, strict=False)}
    assert in_batches in (_batches("a", "b", "decode", speed_ups) or "")
    assert in_prompts in (_prompts("a", "b", speed_ups) or "")


def test_one_round_gives_a_crossing_without_an_interval_and_one_batch_no_words(tmp_path: Path) -> None:
    fp16 = {(26, 1): (0.01, 0.010), (26, 64): (0.01, 0.010)}
    text = shown(tmp_path, {"fp16": fp16, "int8": {(26, 1): (0.01, 0.005), (26, 64): (0.01, 0.019)}}, rounds=(1.0,))
    assert "in decode until batch 8 (no interval: fewer than three rounds)" in text
    assert "wins against" not in shown(tmp_path / "one", {"fp16": {(26, 1): (0.1, 0.1)}, "int8": {(26, 1): (0.1, 0.1)}})
