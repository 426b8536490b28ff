"""A budget names one variant, or says why it cannot."""

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
    """One record a round, all with that peak."""
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
    found = recommend(compare_records([one for variant in variants for one in variant]), budget)
    return found, to_markdown(recommendation_blocks(found))


def test_the_fastest_that_fits_is_named_with_its_margins() -> None:
    found, printed = answer("memory<6GiB", FP16, INT8, GPTQ)
    assert found.chosen is not None
    assert found.chosen.row.variant == "gptq"
    assert printed.startswith(
        "For the budget `memory<6GiB`, at prompt 26, 50 new tokens, batch 1: gptq on the eager engine, memory "
        "2.60 GiB (57 % below the limit); 2.01x ["
    )
    assert "] as fast as int8, the next that fits." in printed
    assert "- fp16 on the eager engine does not fit: memory 7.60 GiB (27 % above the limit)" in printed


def test_the_only_one_that_fits_needs_no_test() -> None:
    found, printed = answer("memory<3GiB", FP16[:1], GPTQ[:1])
    assert found.chosen is not None
    assert "gptq on the eager engine, memory 2.60 GiB (13 % below the limit); no other variant fits." in printed


def test_where_none_fits_the_nearest_is_named() -> None:
    found, printed = answer("memory<2GiB", FP16, INT8, GPTQ)
    assert found.chosen is None
    assert "none fits; the nearest is gptq on the eager engine: memory 2.60 GiB (30 % above the limit)." in printed


def test_a_difference_that_was_not_tested_decides_nothing() -> None:
    found, printed = answer("memory<6GiB", FP16[:1], INT8[:1], GPTQ[:1])
    assert found.chosen is None
    assert "not decided: gptq or int8 may be the fastest that fits: not tested." in printed
    assert "tok/s" not in printed
    assert recommendation_to_dict(found)["variant"] is None
    assert recommendation_to_dict(found)["undecided"] == ["gptq", "int8"]


def test_an_inconclusive_difference_decides_nothing() -> None:
    noisy = sweep("bnb4", [1.0, 1.3, 1.05, 1.25, 1.10], memory_gib=2.9)
    found, printed = answer("memory<6GiB", FP16, GPTQ, noisy)
    assert found.chosen is None
    assert ": inconclusive." in printed


def test_what_the_table_is_unsure_of_decides_nothing_here_either() -> None:
    # Alone, gptq is faster than fp16 (p = 0.02); corrected for a table of four, that is not borne out.
    first = sweep("gptq", [1.20, 1.10, 1.22, 1.15, 1.25], memory_gib=2.6)
    base = sweep("fp16", [1.30, 1.32, 1.28, 1.31, 1.29], memory_gib=7.6)
    noisy = [
        sweep(quant, [1.5, 1.2, 1.6, 1.3, 1.4], memory_gib=9.0, name=f"{quant}-{number}")
        for quant in ("int8", "bnb4")
        for number in range(2)
    ]
    found = recommend(compare_records([*base, *first, *(one for records in noisy for one in records)]), "memory<8GiB")
    alone = recommend(compare_records([*base, *first]), "memory<8GiB")
    assert alone.chosen is not None
    assert found.chosen is None
    assert [rival.row.variant for rival in found.ranking.undecided] == ["fp16"]


def test_a_variant_can_be_ruled_out_by_its_form() -> None:
    found, _ = answer("memory<6GiB, quant!=gptq", FP16, INT8, GPTQ)
    assert found.chosen is not None
    assert found.chosen.row.variant == "int8"


def test_what_may_fit_is_not_said_to_break_the_budget() -> None:
    wide = sweep("fp16", [1.30, 1.50, 1.40, 1.35, 1.45], memory_gib=7.6)
    _, printed = answer("latency<1.42s", wide, GPTQ)
    assert "; fp16 may fit too." in printed


def test_of_two_that_are_as_fast_the_smaller_is_named() -> None:
    found, printed = answer("memory<6GiB", FP16, GPTQ, BNB4)
    assert found.chosen is not None
    assert found.chosen.row.variant == "gptq"
    assert "it is as fast as bnb4 within the band, and needs least memory." in printed


def test_a_metric_that_nobody_measured_makes_the_budget_unanswerable() -> None:
    found, printed = answer("memory<6GiB, kld<0.05", FP16, GPTQ)
    assert found.chosen is None
    assert "it cannot be answered; kld was not measured: `--quality` measures it, on real weights." in printed
    assert recommendation_to_dict(found)["not_measured"] == ["kld"]


def test_a_time_of_one_process_is_not_held_against_a_limit() -> None:
    found, printed = answer("latency<2s", FP16[:1], INT8[:1])
    assert found.chosen is None
    assert "none is known to fit, and more rounds would decide. As measured fp16 on the eager engine does" in printed
    assert "latency 1.4000 s (30 % below the limit, of fewer than 3 rounds)" in printed


def test_an_interval_with_the_limit_inside_is_too_close_to_call() -> None:
    _, printed = answer("latency<1.4s", FP16)
    assert "too close to call" in printed


def test_an_interval_too_wide_for_the_table_has_no_number_here_either() -> None:
    wide = sweep("bnb4", [9.0, 5.0, 14.0], memory_gib=2.9)
    _, printed = answer("latency<0.5s", GPTQ[:3], wide)
    assert "- bnb4 on the eager engine does not fit: latency wide (above the limit)" in printed
    found, printed = answer("memory<3GiB", GPTQ[:3], wide)
    assert found.chosen is not None
    assert "; faster than bnb4, the next that fits." in printed


def test_a_forced_comparison_recommends_nothing() -> None:
    elsewhere = sweep("gptq", [1.1, 1.1, 1.1], memory_gib=2.6, environment=environment(device={"name": "NVIDIA A100"}))
    forced = compare_records([*FP16, *elsewhere], force=True)
    with pytest.raises(
        ResultsError, match="nothing is recommended from records that were compared by force; device is"
    ):
        recommend(forced, "memory<6GiB")


@pytest.mark.parametrize(
    ("text", "said"),
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
def test_a_budget_that_cannot_be_read_is_one_line(text: str, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_budget(text, DEFAULT_WORKLOAD, forms={"quant": ["fp16", "int8"]})
    assert said in str(caught.value)


def test_units_are_base_units_inside() -> None:
    _, (memory, first, agreement) = parse_budget("memory<=6GiB, TTFT<30ms,top1>95%", DEFAULT_WORKLOAD, forms={})
    assert (memory.value, memory.is_inclusive, memory.is_upper) == (6 * GIB, True, True)
    assert (first.metric, first.value) == ("ttft", 0.03)
    assert (agreement.value, agreement.is_upper) == (0.95, False)
    assert memory.allows(6 * GIB)
    assert not agreement.allows(0.95)


def test_compare_prints_the_recommendation_under_its_tables(tmp_path) -> None:
    folder = save(tmp_path, *FP16, *GPTQ)
    done = CliRunner().invoke(app, ["compare", str(folder), "--budget", "memory<6GiB"])
    assert done.exit_code == 0, done.output
    assert done.output.lstrip().startswith("For the budget `memory<6GiB`")
    assert "Run it:\n`benchmarker generate --model Qwen/Qwen3-4B --quant gptq --engine eager" in done.output
    plain = CliRunner().invoke(app, ["compare", str(folder), "--budget", "memory<6GiB", "--format", "json"])
    assert json.loads(plain.output)["variant"] == "gptq"


def test_more_rounds_are_not_the_advice_for_a_value_that_is_measured_once() -> None:
    found = recommend(compare([REFERENCE / "quickstart"]), "ppl<17.5")
    printed = to_markdown(recommendation_blocks(found))
    assert "more rounds" not in printed
    assert "none is known to fit, and a longer text (`--quality full`) would decide." in printed


def test_peak_limits_the_column_of_that_name_and_not_the_peak_of_one_call() -> None:
    # The table's peak of linear-fla-chunk is 2.56 GiB, of which one call takes 1.50.
    results = compare([REFERENCE / "h200-mixers"])
    fitting = {candidate.row.variant for candidate in recommend(results, "peak<2GiB").candidates if candidate.fits}
    assert fitting == {"softmax-sdpa", "softmax-cudnn"}
    assert recommend(results, "call peak<2GiB").chosen is not None
