"""`explain` on several variants: differences, predicted graph ceilings, break-even and printed output."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from benchmarker.cli.app import app
from benchmarker.core.console import FILE_WIDTH
from benchmarker.report.compare import to_markdown
from benchmarker.report.html.page import to_html
from benchmarker.schema.model import EngineFacts
from benchmarker.workloads.generation.reading.limit_tables import break_even, cost_of
from benchmarker.workloads.generation.record import GenerationRecord
from tests.explained import FP16, INT8, INT8_LOAD, LIMITS, run
from tests.records import cell, compare_records, load, missing, record, save


def pair(*, rounds: int = 1) -> list[GenerationRecord]:
    return [
        run_record
        for number in range(rounds)
        for run_record in (
            run("fp16", *FP16, tpot_ms=9.0 + 0.01 * number, round_number=number),
            run("int8", *INT8, tpot_ms=18.0 + 0.02 * number, round_number=number, load=INT8_LOAD),
        )
    ]


def test_contrast_lists_the_difference_of_each_part() -> None:
    (contrast,) = compare_records(pair(rounds=3)).contrasts
    assert sum(seconds for _, seconds in contrast.parts) == pytest.approx(0.009, rel=0.01)
    assert contrast.sentence() == (
        "int8 is slower than fp16 (0.50x [0.50, 0.50]): +10.0 ms/token dequantizing (converting each weight before it "
        "is multiplied), +1.01 ms gaps (launches, host), -0.800 ms norms, rotary, elementwise, -0.700 ms copies and "
        "casts"
    )


def test_contrast_of_single_processes_is_not_tested() -> None:
    (contrast,) = compare_records(pair()).contrasts
    assert contrast.sentence().startswith("int8 is 0.50x as fast as fp16 (not tested): ")


def test_explain_states_no_difference_that_is_not_significant(tmp_path) -> None:
    paces_ms = {"fp16": (FP16, (9.0, 9.01, 9.02)), "int8": (INT8, (9.0, 14.0, 20.0)), "again": (FP16, (9.5, 8.9, 9.6))}
    records = [
        run(name.replace("again", "fp16"), *kernels, tpot_ms=pace_ms, round_number=number, name=name)
        for name, (kernels, times_ms) in paces_ms.items()
        for number, pace_ms in enumerate(times_ms)
    ]
    done = CliRunner().invoke(app, ["explain", "--format", "markdown", str(save(tmp_path, *records))])
    assert "- int8 is not explained: its rounds differ too much (decode tok/s wide [27.21, 198.49])." in done.output
    assert "int8 is bound by" not in done.output
    assert "int8 is not separated from fp16" not in done.output
    assert "- again is not separated from fp16 (0.97x [0.87, 1.07]): " in done.output


def test_comparison_names_the_bound_of_each_variant() -> None:
    comparison = compare_records(pair())
    assert [(row.variant, row.bound_by) for row in comparison.rows] == [
        ("fp16", "small kernels"),
        ("int8", "dequantizing"),
    ]
    printed = to_markdown(comparison)
    assert "bound by" in printed
    assert "**Why**\n\n- **fp16** is bound by **small kernels**: between products 38 % (1.61x without), " in printed
    assert "- **int8** is bound by **dequantizing**: dequantizing 56 % (2.25x without), " in printed


def test_report_names_the_bound_of_each_variant() -> None:
    page = to_html(compare_records(pair()), ())
    assert "<h2>Why</h2>" in page
    assert "<li><strong>int8</strong> is bound by <strong>dequantizing</strong>: dequantizing 56 %" in page


def test_explain_prints_parts_verdicts_and_differences(tmp_path) -> None:
    done = CliRunner().invoke(app, ["explain", "--format", "markdown", str(save(tmp_path, *pair()))])
    assert done.exit_code == 0, done.output
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.output.splitlines()]
    assert ["reading the weights", "2.67", "2.67"] in rows
    assert ["**a token, measured**", "**9.00**", "**18.00**"] in rows
    assert "- **int8** is bound by **dequantizing**: " in done.output
    assert "- **int8**: not a low-bit product: " in done.output
    assert "**Relative to fp16 (not tested)**" in done.output


def test_explain_prints_each_verdict_and_shared_fact_once(tmp_path) -> None:
    records = [*pair(), run("fp16", *FP16, tpot_ms=9.0, name="fp16 again")]
    printed = CliRunner().invoke(app, ["explain", "--format", "markdown", str(save(tmp_path, *records))]).output
    phrases = ("bound by **dequantizing**", "not a low-bit product", "not tested", "16.00 bits a weight")
    assert {phrase: printed.count(phrase) for phrase in phrases} == dict.fromkeys(phrases, 1)
    assert "- **fp16 and fp16 again** are bound by **small kernels**: " in printed
    assert "**When it has paid for itself, if the differences are real**" in printed


def test_explain_prints_the_answer_first_within_the_file_width(tmp_path) -> None:
    done = CliRunner().invoke(app, ["explain", str(save(tmp_path, *pair()))])
    lines = done.output.splitlines()
    assert lines[1].startswith("- fp16 is bound by small kernels: between products 38 % (1.61x without), ")
    assert max(map(len, lines)) <= FILE_WIDTH
    # The advice is in the answer, and not repeated with the details.
    assert " ".join(done.output.split()).count("`--engine compile` fuses casts and small kernels") == 1


def test_explain_json_has_base_units(tmp_path) -> None:
    done = CliRunner().invoke(app, ["explain", str(save(tmp_path, *pair(), record("gptq"))), "--format", "json"])
    fp16, int8, gptq = json.loads(done.output)
    assert (fp16["bound_by"], int8["bound_by"]) == ("small kernels", "dequantizing")
    assert sum(int8["parts_s"].values()) == pytest.approx(int8["token_s"]) == pytest.approx(0.018)
    assert (int8["ratio"], int8["ratio_low"], int8["verdict"]) == (pytest.approx(0.5), None, "not tested")
    assert sum(int8["more_s"].values()) == pytest.approx(0.009)
    assert fp16["ratio"] is None
    assert gptq["not_explained"] == "no profile (left out, or the run ended before it)"
    assert gptq["allows"].startswith(
        "not profiled (left out, or the run ended before it): at prompt 26, 50 new tokens, batch 1, a token takes 28.0"
    )


def test_engine_without_profile_and_bytes_prints_the_time_of_a_token(tmp_path) -> None:
    external = record("fp16", runtime="vllm", load=None)
    done = CliRunner().invoke(app, ["explain", "--format", "markdown", str(save(tmp_path, external))])
    assert "a token takes 28.0 ms; its bytes are not known." in done.output


def test_external_engine_is_compared_with_the_measured_bandwidth(tmp_path) -> None:
    measured = record("fp16", runtime="llama-cpp", limits=LIMITS)
    done = CliRunner().invoke(app, ["explain", "--format", "markdown", str(save(tmp_path, measured))])
    assert "reads 8.04 GB of weights, 287 GB/s; the device's bandwidth is 3000 GB/s." in done.output


def test_records_without_a_profile_are_not_an_error(tmp_path) -> None:
    done = CliRunner().invoke(app, ["explain", "--format", "markdown", str(save(tmp_path, record("fp16")))])
    assert done.exit_code == 0
    assert (
        "- fp16 is not profiled (left out, or the run ended before it): at prompt 26, 50 new tokens, batch 1, a token "
        "takes 28.0 ms and reads 8.04 GB of weights, 287 GB/s; the device's bandwidth was not measured."
    ) in done.output
    table = CliRunner().invoke(app, ["compare", "--format", "markdown", str(tmp_path)]).output
    assert "No column why: no profile (left out, or the run ended before it)." in table


def test_discarded_profiles_and_invalid_runs_have_a_reason(tmp_path) -> None:
    void = cell(status="invalid", error_kind="disturbed", reason="other programs took 59 % of our cores' time")
    discarded = record("int8", load=None, no_profile=missing("discarded: other programs took 62 % of our cores' time"))
    unpacked = cell(status="invalid", error_kind="wrong_result", reason="ran in bfloat16")
    records = [run("fp16", *FP16, tpot_ms=20.0).model_copy(update={"cells": (void,)}), discarded]
    records.append(record("awq", unpacked, load=None))
    done = CliRunner().invoke(app, ["explain", "--format", "markdown", str(save(tmp_path, *records))])
    assert "fp16 is not explained: no profile (discarded: other programs took 59 % of our cores' time)." in done.output
    assert "int8 is not profiled (discarded: other programs took 62 % of our cores' time): at prompt" in done.output
    assert "awq is not explained: no profile (no cell has a valid time)." in done.output


def test_predicted_graph_ceiling_is_printed_with_the_measured_rate(tmp_path) -> None:
    eager = run("fp16", *FP16, tpot_ms=28.0)
    graph = run("fp16", *FP16, tpot_ms=7.4, name="fp16 graph", runtime="cuda_graph")
    done = CliRunner().invoke(app, ["explain", "--format", "markdown", str(save(tmp_path, eager, graph))])
    assert "- fp16 was to reach 109 to 143 tok/s in a graph; fp16 graph decodes 135 tok/s." in done.output


def test_two_sweeps_keep_their_differences_and_predictions(tmp_path) -> None:
    for name, graph_ms in (("before", 7.4), ("after", 8.0)):
        graph = run("fp16", *FP16, tpot_ms=graph_ms, name="fp16 graph", runtime="cuda_graph")
        save(tmp_path / name, *pair(), graph)
    folders = [str(tmp_path / "before"), str(tmp_path / "after")]
    printed = CliRunner().invoke(app, ["explain", "--format", "markdown", *folders]).output
    assert "- int8 (after) is 0.50x as fast as fp16 (after): +10.0 ms/token dequantizing" in printed
    assert "- before: fp16 was to reach 109 to 143 tok/s in a graph; fp16 graph decodes 135 tok/s." in printed
    assert "- after: fp16 was to reach 109 to 143 tok/s in a graph; fp16 graph decodes 125 tok/s." in printed
    rows = json.loads(CliRunner().invoke(app, ["explain", *folders, "--format", "json"]).output)
    baselines = {row["variant"]: row["baseline"] for row in rows}
    assert baselines["int8 (after)"] == "fp16 (after)"
    assert baselines["fp16 (after)"] is None


def costly(
    quant: str, *, tpot_ms: float, load_s: float, quantize_s: float | None = None, number: int
) -> GenerationRecord:
    kernels = FP16 if quant == "fp16" else INT8
    facts = load(load_s=load_s, quantize_s=quantize_s)
    return run(quant, *kernels, tpot_ms=tpot_ms + 0.001 * number, load=facts, round_number=number)


def test_break_even_is_printed_in_tokens_cold_and_warm(tmp_path) -> None:
    records = [
        run_record
        for number in range(3)
        for run_record in (
            costly("fp16", tpot_ms=30.0, load_s=2.0, number=number),
            costly("gptq", tpot_ms=20.0, load_s=12.0, quantize_s=300.0, number=number),
        )
    ]
    done = CliRunner().invoke(app, ["explain", "--format", "markdown", str(save(tmp_path, *records))])
    # 10 s of loading and 300 s of quantizing; each token saves 10 ms.
    assert (
        "- gptq has paid for itself against fp16 after: warm 1,000 tokens (12.00 s before the first token); cold "
        "31,000 tokens (312 s before the first token)." in done.output
    )


def test_variant_of_equal_speed_has_no_break_even() -> None:
    row = compare_records(pair()).rows[1]
    message = break_even(row, row, costs=({"cold": 1.0}, {"cold": 9.0}))
    assert message == "int8 is not faster than int8, and never pays for its loading"


@pytest.mark.parametrize(
    ("tpots_ms", "sentence"),
    [
        (
            (26.0, 29.0, 32.0),
            "gptq is not separated from fp16 in whole calls: whether it pays for its loading is not decided.",
        ),
        ((29.9, 30.0, 30.1), "gptq is as fast as fp16, and never pays for its loading."),
        ((9.0, 10.0, 29.0), ""),
    ],
)
def test_break_even_is_open_if_the_difference_is_not_significant(
    tmp_path, tpots_ms: tuple[float, ...], sentence: str
) -> None:
    fp16 = [costly("fp16", tpot_ms=30.0, load_s=2.0, number=number) for number in range(3)]
    gptq = [costly("gptq", tpot_ms=tpot, load_s=9.0, number=number) for number, tpot in enumerate(tpots_ms)]
    printed = CliRunner().invoke(app, ["explain", "--format", "markdown", str(save(tmp_path, *fp16, *gptq))]).output
    assert sentence in printed
    assert ("When it has paid for itself" in printed) == bool(sentence)


def test_setup_time_counts_by_the_state_of_the_compiler_cache() -> None:
    def facts(setup_s: float, state: str | None) -> EngineFacts:
        return EngineFacts(name="compile", tokens_read="end", kv_cache="static", setup_s=setup_s, setup_cache=state)

    cold, warm = (
        record("fp16", load=load(load_s=2.0), runtime="compile").model_copy(update={"engine": facts(*setup)})
        for setup in ((80.0, "cold"), (20.0, "warm"))
    )
    assert cost_of([cold, warm]) == {"cold": 82.0, "warm": 22.0}
    assert cost_of([warm]) == {"warm": 22.0}
    assert cost_of([record("fp16", load=load(load_s=2.0))]) == {"cold": 2.0, "warm": 2.0}
    unknown = record("fp16", load=load(load_s=2.0), runtime="compile").model_copy(update={"engine": facts(38.0, None)})
    assert cost_of([unknown]) == {}


def test_dummy_gptq_weights_have_no_cold_cost() -> None:
    dummy = record("gptq", load=load(load_s=2.0), model={"load_format": "dummy"})
    assert cost_of([dummy]) == {"warm": 2.0}
