"""What the first table rests on: who is held against whom, and what more rounds would tell."""

from __future__ import annotations

import math

import pytest

from benchmarker.comparison.duration import round_s
from benchmarker.comparison.ranking import ranking_of
from benchmarker.core.stats import Ratio, paired_ratio, rounds_to_tell
from benchmarker.report.compare import compare_records
from tests.records import cell, record


def test_a_form_is_held_against_the_unquantized_one_in_its_own_engine_and_against_the_fastest():
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
    beside = {ranked.row.variant: ranked.beside and ranked.beside.row.variant for ranked in ranking.rows}
    assert beside == {
        "int8 compile": "fp16 compile",
        "fp16 compile": None,
        "gptq graph": None,
        "fp16 eager": None,
        "int8 eager": "fp16 eager",
    }
    overall = {ranked.row.variant: ranked.overall.ratio.value for ranked in ranking.rows if ranked.overall}
    assert overall == pytest.approx({"int8 compile": 2.0, "gptq graph": 0.5, "fp16 eager": 0.25, "int8 eager": 0.125})


def test_a_baseline_that_was_asked_for_is_what_all_are_held_against():
    records = [
        record("fp16", cell([2.0])),
        record("fp16", cell([1.0]), name="compiled", runtime="compile"),
        record("int8", cell([0.5]), runtime="compile", name="int8"),
    ]
    ranking = ranking_of(compare_records(records, baseline="fp16"))
    assert {ranked.row.variant: ranked.beside.ratio.value for ranked in ranking.rows if ranked.beside} == pytest.approx(
        {"compiled": 2.0, "int8": 4.0}
    )


def test_a_cell_of_one_new_token_is_ranked_by_the_whole_call():
    ranking = ranking_of(compare_records([record("fp16", cell([2.0], new_tokens=1))]))
    assert ranking.rows[0].row.ranking.name == "tok/s"
    assert ranking.rows[0].row.pace.value == 0.5


def test_more_rounds_are_as_many_as_the_spread_asks_for():
    assert rounds_to_tell(Ratio(1.3, rounds=1)) == 2
    # Logarithms that differ by 3 % on average and spread by 2 %: t(4, 0.975) * 0.02 / sqrt(5) is 2.5 %.
    spread = Ratio(math.exp(0.03), rounds=3, low=0.9, high=1.2, standard_error=0.02 / math.sqrt(3), freedom=2)
    assert rounds_to_tell(spread) == 2
    same = Ratio(1.0, rounds=3, low=0.9, high=1.1, standard_error=0.5 / math.sqrt(3), freedom=2)
    assert rounds_to_tell(same) is None


def test_a_decided_pair_would_have_been_decided_by_as_many_rounds():
    ratio = paired_ratio({0: 1.0, 1: 1.01, 2: 0.99}, {0: 0.5, 1: 0.52, 2: 0.49})
    assert rounds_to_tell(ratio) == 1


def test_a_round_takes_the_median_time_between_two_processes_times_the_variants():
    times = ("10:00:00", "10:01:00", "10:02:00", "13:00:00")
    records = [
        record(("fp16", "int8")[index % 2], started_at=f"2026-03-01T{time}+00:00", sweep="one", run_id=str(index))
        for index, time in enumerate(times)
    ]
    assert round_s(records) == 120.0
    assert round_s(records[:1]) is None
