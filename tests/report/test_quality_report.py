"""Quality in tables, captions and JSON rows, and its measurement by a sweep of fake workers, without torch."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarker.comparison.recommend import recommend
from benchmarker.comparison.results import to_rows
from benchmarker.comparison.rows import Results
from benchmarker.core import tables
from benchmarker.core.errors import MissingLibraryError, SpecError
from benchmarker.quality.evaluation_text import REMEDY, read_text
from benchmarker.quantization import base
from benchmarker.report.answer import recommendation_blocks
from benchmarker.report.compare import brief, to_markdown
from benchmarker.report.html.page import to_html
from benchmarker.schema.quality import Quality, TaskResult, quality_line
from benchmarker.workloads.generation import generation_quality
from benchmarker.workloads.generation.reading.baseline import greedy_tokens_in_common
from tests import records
from tests.faults.stage import Stage
from tests.jobs import job_of
from tests.records import compare_records


def quality_page() -> str:
    """Return the page of a baseline, an equally good int8, a 4-bit variant and one without quality."""
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


def test_quality_has_a_separate_table() -> None:
    output = quality_page()
    table = output[output.index("**Quality**") :].split("\n\n")[1]
    assert [" ".join(line.split()) for line in table.splitlines() if "---" not in line] == [
        "| variant | perplexity | change | KL divergence | median | 90 % | 99 % | max | same top | RMS Δp |",
        "| fp16 | 12.98 | baseline | – | – | – | – | – | – | – |",
        "| int8 | 12.99 | +1.72 ± 0.21 % | indistinguishable | 4.50e-07 | 1.80e-06 | 4.50e-06 | 1.80e-05 | 91.4 % "
        "| 4.1 % |",
        "| gptq | 13.20 | +1.72 ± 0.21 % | 0.0281 ± 0.0009 | 0.014 | 0.0562 | 0.141 | 0.562 | 91.4 % | 4.1 % |",
        "| bnb4 | – | – | – | – | – | – | – | – | – |",
    ]


WRONG_OUTPUT = (
    "its perplexity 9000 is over 10 times that of fp16 of Qwen/Qwen3-4B in float16 (12.98): its output is wrong"
)


def test_variant_whose_quality_failed_has_a_reason_and_no_speed() -> None:
    invalid_record, *others = records.rounds("int8", [0.5, 0.5, 0.5])
    invalid_record = invalid_record.model_copy(update={"quality": records.failed_quality()})
    results = compare_records([*records.rounds("fp16", [1.0, 1.0, 1.0]), invalid_record, *others])
    row = next(row for row in results.rows if row.variant == "int8")
    assert (row.status, row.reason, row.pace, row.speed_up) == ("invalid", WRONG_OUTPUT, None, None)
    page = to_markdown(results)
    assert f"invalid: {WRONG_OUTPUT}" in page
    assert "int8 is faster" not in page
    assert next(explanation.why for explanation in results.explained if explanation.variant == "int8") == WRONG_OUTPUT


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"quality": records.failed_quality(129.0)}, "ok"),
        ({"no_quality": records.missing("out of memory while scoring", "quality")}, "ok"),
        ({"no_quality": records.missing("logits that are not finite", "wrong_result")}, "invalid"),
    ],
)
def test_only_a_wrong_result_withholds_the_speed(fields: dict[str, Any], status: str) -> None:
    results = compare_records([records.record("fp16"), records.record("int8", **fields)])
    assert [row.status for row in results.rows] == ["ok", status]


def test_report_has_the_quality_table_and_caption() -> None:
    page = to_html(compare_records([records.record("fp16"), records.record("gptq", quality=records.quality())]), ())
    assert "0.0281 ± 0.0009" in page
    assert "Quality on 2,048 tokens of benchmarker evaluation.txt" in page


def test_quality_caption_names_text_baseline_and_noise() -> None:
    output = quality_page()
    assert (
        "Quality on 2,048 tokens of benchmarker evaluation.txt (sha256 cdcdcdcdcdcd; windows of 289, the first 256 "
        "only read), each variant against fp16 of Qwen/Qwen3-4B in float16; ± is a standard error over the windows: of "
        "another text, not of another quantizing of the same weights."
    ) in output
    assert (
        "Noise floor: 1.00e-06, the baseline's divergence from itself, run twice; a divergence that is not above it is "
        "indistinguishable."
    ) in output
    assert "lower bounds" not in output


def test_top_k_divergences_are_called_lower_bounds() -> None:
    output = to_markdown(
        compare_records(
            [records.record("fp16"), records.record("gptq", quality=records.quality(top_k=100))],
        )
    )
    assert "Divergences of gptq are lower bounds: only the 100 likeliest tokens were kept." in output


def with_other_quality(**other: Any) -> Results:
    """Return a baseline and int8 with equal quality settings, and gptq with other ones."""
    return compare_records(
        [
            records.record("fp16", quality=records.baseline_quality()),
            records.record("int8", quality=records.quality()),
            records.record("gptq", quality=records.quality(**other)),
        ]
    )


def test_quality_on_different_texts_is_not_compared() -> None:
    results = with_other_quality(text="mine.txt", text_sha256="ef" * 32, perplexity=3.1)
    output = to_markdown(results)
    assert (
        "Quality of fp16 and int8 on 2,048 tokens of benchmarker evaluation.txt (sha256 cdcdcdcdcdcd; windows of 289, "
        "the first 256 only read), each variant against fp16 of Qwen/Qwen3-4B in float16; of gptq on 2,048 tokens of "
        "mine.txt (sha256 efefefefefef; windows of 289, the first 256 only read), each variant against fp16 of "
        "Qwen/Qwen3-4B in float16; ± is a standard error over the windows: of another text, not of "
        "another quantizing of the same weights. Perplexities and divergences on different "
        "texts, or parts of one, do not compare: the first table and budgets leave out those of gptq."
    ) in output
    gptq = results.rows[2]
    assert (gptq.perplexity, gptq.kl_divergence, gptq.top1_agreement) == (None, None, None)
    assert to_rows(results)[2]["perplexity"] == 3.1


@pytest.mark.parametrize("budget", ["perplexity<14", "kld<0.05", "top1>90%"])
def test_budget_does_not_compare_quality_on_different_texts(budget: str) -> None:
    recommendation = recommend(with_other_quality(text_sha256="ef" * 32, perplexity=3.1), budget)
    candidates = [candidate for candidate in recommendation.candidates if candidate.row.variant != "fp16"]
    assert [candidate.checks[0].fit for candidate in candidates] == ["fits", "unknown"]
    assert "gptq on the eager engine is not known to fit" in tables.to_markdown(recommendation_blocks(recommendation))


def test_top_k_divergences_are_not_compared_with_full_ones() -> None:
    results = with_other_quality(top_k=100)
    assert [(row.perplexity, row.kl_divergence) for row in results.rows[1:]] == [(13.2, 0.0281), (13.2, None)]
    output = to_markdown(results)
    assert (
        "Divergences over different numbers of tokens do not compare: the first table and budgets leave out those of "
        "gptq."
    ) in output
    assert "Divergences of gptq are lower bounds: only the 100 likeliest tokens were kept." in output


def test_each_row_has_its_own_noise_floor() -> None:
    rows = [
        records.record("int8", quality=records.quality(kl=2e-6)),
        records.record("gptq", quality=records.quality(kl=2e-6, noise=3e-6)),
    ]
    output = to_markdown(compare_records([records.record("fp16"), *rows]))
    assert (
        "Noise floor: 1.00e-06 to 3.00e-06, the baseline's divergence from itself, run twice; a divergence that is not "
        "above it is indistinguishable."
    ) in output


def test_noise_floor_is_that_of_fp16_in_the_same_engine() -> None:
    variants = [
        records.record("fp16", quality=step_quality(0.0002, is_baseline=True)),
        records.record("fp16", name="fp16-compile", runtime="compile", quality=step_quality(0.0004, is_baseline=True)),
        records.record("int8", quality=step_quality(0.0003)),
        records.record("int8", name="int8-compile", runtime="compile", quality=step_quality(0.0003)),
    ]
    results = compare_records(variants)
    assert [row.quality.noise.kl_mean for row in results.rows] == [0.0002, 0.0004, 0.0002, 0.0004]
    [sheet] = [sheet for sheet in brief(results) if isinstance(sheet, tables.Sheet)]
    [divergence] = [column for column in sheet.columns if column.heading == "KL"]
    assert {row.variant: divergence.text(row) for row in sheet.rows} == {
        "fp16": "–", "fp16-compile": "–", "int8": "0.0003", "int8-compile": "indistinguishable",
    }  # fmt: skip
    assert "Noise floor: 0.0002 to 0.0004, the baseline's divergence from itself, by its own decode step;" in (
        to_markdown(results)
    )


def test_json_rows_without_quality_have_null() -> None:
    rows = to_rows(
        compare_records([records.record("fp16"), records.record("gptq", quality=records.quality(perplexity=13.2))])
    )
    assert [(row["perplexity"], row["kl_divergence"], row["top1_agreement"]) for row in rows] == [
        (None, None, None),
        (13.2, 0.0281, 0.914),
    ]


def test_json_row_has_errors_tails_and_noise_of_the_quality() -> None:
    _, row = to_rows(compare_records([records.record("fp16"), records.record("gptq", quality=records.quality())]))
    assert {key: row[key] for key in row if key.startswith(("kl_", "ln_", "text_", "quality_"))} == {
        "kl_divergence": 0.0281,
        "kl_divergence_error": 0.0009,
        "kl_divergence_median": 0.01405,
        "kl_divergence_90": 0.0562,
        "kl_divergence_99": pytest.approx(0.1405),
        "kl_divergence_999": None,
        "kl_divergence_max": 0.562,
        "kl_divergence_noise": 1e-6,
        "ln_ratio": 0.0171,
        "ln_ratio_error": 0.0021,
        "text_sha256": "cd" * 32,
        "quality_size": "quick",
        "quality_top_k": None,
        "quality_path": "forward",
    }


def test_comparison_without_quality_does_not_mention_it() -> None:
    output = to_markdown(compare_records([records.record("fp16"), records.record("int8")]))
    assert "uality" not in output
    assert "perplexity" not in output


def test_first_different_token_of_the_timed_text_is_printed() -> None:
    output = to_markdown(
        compare_records(
            [
                records.record("fp16", records.cell(first_tokens=(5, 6, 7, 8))),
                records.record("int8", records.cell(first_tokens=(5, 6, 7, 8))),
                records.record("gptq", records.cell(first_tokens=(5, 6, 9, 8))),
            ]
        )
    )
    assert (
        "- Timed text, relative to fp16's (information, not a score): int8 the same for all 4 tokens, "
        "gptq differs from token 3 on."
    ) in output


def test_dummy_weights_have_no_comparison_of_timed_text() -> None:
    dummy = {"load_format": "dummy"}
    output = to_markdown(compare_records([records.record("fp16", model=dummy), records.record("int8", model=dummy)]))
    assert "Timed text" not in output


def test_tokens_in_common_end_at_the_first_difference() -> None:
    assert greedy_tokens_in_common((1, 2, 3), (1, 2, 3)) == 3
    assert greedy_tokens_in_common((1, 9, 3), (1, 2, 3)) == 1
    assert greedy_tokens_in_common((9, 2, 3), (1, 2, 3)) == 0


def test_quality_line_of_a_run() -> None:
    assert quality_line(records.quality()) == (
        "quality: perplexity 13.20, +1.72 ± 0.21 % against fp16 of Qwen/Qwen3-4B in float16 (12.98), "
        "KL divergence 0.0281 ± 0.0009, median 0.014, 99 % 0.141, same top token 91.4 %, "
        "the baseline's forward, run twice, 1.00e-06, 31.0 s"
    )
    assert quality_line(records.baseline_quality()) == "quality: perplexity 12.98, noise floor 1.00e-06, 31.0 s"


def test_failed_quality_is_listed_below_the_table() -> None:
    output = to_markdown(
        compare_records([records.record("fp16"), records.record("int8", no_quality=records.missing("no room for it"))])
    )
    assert "- int8: no quality: no room for it" in output


def test_sweep_measures_quality_once_per_format_after_the_rounds(tmp_path: Path) -> None:
    # Both variants are fp16, so that their quality is measured once.
    stage = Stage(tmp_path, variants=["a", "b"], rounds=2)
    assert stage.sweep("--quality", "quick") == []
    assert stage.printed.count("[quality 1/1]") == 1
    assert stage.printed.index("[quality 1/1] a, b") > stage.printed.index("[round 2/2")
    qualities = {(run_record.variant.name, run_record.round): run_record.quality for run_record in stage.records()}
    assert [key for key, quality in qualities.items() if quality] == [("a", 1), ("b", 1)]
    assert not list(stage.results.glob(".*quality*"))
    assert "KL" in stage.printed


@pytest.fixture
def stage_with_quality(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """Return a finished sweep with quality on the shipped text."""
    base_quality = records.quality(text_sha256=read_text(None).sha256)
    monkeypatch.setattr(records, "quality", lambda **fields: base_quality.model_copy(update=fields))
    stage = Stage(tmp_path, variants=["a"])
    stage.sweep("--quality", "quick")
    return stage


def test_resumed_sweep_does_not_repeat_quality(stage_with_quality: Stage) -> None:
    stage_with_quality.sweep("--quality", "quick", resume=True)
    assert "[quality" not in stage_with_quality.printed
    stage_with_quality.sweep("--quality", "full", resume=True)
    assert "[quality 1/1] a" in stage_with_quality.printed


def test_resumed_sweep_with_more_rounds_does_not_repeat_quality(stage_with_quality: Stage) -> None:
    stage_with_quality.sweep("--quality", "quick", resume=True, rounds=3)
    assert len(stage_with_quality.records()) == 3
    assert "[quality" not in stage_with_quality.printed


@pytest.mark.parametrize("option", ["--eval-text", "--quality-topk", "--quality-baseline"])
def test_resumed_sweep_with_other_quality_options_repeats_quality(stage_with_quality: Stage, option: str) -> None:
    text_path = stage_with_quality.home / "mine.txt"
    text_path.write_text("Another text. " * 100)
    value = {"--eval-text": str(text_path), "--quality-topk": "100", "--quality-baseline": "another/model"}[option]
    stage_with_quality.sweep("--quality", "quick", option, value, resume=True)
    assert "[quality 1/1] a" in stage_with_quality.printed


def test_tasks_are_repeated_for_new_tasks_or_a_larger_limit() -> None:
    answers = TaskResult(
        task="arc_easy",
        version="1",
        harness="0.4",
        metric="acc",
        few_shots=0,
        right=(True,),
        asked=("arc_easy",),
        limit=9,
    )
    record = records.record(tasks=(answers,))

    def is_done(*tasks: str, limit: int | None) -> bool:
        return generation_quality.GenerationJudging().is_done(
            record, job_of(quality={"tasks": list(tasks), "task_limit": limit})
        )

    assert is_done("arc_easy", limit=9)
    assert not is_done("arc_easy", limit=None)
    assert not is_done("hellaswag", limit=9)
    assert not is_done("arc_easy", "hellaswag", limit=9)


def test_failed_repetition_keeps_the_earlier_quality(stage_with_quality: Stage) -> None:
    stage_with_quality.faults = [{"variant": "a", "at": "quality", "do": "SIGKILL"}]
    assert stage_with_quality.sweep("--quality", "full", resume=True) == ["a, quality"]
    (record,) = stage_with_quality.records()
    assert record.quality is not None
    assert record.no_quality


def test_failed_tasks_are_not_reported_as_failed_quality(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation_quality, "require", lambda *_: None)
    stage = Stage(tmp_path, variants=["a"], faults=[{"variant": "a", "at": "quality", "do": "error"}])
    assert stage.sweep("--tasks", "arc_easy") == ["a, tasks"]
    (record,) = stage.records()
    assert record.no_quality is None
    assert record.no_tasks == records.missing("RuntimeError: shapes do not match")


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, f"no such file; a data set is written NAME:CONFIG:SPLIT; or {REMEDY}"),
        (b" \n", "there is no text in it; give a text of at least a few kB"),
        (b"\xff", "not a text file in UTF-8"),
        (b"too short", "9 bytes, which is less than one window of 289 tokens; give a text of at least a few kB"),
    ],
)
def test_sweep_refuses_an_invalid_text_before_measuring(
    tmp_path: Path, content: bytes | None, message: str, dry_run: bool
) -> None:
    path = tmp_path / "text.txt"
    if content is not None:
        path.write_bytes(content)
    stage = Stage(tmp_path)
    with pytest.raises(SpecError) as caught:
        stage.sweep("--quality", "quick", "--eval-text", str(path), dry_run=dry_run)
    assert str(caught.value) == f"--eval-text {path}: {message}"
    assert not stage.results.exists()


def test_sweep_refuses_options_that_require_a_missing_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "installed_version", lambda _: None)
    with pytest.raises(MissingLibraryError, match="the library 'lm_eval' is not installed"):
        Stage(tmp_path).sweep("--tasks", "arc_easy")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingLibraryError, match="the library 'datasets' is not installed"):
        Stage(tmp_path).sweep("--quality", "quick", "--eval-text", "some:data:test")


def test_adding_quality_keeps_the_timed_cells(tmp_path: Path) -> None:
    stage = Stage(tmp_path, variants=["a"])
    stage.sweep()
    stage.sweep("--quality", "quick", resume=True)
    assert "2 of 2 cells are there already" in stage.printed
    assert stage.records()[0].quality is not None


@pytest.mark.parametrize("fault", ["SIGKILL", "exit", "error"])
def test_crash_during_quality_keeps_the_timed_cells(tmp_path: Path, fault: str) -> None:
    stage = Stage(tmp_path, variants=["a"], faults=[{"variant": "a", "at": "quality", "do": fault}])
    assert stage.sweep("--quality", "quick") == ["a, quality"]
    (record,) = stage.records()
    assert [cell.status for cell in record.cells] == ["ok", "ok"]
    assert record.quality is None
    assert record.no_quality
    assert f"a: no quality: {record.no_quality.reason}" in stage.printed.replace("\\", "")
    assert not list(stage.results.glob(".*quality*"))


def test_plan_lists_quality_last(tmp_path: Path) -> None:
    stage = Stage(tmp_path, variants=["a"])
    stage.sweep("--quality", "full", dry_run=True)
    assert "  then quality (full), once for each quantization" in stage.printed


def step_quality(kl: float, **fields: Any) -> Quality:
    """Return quality as scored by the decode step."""
    base_quality = records.quality(kl=kl, path="step", **fields)
    against = base_quality.against.model_copy(update={"kl_999": 0.9, "change_low": -0.312, "change_high": 0.18})
    return base_quality.model_copy(update={"against": against})


def test_quality_table_has_tails_and_the_scored_path() -> None:
    fp16 = records.record("fp16").model_copy(update={"quality": step_quality(0.0002, is_baseline=True)})
    output = to_markdown(
        compare_records([fp16, records.record("gptq").model_copy(update={"quality": step_quality(0.02)})])
    )
    assert "| same top | RMS Δp | Δp 0.1 % | Δp 99.9 % |" in output
    assert "-31.2 % |" in output
    assert "+18.0 % |" in output
    assert "Each was scored by the decode step that is timed, one token at a time." in output
    assert ["fp16", "13.20", "baseline", "–"] in [re.split(" *[|] *", line)[1:5] for line in output.splitlines()]
    assert "Noise floor: 0.0002, the baseline's divergence from itself, by its own decode step;" in output
    assert "Silent zone" not in output


def test_quality_of_prefill_and_steps_is_not_compared() -> None:
    steps = {"fp16": step_quality(0.0002, is_baseline=True), "int8": step_quality(0.02)}
    variants = {**steps, "awq": records.quality(path="prefill", top_k=100)}
    compared = compare_records(
        [records.record(name).model_copy(update={"quality": of}) for name, of in variants.items()]
    )
    rows = {row.variant: row for row in compared.rows}
    assert (rows["awq"].perplexity, rows["awq"].kl_divergence) == (None, None)
    assert rows["awq"].quality is not None
    output = to_markdown(compared)
    assert "fp16 and int8 were scored by the decode step that is timed" in output
    assert "The numbers of awq are those of the prefill, because the engine does not score its decode step" in output


def test_small_divergences_are_not_ranked() -> None:
    variants = {"fp16": step_quality(0.0002, is_baseline=True), "int8": step_quality(0.0004)}
    variants |= {"bnb4": step_quality(0.02), "int8 again": step_quality(0.0004)}
    output = to_markdown(
        compare_records([records.record(name).model_copy(update={"quality": of}) for name, of in variants.items()])
    )
    assert (
        "Silent zone: below 0.01 nats a divergence does not say which form is better, only that little moved: int8 and "
        "int8 again are not ranked by it; use tasks." in output
    )
