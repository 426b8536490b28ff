"""Speed-ups, references and ranking of synthetic records, compared with hand-computed values."""

from __future__ import annotations

import math

import pytest

from benchmarker.comparison.gate import check
from benchmarker.comparison.ranking import ranking_of
from benchmarker.core.stats import Ratio, paired_ratio, rounds_to_decide
from benchmarker.core.tables import unmarked
from benchmarker.report.answer import answer, round_s
from benchmarker.report.caveats import caption
from benchmarker.report.columns import OPEN_NOTE, first_table
from benchmarker.report.compare import sheets
from tests.records import cell, compare_records, record, rounds, sample


def test_references_are_same_engine_fp16_and_fastest_fp16():
    ranking = ranking_of(
        compare_records(
            [
                record("fp16", cell([2.0]), name="fp16 eager"),
                record("fp16", cell([0.5]), name="fp16 compile", runtime="compile"),
                record("int8", cell([4.0]), name="int8 eager"),
                record("int8", cell([0.25]), name="int8 compile", runtime="compile"),
                record("gptq", cell([1.0]), name="gptq graph", runtime="cuda_graph"),
            ]
        )
    )
    references = {row.variant: row.speed_up and row.speed_up.reference for row in ranking.rows}
    assert references == {
        "int8 compile": "fp16 compile",
        "fp16 compile": None,
        "gptq graph": None,
        "fp16 eager": None,
        "int8 eager": "fp16 eager",
    }
    against_named = {row.variant: row.against_named.ratio.value for row in ranking.rows if row.against_named}
    assert against_named == pytest.approx(
        {"int8 compile": 2.0, "gptq graph": 0.5, "fp16 eager": 0.25, "int8 eager": 0.125}
    )


def test_given_baseline_is_the_reference_of_every_variant():
    records = [
        record("fp16", cell([2.0])),
        record("fp16", cell([1.0]), name="compiled", runtime="compile"),
        record("int8", cell([0.5]), runtime="compile", name="int8"),
    ]
    ranking = ranking_of(compare_records(records, baseline="fp16"))
    assert {row.variant: row.speed_up.ratio.value for row in ranking.rows if row.speed_up} == pytest.approx(
        {"compiled": 2.0, "int8": 4.0}
    )


def test_answer_mentions_that_the_whole_call_is_not_faster():
    def records(quant: str, ttft_s: float, tpot_s: float):
        shares = enumerate((1.0, 1.001, 0.999))
        return [
            generated(quant, quant, share * ttft_s, share * tpot_s, round_number=number) for number, share in shares
        ]

    results = compare_records([*records("fp16", 1.0, 0.1), *records("int8", 1.5, 0.05), *records("gptq", 2.5, 0.08)])
    first, *_ = answer(results, ranking_of(results))
    assert unmarked(first) == (
        "int8 is fastest: 20.00 decode tok/s, 2.00x [2.00, 2.00] fp16 (fastest unquantized variant); "
        "next is gptq, 12.50 decode tok/s. A whole call of int8 is not faster than that of fp16."
    )


def test_inconclusive_verdict_with_interval_above_1_has_a_note():
    times = {"fp16": [1.0, 1.0, 1.0], "int8": [0.95, 0.96, 0.93], "gptq": [0.5, 0.9, 1.4], "bnb4": [0.7, 0.9, 1.3]}
    rows = [row for quant, values in times.items() for row in rounds(quant, values)]
    sheet = first_table(ranking_of(compare_records(rows)))
    [column] = [column for column in sheet.columns if column.heading == "speed-up"]
    assert [column.text(row) for row in sheet.rows if row.variant == "int8"] == ["1.06x [1.01, 1.10] inconclusive"]
    assert OPEN_NOTE in sheet.notes
    assert OPEN_NOTE not in first_table(ranking_of(compare_records(rows[:6]))).notes


def generated(quant: str, name: str, ttft_s: float, tpot_s: float, **fields: object):
    """Return a record of calls with one prefill and 10 decode steps."""
    timed = sample(ttft_s + 10 * tpot_s, new_tokens=11, ttft_s=ttft_s)
    return record(quant, cell(samples=(timed, timed), new_tokens=11), name=name, **fields)


SLOW_PREFILL = [
    generated("fp16", "fp16", 1.0, 0.4),  # 2.5 tok/s, 5 s a call
    generated("int8", "int8", 5.0, 0.1),  # 10 tok/s, 6 s a call
    generated("fp16", "fp16 compile", 1.0, 0.2, runtime="compile"),  # 5 tok/s, 3 s a call
    generated("int8", "int8 compile", 2.0, 0.05, runtime="compile"),  # 20 tok/s, 2.5 s a call
    generated("gptq", "gptq graph", 1.0, 0.1, runtime="cuda_graph"),  # 10 tok/s, 2 s a call
]


def test_speed_up_is_the_ratio_of_decode_rates():
    rows = {row.variant: row for row in compare_records(SLOW_PREFILL).rows}
    speed_ups = {name: row.speed_up and row.speed_up.ratio.value for name, row in rows.items()}
    assert speed_ups == {
        "fp16": None,
        "int8": pytest.approx(4.0),
        "fp16 compile": None,
        "int8 compile": pytest.approx(4.0),
        "gptq graph": None,
    }
    against_fastest = {name: row.against_named and row.against_named.ratio.value for name, row in rows.items()}
    assert against_fastest == {
        "fp16": pytest.approx(0.5),
        "int8": pytest.approx(2.0),
        "fp16 compile": None,
        "int8 compile": pytest.approx(4.0),
        "gptq graph": pytest.approx(2.0),
    }
    calls = {name: row.call and row.call.ratio.value for name, row in rows.items()}
    assert calls == {
        "fp16": None,
        "int8": pytest.approx(5 / 6),
        "fp16 compile": pytest.approx(5 / 3),
        "int8 compile": pytest.approx(2.0),
        "gptq graph": pytest.approx(2.5),
    }


def test_all_tables_show_the_same_speed_up():
    comparison = compare_records(SLOW_PREFILL)
    for table in (first_table(ranking_of(comparison)), sheets(comparison)[0]):
        columns = {column.heading: column for column in table.columns}
        texts = {row.variant: columns["speed-up"].text(row) for row in table.rows}
        assert texts == {
            "fp16": "baseline",
            "int8": "4.00x",
            "fp16 compile": "baseline",
            "int8 compile": "4.00x",
            "gptq graph": "–",
        }
        assert columns["vs fp16 compile"].text(next(row for row in table.rows if row.variant == "int8")) == "2.00x"
    whole_call = next(column for column in sheets(comparison)[0].columns if column.heading == "whole call vs fp16")
    assert whole_call.text(next(row for row in comparison.rows if row.variant == "int8")) == "0.83x"


def test_note_names_the_columns_without_intervals():
    steady, few = [1.0, 1.01, 0.99], [1.0, 1.01]
    compiled = {"name": "fp16 compile", "runtime": "compile"}
    comparison = compare_records([*rounds("fp16", few), *rounds("int8", steady), *rounds("fp16", steady, **compiled)])
    table = first_table(ranking_of(comparison))
    column = next(column for column in table.columns if column.heading == "vs fp16 compile")
    texts = {row.variant: column.text(row) for row in table.rows}
    assert texts == {"fp16": "1.00x", "int8": "1.00x", "fp16 compile": "1"}
    assert "--all: the intervals of 'vs fp16 compile'." in table.notes
    single = compare_records([*rounds("fp16", [1.0]), *rounds("fp16", [1.0], **compiled)])
    assert not any(note.startswith("--all") for note in first_table(ranking_of(single)).notes)
    assert "A ratio without an interval is not tested: 2 rounds cannot separate" in caption(comparison)


def test_given_baseline_is_the_only_reference():
    comparison = compare_records(SLOW_PREFILL, baseline="int8")
    ratios = {row.variant: row.speed_up.ratio.value for row in comparison.rows if row.speed_up}
    assert ratios == pytest.approx({"fp16": 0.25, "fp16 compile": 0.5, "int8 compile": 2.0, "gptq graph": 1.0})
    assert not any(column.heading.startswith("vs ") for column in first_table(ranking_of(comparison)).columns)


def test_gate_compares_decode_rates():
    slower_prefill = [generated("fp16", "fp16", 2.0, 0.4, round_number=number) for number in range(3)]
    before = [generated("fp16", "fp16", 1.0, 0.4, round_number=number) for number in range(3)]
    gate = check(compare_records(before), compare_records(slower_prefill), limit="slower:5%")
    assert (gate.changes[0].ratio.value, gate.is_failed) == (pytest.approx(1.0), False)


def test_one_new_token_is_ranked_by_the_whole_call():
    ranking = ranking_of(compare_records([record("fp16", cell([2.0], new_tokens=1))]))
    assert ranking.rows[0].ranking.name == "tok/s"
    assert ranking.rows[0].pace.value == 0.5


def test_rounds_to_decide_follow_from_the_spread():
    assert rounds_to_decide(Ratio(1.3, rounds=1)) == 2
    # The mean log ratio is 3 % and its deviation 2 %: t(4, 0.975) * 0.02 / sqrt(5) is 2.5 %.
    spread = Ratio(math.exp(0.03), rounds=3, low=0.9, high=1.2, standard_error=0.02 / math.sqrt(3), freedom=2)
    assert rounds_to_decide(spread) == 2
    same = Ratio(1.0, rounds=3, low=0.9, high=1.1, standard_error=0.5 / math.sqrt(3), freedom=2)
    assert rounds_to_decide(same) is None


def test_decided_pair_needs_one_round():
    ratio = paired_ratio({0: 1.0, 1: 1.01, 2: 0.99}, {0: 0.5, 1: 0.52, 2: 0.49})
    assert rounds_to_decide(ratio) == 1


def test_round_time_is_the_median_process_interval_times_the_variants():
    times = ("10:00:00", "10:01:00", "10:02:00", "13:00:00")
    records = [
        record(("fp16", "int8")[index % 2], started_at=f"2026-03-01T{time}+00:00", sweep="one", run_id=str(index))
        for index, time in enumerate(times)
    ]
    assert round_s(records) == 120.0
    assert round_s(records[:1]) is None
