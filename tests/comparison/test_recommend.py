"""Parsing of budgets, and the recommended variant or the reason for none, on sweeps with known latencies and peaks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarker.cli.app import app
from benchmarker.comparison.recommend import Recommendation, parse_budget, recommend
from benchmarker.core.errors import ResultsError, SpecError
from benchmarker.core.tables import to_markdown
from benchmarker.report.answer import recommendation_blocks, recommendation_to_dict
from benchmarker.report.compare import compare
from benchmarker.schema.record import Memory
from benchmarker.schema.registry import DEFAULT_WORKLOAD
from benchmarker.workloads.generation.record import GenerationRecord
from tests.records import cell, compare_records, environment, record, save

GIB = 2**30
REFERENCE = Path(__file__).parents[2] / "results" / "reference"


def sweep(quant: str, latencies_s: list[float], *, memory_gib: float, **fields: object) -> list[GenerationRecord]:
    """Return one record per round, each with the same peak memory."""
    peak = Memory(peak_allocated_bytes=round(memory_gib * GIB))
    return [
        record(quant, cell([latency_s] * 3, memory=peak), round_number=number, **fields)
        for number, latency_s in enumerate(latencies_s)
    ]


FP16 = sweep("fp16", [1.40, 1.41, 1.40, 1.39, 1.40], memory_gib=7.6)
INT8 = sweep("int8", [2.20, 2.21, 2.22, 2.20, 2.21], memory_gib=5.3)
GPTQ = sweep("gptq", [1.10, 1.11, 1.10, 1.10, 1.09], memory_gib=2.6)
BNB4 = sweep("bnb4", [1.101, 1.109, 1.101, 1.099, 1.091], memory_gib=2.9)


def answer(budget: str, *variants: list[GenerationRecord]) -> tuple[Recommendation, str]:
    recommended = recommend(compare_records([run_record for variant in variants for run_record in variant]), budget)
    return recommended, to_markdown(recommendation_blocks(recommended))


def test_fastest_variant_within_the_budget_is_recommended_with_margins() -> None:
    recommended, printed = answer("memory<6GiB", FP16, INT8, GPTQ)
    assert recommended.chosen is not None
    assert recommended.chosen.row.variant == "gptq"
    assert printed.startswith(
        "For the budget `memory<6GiB`, at prompt 26, 50 new tokens, batch 1: gptq on the eager engine, memory "
        "2.60 GiB (57 % below the limit); 2.01x ["
    )
    assert "] as fast as int8, the next that fits." in printed
    assert "- fp16 on the eager engine does not fit: memory 7.60 GiB (27 % above the limit)" in printed


def test_only_fitting_variant_needs_no_test() -> None:
    recommended, printed = answer("memory<3GiB", FP16[:1], GPTQ[:1])
    assert recommended.chosen is not None
    assert "gptq on the eager engine, memory 2.60 GiB (13 % below the limit); no other variant fits." in printed


def test_nearest_variant_is_named_if_none_fits() -> None:
    recommended, printed = answer("memory<2GiB", FP16, INT8, GPTQ)
    assert recommended.chosen is None
    assert "none fits; the nearest is gptq on the eager engine: memory 2.60 GiB (30 % above the limit)." in printed


def test_untested_difference_gives_no_recommendation() -> None:
    recommended, printed = answer("memory<6GiB", FP16[:1], INT8[:1], GPTQ[:1])
    assert recommended.chosen is None
    assert "not decided: gptq or int8 may be the fastest that fits: not tested." in printed
    assert "tok/s" not in printed
    assert recommendation_to_dict(recommended)["variant"] is None
    assert recommendation_to_dict(recommended)["undecided"] == ["gptq", "int8"]


def test_inconclusive_difference_gives_no_recommendation() -> None:
    noisy = sweep("bnb4", [1.0, 1.3, 1.05, 1.25, 1.10], memory_gib=2.9)
    recommended, printed = answer("memory<6GiB", FP16, GPTQ, noisy)
    assert recommended.chosen is None
    assert ": inconclusive." in printed


def test_recommendation_uses_the_corrected_p_values_of_the_table() -> None:
    # In a table of two gptq is faster than fp16 (p = 0.02); after the correction for more rows it is not significant.
    first = sweep("gptq", [1.20, 1.10, 1.22, 1.15, 1.25], memory_gib=2.6)
    base = sweep("fp16", [1.30, 1.32, 1.28, 1.31, 1.29], memory_gib=7.6)
    noisy = [
        sweep(quant, [1.5, 1.2, 1.6, 1.3, 1.4], memory_gib=9.0, name=f"{quant}-{number}")
        for quant in ("int8", "bnb4")
        for number in range(2)
    ]
    recommended = recommend(
        compare_records([*base, *first, *(run_record for records in noisy for run_record in records)]), "memory<8GiB"
    )
    alone = recommend(compare_records([*base, *first]), "memory<8GiB")
    assert alone.chosen is not None
    assert recommended.chosen is None
    assert [rival.row.variant for rival in recommended.ranking.undecided] == ["fp16"]


def test_budget_can_exclude_a_quantization() -> None:
    recommended, _ = answer("memory<6GiB, quant!=gptq", FP16, INT8, GPTQ)
    assert recommended.chosen is not None
    assert recommended.chosen.row.variant == "int8"


def test_variant_that_may_fit_is_mentioned() -> None:
    wide = sweep("fp16", [1.30, 1.50, 1.40, 1.35, 1.45], memory_gib=7.6)
    _, printed = answer("latency<1.42s", wide, GPTQ)
    assert "; fp16 may fit too." in printed


def test_smaller_of_two_equally_fast_variants_is_recommended() -> None:
    recommended, printed = answer("memory<6GiB", FP16, GPTQ, BNB4)
    assert recommended.chosen is not None
    assert recommended.chosen.row.variant == "gptq"
    assert "it is as fast as bnb4 within the band, and needs least memory." in printed


def test_budget_on_an_unmeasured_metric_has_no_answer() -> None:
    recommended, printed = answer("memory<6GiB, kld<0.05", FP16, GPTQ)
    assert recommended.chosen is None
    assert "it cannot be answered; kld was not measured: `--quality` measures it, on real weights." in printed
    assert recommendation_to_dict(recommended)["not_measured"] == ["kld"]


def test_single_round_is_not_compared_with_a_limit() -> None:
    recommended, printed = answer("latency<2s", FP16[:1], INT8[:1])
    assert recommended.chosen is None
    assert "none is known to fit, and more rounds would decide. As measured fp16 on the eager engine does" in printed
    assert "latency 1.4000 s (30 % below the limit, of fewer than 3 rounds)" in printed


def test_interval_that_contains_the_limit_is_too_close_to_call() -> None:
    _, printed = answer("latency<1.4s", FP16)
    assert "too close to call" in printed


def test_wide_interval_is_printed_without_a_number() -> None:
    wide = sweep("bnb4", [9.0, 5.0, 14.0], memory_gib=2.9)
    _, printed = answer("latency<0.5s", GPTQ[:3], wide)
    assert "- bnb4 on the eager engine does not fit: latency wide (above the limit)" in printed
    recommended, printed = answer("memory<3GiB", GPTQ[:3], wide)
    assert recommended.chosen is not None
    assert "; faster than bnb4, the next that fits." in printed


def test_forced_comparison_raises() -> None:
    other_device = sweep(
        "gptq", [1.1, 1.1, 1.1], memory_gib=2.6, environment=environment(device={"name": "NVIDIA A100"})
    )
    forced = compare_records([*FP16, *other_device], force=True)
    with pytest.raises(
        ResultsError, match="nothing is recommended from records that were compared by force; device is"
    ):
        recommend(forced, "memory<6GiB")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("memry<6GiB", "'memry' cannot be limited; did you mean 'memory'?"),
        ("memory<6", "a size needs its unit; write memory<6GiB"),
        ("engine!=vllm", "variants differ in quant"),
        ("memory<6 parsec", "memory is in b, mib, gib, mb, gb, not 'parsec'"),
        ("kld<2%", "kld has no unit, such as '%'"),
        ("top1>5ms", "top1 is in %, not 'ms'"),
        ("memory 6", "write it as memory<6GiB or engine!=native, with commas between several"),
        ("quant=int9", "no variant has quant 'int9'; did you mean 'int8'?"),
        ("", "write conditions, as in --budget 'memory<6GiB, kld<0.05'"),
    ],
)
def test_invalid_budget_raises_with_a_remedy(text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_budget(text, DEFAULT_WORKLOAD, forms={"quant": ["fp16", "int8"]})
    assert message in str(caught.value)


def test_budget_values_are_parsed_into_base_units() -> None:
    _, (memory, first, agreement) = parse_budget("memory<=6GiB, TTFT<30ms,top1>95%", DEFAULT_WORKLOAD, forms={})
    assert (memory.value, memory.is_inclusive, memory.is_upper) == (6 * GIB, True, True)
    assert (first.metric, first.value) == ("ttft", 0.03)
    assert (agreement.value, agreement.is_upper) == (0.95, False)
    assert memory.allows(6 * GIB)
    assert not agreement.allows(0.95)


def test_compare_prints_the_recommendation(tmp_path) -> None:
    folder = save(tmp_path, *FP16, *GPTQ)
    done = CliRunner().invoke(app, ["compare", str(folder), "--budget", "memory<6GiB"])
    assert done.exit_code == 0, done.output
    assert done.output.lstrip().startswith("For the budget `memory<6GiB`")
    assert "Run it:\n`benchmarker generate --model Qwen/Qwen3-4B --quant gptq --engine eager" in done.output
    plain = CliRunner().invoke(app, ["compare", str(folder), "--budget", "memory<6GiB", "--format", "json"])
    assert json.loads(plain.output)["variant"] == "gptq"


def test_undecided_perplexity_needs_a_longer_text_not_more_rounds() -> None:
    recommended = recommend(compare([REFERENCE / "quickstart"]), "ppl<17.5")
    printed = to_markdown(recommendation_blocks(recommended))
    assert "more rounds" not in printed
    assert "none is known to fit, and a longer text (`--quality full`) would decide." in printed


def test_peak_budget_limits_the_peak_column_not_the_call_peak() -> None:
    # The peak column of linear-fla-chunk is 2.56 GiB; its call peak is 1.50 GiB.
    results = compare([REFERENCE / "h200-mixers"])
    fitting = {candidate.row.variant for candidate in recommend(results, "peak<2GiB").candidates if candidate.fits}
    assert fitting == {"softmax-sdpa", "softmax-cudnn"}
    assert recommend(results, "call peak<2GiB").chosen is not None
