"""The batch and the prompt at which a variant stops being faster are reported, for records with known crossings."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarker.report.compare import compare, to_markdown
from benchmarker.workloads.generation.reading.batch_crossover import _batches, _prompts
from tests.comparison.test_crossing import by_interval, within
from tests.records import cell, record, sample, save

NEW = 11
ROUNDS = (0.99, 1.0, 1.01)
"""Relative duration of each round. Three rounds give an interval."""


def report_text(
    tmp_path: Path, forms: Mapping[str, Mapping[tuple[int, int], tuple[float, float]]], rounds=ROUNDS
) -> str:
    """Return the report of variants whose cells, by prompt and batch, have a TTFT and a TPOT in seconds."""
    records = []
    for quant, cells in forms.items():
        # A round that is slow for fp16 is fast for the others, so that ratios differ between rounds.
        for number, factor in enumerate(rounds if quant == "fp16" else reversed(rounds)):
            measured = [
                cell([], prompt_tokens=prompt, new_tokens=NEW, batch_size=batch).model_copy(
                    update={
                        "samples": tuple(
                            sample(factor * (ttft + (NEW - 1) * tpot), new_tokens=NEW, ttft_s=factor * ttft)
                            for _ in range(3)
                        )
                    }
                )
                for (prompt, batch), (ttft, tpot) in cells.items()
            ]
            records.append(record(quant, *measured, round_number=number))
    save(tmp_path, *records)
    return to_markdown(compare([tmp_path]))


def test_report_names_the_crossing_batch_and_the_crossing_prompt(tmp_path: Path) -> None:
    plain = {(prompt, batch): (prompt / 1e3, 0.010) for prompt in (32, 512) for batch in (1, 64)}
    mixed = {
        (prompt, batch): (prompt / 1e3 * (0.5 if prompt == 32 else 1.95), 0.005 if batch == 1 else 0.019)
        for prompt, batch in plain
    }
    text = report_text(tmp_path, {"fp16": plain, "int8": mixed})
    # The ratios of the rounds differ by 2 %.
    assert "- int8 wins against fp16 in decode until batch 8 [7, 10] (prompt 32, 11 new tokens)." in text
    assert "- int8 loses to fp16 in prefill from 132 tokens on [119, 146] (batch 1)." in text
    assert "in the whole request until batch" in text


def test_report_names_variants_that_always_never_or_sometimes_win(tmp_path: Path) -> None:
    batches = (1, 8, 128)
    plain = {(26, batch): (0.01, 0.010) for batch in batches}
    text = report_text(
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
    assert "gptq wins against fp16 in decode at no batch; the highest ratio is that of batch 1 (0.91x)" in text
    assert "bnb4 wins against fp16 in decode only at batch 1 (1.25x), batch 128 (1.11x)" in text
    # With one prompt length there is no sentence on prefill.
    assert "in prefill" not in text


def test_batch_whose_interval_contains_1_is_undecided(tmp_path: Path) -> None:
    # The ratios of the rounds differ by 2 %: the interval of a speed-up of 1.01 contains 1, that of 1.25 does not.
    plain = {(prompt, batch): (prompt / 1e3, 0.010) for prompt in (32, 512) for batch in (1, 8, 64)}
    forms = {
        "fp16": plain,
        "int8": {(prompt, batch): (prompt / 990, 0.0099 if batch == 64 else 0.008) for prompt, batch in plain},
        "gptq": {size: (size[0] / 1e3 * (1.01 if size[0] == 32 else 1.25), 0.0099) for size in plain},
    }
    text = report_text(tmp_path, forms)
    assert (
        "- int8 wins against fp16 in decode from batch 1 (1.25x) to batch 8 (1.25x); "
        "at batch 64 (1.01x [0.96, 1.06]) it is not decided (prompt 32, 11 new tokens)." in text
    )
    assert "- it is not decided whether gptq wins against fp16 in decode: batch 1 (1.01x [0.96, 1.06]), batch 8" in text
    assert (
        "- gptq loses to fp16 in prefill at 512 (0.80x) tokens; at 32 (0.99x [0.94, 1.04]) tokens it is not decided"
        " (batch 1)." in text
    )


@pytest.mark.parametrize(
    ("ratios", "in_batches", "in_prompts"),
    [
        ((0.99, 0.80), "is that of batch 8 (0.80x); at batch 1 (0.99x [0.97, 1.01]) it", "at 8 (0.80x) to"),
        ((1.50, 1.01, 0.80), "until batch 8 [7, 10]", "from 9 tokens on [8, 11]"),
        ((1.50, 0.70, 1.30, 1.01), "only at batch 1 (1.50x), batch 64 (1.30x); at batch 128 (1", "only at 8 (0.70x)"),
        ((1.50, 1.01, 1.30), "decode at batch 1 (1.50x), batch 64 (1.30x); at batch 8 (1", "ratio is that of 64"),
        ((1.01, 0.99), "it is not decided whether a wins against b in decode: batch 1 (1", "it is not decided whether"),
    ],
)  # fmt: skip
def test_undecided_sizes_count_as_neither_won_nor_lost(
    ratios: tuple[float, ...], in_batches: str, in_prompts: str
) -> None:
    sizes = zip((1, 8, 64, 128), ratios, strict=False)
    speed_ups = by_interval({size: within(ratio, 1.02) for size, ratio in sizes}, "b")
    assert in_batches in (_batches("a", "decode", speed_ups) or "")
    assert in_prompts in (_prompts("a", speed_ups) or "")


def test_single_round_has_no_interval_and_single_batch_no_crossing(tmp_path: Path) -> None:
    fp16 = {(26, 1): (0.01, 0.010), (26, 64): (0.01, 0.010)}
    text = report_text(
        tmp_path, {"fp16": fp16, "int8": {(26, 1): (0.01, 0.005), (26, 64): (0.01, 0.019)}}, rounds=(1.0,)
    )
    assert "in decode until batch 8 (no interval: fewer than three rounds)" in text
    assert "wins against" not in report_text(
        tmp_path / "one", {"fp16": {(26, 1): (0.1, 0.1)}, "int8": {(26, 1): (0.1, 0.1)}}
    )
