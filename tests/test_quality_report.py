"""What a reader of a comparison sees of quality, and how a sweep measures it: no torch in any of this."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarker.comparison import compare_records, to_rows
from benchmarker.page.html import to_html
from benchmarker.report.limits import tokens_in_common
from benchmarker.report.markdown import to_markdown
from benchmarker.report.quality import quality_line
from tests import records
from tests.faults.stage import Stage


def judged() -> str:
    """Four variants: the baseline, an int8 form that is as good, one in 4 bits, and one that was not judged."""
    return to_markdown(
        compare_records(
            [
                records.record("fp16", quality=records.baseline_quality()),
                records.record("int8", quality=records.quality(kl=9e-7, perplexity=12.99)),
                records.record("gptq", quality=records.quality()),
                records.record("bnb4"),
            ]
        )
    )


def test_quality_stands_in_a_table_of_its_own() -> None:
    said = judged()
    table = said[said.index("**Quality**") :].split("\n\n")[1]
    assert table == (
        "| variant | perplexity |         change |     KL divergence |   median |     99 % | same top | RMS Δp |\n"
        "| :------ | ---------: | -------------: | ----------------: | -------: | -------: | -------: | -----: |\n"
        "| fp16    |      12.98 |       baseline |                 – |        – |        – |        – |      – |\n"
        "| int8    |      12.99 | +1.72 ± 0.21 % | indistinguishable | 4.50e-07 | 4.50e-06 |   91.4 % |  4.1 % |\n"
        "| gptq    |      13.20 | +1.72 ± 0.21 % |   0.0281 ± 0.0009 |    0.014 |    0.141 |   91.4 % |  4.1 % |\n"
        "| bnb4    |          – |              – |                 – |        – |        – |        – |      – |"
    )


def test_the_page_has_the_same_table_and_caption() -> None:
    page = to_html(compare_records([records.record("fp16"), records.record("gptq", quality=records.quality())]), ())
    assert "0.0281 ± 0.0009" in page
    assert "Quality on 8,160 tokens of benchmarker evaluation.txt" in page


def test_the_text_the_baseline_and_the_noise_are_named_under_the_table() -> None:
    said = judged()
    assert (
        "Quality on 8,160 tokens of benchmarker evaluation.txt (sha256 cdcdcdcdcdcd; windows of 512, the second half "
        "scored), each variant against fp16 of Qwen/Qwen3-4B in float16; ± is a standard error over the windows."
    ) in said
    assert (
        "The baseline's divergence from itself, run twice, is 1.00e-06; what is not above it is indistinguishable."
    ) in said
    assert "lower bounds" not in said


def test_divergences_over_the_likeliest_tokens_are_called_lower_bounds() -> None:
    said = to_markdown(
        compare_records(
            [records.record("fp16"), records.record("gptq", quality=records.quality(top_k=100))],
        )
    )
    assert "Divergences are lower bounds: only the 100 likeliest tokens were kept." in said


def test_a_program_gets_the_numbers_and_null_where_there_is_none() -> None:
    rows = to_rows(
        compare_records([records.record("fp16"), records.record("gptq", quality=records.quality(perplexity=13.2))])
    )
    assert [(row["perplexity"], row["kl_divergence"], row["top1_agreement"]) for row in rows] == [
        (None, None, None),
        (13.2, 0.0281, 0.914),
    ]


def test_a_comparison_without_quality_has_no_word_of_it() -> None:
    said = to_markdown(compare_records([records.record("fp16"), records.record("int8")]))
    assert "uality" not in said
    assert "perplexity" not in said


def test_where_a_variants_text_leaves_the_baselines_is_said_once() -> None:
    said = to_markdown(
        compare_records(
            [
                records.record("fp16", records.cell(first_tokens=(5, 6, 7, 8))),
                records.record("int8", records.cell(first_tokens=(5, 6, 7, 8))),
                records.record("gptq", records.cell(first_tokens=(5, 6, 9, 8))),
            ]
        )
    )
    assert (
        "- Greedy text, against fp16's (information, not a score): int8 the same for all 4 tokens, "
        "gptq differs from token 3 on."
    ) in said


def test_random_weights_write_no_text_that_could_be_left() -> None:
    dummy = {"load_format": "dummy"}
    said = to_markdown(compare_records([records.record("fp16", model=dummy), records.record("int8", model=dummy)]))
    assert "Greedy text" not in said


def test_tokens_in_common_end_at_the_first_difference() -> None:
    assert tokens_in_common((1, 2, 3), (1, 2, 3)) == 3
    assert tokens_in_common((1, 9, 3), (1, 2, 3)) == 1
    assert tokens_in_common((9, 2, 3), (1, 2, 3)) == 0


def test_the_end_of_a_run_says_it_in_one_line() -> None:
    assert quality_line(records.quality()) == (
        "quality: perplexity 13.20, +1.72 ± 0.21 % against fp16 of Qwen/Qwen3-4B in float16 (12.98), "
        "KL divergence 0.0281 ± 0.0009, median 0.014, 99 % 0.141, same top token 91.4 %, noise floor 1.00e-06, 31.0 s"
    )
    assert quality_line(records.baseline_quality()) == "quality: perplexity 12.98, noise floor 1.00e-06, 31.0 s"


def test_a_quality_that_failed_is_a_line_under_the_table() -> None:
    said = to_markdown(compare_records([records.record("fp16"), records.record("int8", no_quality="no room for it")]))
    assert "- int8: no quality: no room for it" in said


def test_a_sweep_judges_each_form_once_after_its_rounds_in_a_process_that_times_nothing(tmp_path: Path) -> None:
    # Both fakes are fp16, so that they are one form.
    stage = Stage(tmp_path, variants=["a", "b"], rounds=2)
    assert stage.sweep("--quality", "quick") == []
    assert stage.printed.count("[quality]") == 1
    assert stage.printed.index("[quality] a, b") > stage.printed.index("[round 2/2")
    found = {(one.variant.name, one.round): one.quality for one in stage.records()}
    assert [key for key, quality in found.items() if quality] == [("a", 1), ("b", 1)]
    assert not list(stage.results.glob(".*quality*"))
    assert "perplexity" in stage.printed


def test_a_sweep_that_goes_on_judges_nothing_twice(tmp_path: Path) -> None:
    stage = Stage(tmp_path, variants=["a"])
    stage.sweep("--quality", "quick")
    stage.sweep("--quality", "quick", resume=True)
    assert "[quality]" not in stage.printed
    stage.sweep("--quality", "full", resume=True)
    assert "[quality] a" in stage.printed


def test_the_options_of_quality_change_nothing_about_what_was_timed(tmp_path: Path) -> None:
    stage = Stage(tmp_path, variants=["a"])
    stage.sweep()
    stage.sweep("--quality", "quick", resume=True)
    assert "2 of 2 cells are there already" in stage.printed
    assert stage.records()[0].quality is not None


@pytest.mark.parametrize("deed", ["SIGKILL", "exit", "error"])
def test_a_process_that_dies_while_judging_costs_the_quality_and_no_time(tmp_path: Path, deed: str) -> None:
    stage = Stage(tmp_path, variants=["a"], faults=[{"variant": "a", "at": "quality", "do": deed}])
    assert stage.sweep("--quality", "quick") == ["a, quality"]
    (record,) = stage.records()
    assert [cell.status for cell in record.cells] == ["ok", "ok"]
    assert record.quality is None
    assert record.no_quality
    assert f"a: no quality: {record.no_quality}" in stage.printed.replace("\\", "")
    assert not list(stage.results.glob(".*quality*"))


def test_the_plan_says_that_quality_comes_last(tmp_path: Path) -> None:
    stage = Stage(tmp_path, variants=["a"])
    stage.sweep("--quality", "full", dry_run=True)
    assert "  then quality (full), once for each form" in stage.printed
