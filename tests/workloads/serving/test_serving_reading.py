"""Loads of a server with a simulated clock and planted times are compared and reported."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from benchmarker.comparison.crossing import SizeWords, crossover
from benchmarker.comparison.results import to_rows
from benchmarker.comparison.speed_up import SpeedUp
from benchmarker.core import tables
from benchmarker.core.console import Terminal
from benchmarker.core.errors import ResultsError, SpecError
from benchmarker.core.stats import Ratio
from benchmarker.report.compare import compare, to_markdown
from benchmarker.report.run_summary import run_blocks
from benchmarker.report.verify import verify
from benchmarker.schema.model import ModelFacts
from benchmarker.schema.record_io import read_record
from benchmarker.sweep import find_limit
from benchmarker.workloads.serving.reading.serving_bounds import bound_of, explained
from benchmarker.workloads.serving.reading.serving_tables import header
from benchmarker.workloads.serving.record import ServerCounters, ServerFacts, ServingRecord, ServingVariantFacts
from benchmarker.workloads.serving.serving_statistics import merged_share
from benchmarker.workloads.serving.spec import requests_of
from tests.jobs import read_job
from tests.records import compare_records
from tests.workloads.serving.simulated_server import (
    NEW_TOKENS,
    SimulatedServer,
    cell_of_load,
    measured,
    save,
    serving_record,
)

FAST = SimulatedServer(prefill_s=0.1, step_s=0.02)


def rows_of(*records):
    return {(row["variant"], row["concurrency"], row["rate"]): row for row in to_rows(compare_records(records))}


def test_metrics_equal_the_planted_times():
    row = rows_of(measured("fp16", FAST, concurrencies=[4]))["fp16", 4, 0.0]
    request_s = 0.1 + (NEW_TOKENS - 1) * 0.02
    assert row["ttft_s"] == row["ttft_p99_s"] == pytest.approx(0.1)
    assert row["tpot_s"] == row["tpot_p99_s"] == pytest.approx(0.02)
    assert row["itl_s"] == row["itl_p99_s"] == pytest.approx(0.02)
    assert row["e2el_s"] == row["e2el_p90_s"] == pytest.approx(request_s)
    # 200 requests at concurrency 4 take 50 turns.
    assert row["output_tokens_per_s"] == pytest.approx(4 * NEW_TOKENS / request_s)
    assert row["user_tokens_per_s"] == pytest.approx(50)
    assert row["request_throughput_per_s"] == row["goodput_per_s"] == pytest.approx(4 / request_s)
    assert (row["good_requests"], row["requests"], row["slo_verdict"]) == (200, 200, "passes")


def test_goodput_is_averaged_over_rounds_like_the_request_rate():
    servers = (FAST, SimulatedServer(prefill_s=0.2, step_s=0.028))
    rounds = [measured("fp16", server, concurrencies=[4], round_number=number) for number, server in enumerate(servers)]
    row = rows_of(*rounds)["fp16", 4, 0.0]
    assert row["good_requests"] == row["requests"]
    assert row["goodput_per_s"] == pytest.approx(row["request_throughput_per_s"])


def test_fewer_than_200_requests_have_no_p99():
    row = rows_of(measured("fp16", FAST, concurrencies=[4], requests=199))["fp16", 4, 0.0]
    assert (row["ttft_p99_s"], row["itl_p99_s"]) == (None, None)
    assert row["ttft_p90_s"] == pytest.approx(0.1)


def test_server_that_is_five_percent_slower_has_the_verdict_slower():
    records = []
    for number in range(5):
        noise = 1 + 0.005 * (number % 3)
        for name, slowness in (("fp16", noise), ("fp16 twin", 1.05 * noise * (1 + 0.002 * (number % 2)))):
            server = replace(FAST, slowness=slowness)
            records.append(measured(name, server, concurrencies=[16], rates=[2.0], round_number=number))
    rows = rows_of(*records)
    assert rows["fp16 twin", 16, 0.0]["verdict"] == "slower"
    assert rows["fp16 twin", 16, 0.0]["ratio"] == pytest.approx(1 / 1.05, rel=0.01)
    # At a rate below the limit both have equal throughput, and a request of the twin takes longer.
    assert rows["fp16 twin", 0, 2.0]["verdict"] == "same"
    assert rows["fp16 twin", 0, 2.0]["call_ratio"] == pytest.approx(1 / 1.05, rel=0.01)


def test_largest_load_within_the_slo_is_reported_with_the_next_load():
    slow = SimulatedServer(0.2, 0.02, per_request=0.01)
    text = to_markdown(compare_records([measured("fp16", slow, concurrencies=[1, 16, 64, 128], rates=[1.0])]))
    # At 64 at once a step takes 20 * 1.63 = 32.6 ms.
    assert "Requests at once within TTFT 500 ms and TPOT 30 ms: fp16 16 (at 64: 0 % [0, 1] good)." in text
    assert "Requests per second within TTFT 500 ms and TPOT 30 ms: fp16 1 or more." in text


@pytest.mark.parametrize(
    ("late", "expected"),
    [
        (5, "fp16 4 or more"),
        (20, "fp16 at 4 undecided: 90 % [85, 93] good"),
        (60, "fp16 none (at 4: 70 % [63, 76] good)"),
    ],
)
def test_load_near_the_limit_is_undecided(late, expected):
    load = FAST.load(concurrency=4)
    late_s = tuple(0.6 if number < late else first_s for number, first_s in enumerate(load.ttft_s))
    load = load.model_copy(update={"ttft_s": late_s})
    text = to_markdown(compare_records([serving_record("fp16", [cell_of_load(load, concurrency=4)])]))
    assert f"Requests at once within TTFT 500 ms and TPOT 30 ms: {expected}." in text


def test_crossover_is_the_concurrency_of_equal_throughput():
    records = []
    for number in range(3):
        slowness = 1 + 0.001 * number
        for name, server in {
            "fp16": SimulatedServer(0.1, 0.010, 0.0),
            "gptq": SimulatedServer(0.1, 0.005, 0.02),
        }.items():
            server = replace(server, slowness=slowness)
            records.append(measured(name, server, concurrencies=[1, 4, 16, 64, 256], round_number=number))
    text = to_markdown(compare_records(records))
    assert "gptq is faster than fp16 below 39 [39, 39] requests at once." in text


def test_loads_with_failed_or_truncated_requests_have_no_speed():
    load = FAST.load(concurrency=4)
    failed = load.model_copy(update={"errors": ("HTTP 500: out of memory", *load.errors[1:])})
    short = load.model_copy(update={"output_tokens": (3, *load.output_tokens[1:])})
    rows = rows_of(
        serving_record("fp16", [cell_of_load(load, concurrency=4)]),
        serving_record("gptq", [cell_of_load(failed, concurrency=4)]),
        serving_record("awq", [cell_of_load(short, concurrency=4)]),
    )
    assert rows["gptq", 4, 0.0]["output_tokens_per_s"] is None
    assert (rows["gptq", 4, 0.0]["status"], rows["gptq", 4, 0.0]["failed_requests"]) == ("error", 1)
    assert (rows["awq", 4, 0.0]["status"], rows["awq", 4, 0.0]["truncated_requests"]) == ("invalid", 1)
    assert {rows[name, 4, 0.0]["slo_verdict"] for name in ("gptq", "awq")} == {"fails"}


def test_disturbed_load_has_no_verdict():
    disturbed = {"status": "invalid", "error_kind": "disturbed", "reason": "other programs took 40 % of our cores"}
    cell = cell_of_load(FAST.load(concurrency=4), concurrency=4).model_copy(update=disturbed)
    records = [serving_record("fp16", [cell])]
    (row,) = rows_of(*records).values()
    assert (row["slo_verdict"], row["output_tokens_per_s"]) == (None, None)
    text = to_markdown(compare_records(records))
    assert "Requests at once within TTFT 500 ms and TPOT 30 ms: fp16 unknown (at 4: invalid)." in text
    assert "fails" not in text


def test_disturbed_try_does_not_count_among_good_requests():
    cell = cell_of_load(FAST.load(concurrency=4), concurrency=4)
    slow_s = tuple(9.0 for _ in cell.samples[0].ttft_s)
    slow = cell.samples[0].model_copy(update={"ttft_s": slow_s})
    merged = {"status": "invalid", "error_kind": "merged_tokens", "reason": "merged", "samples": (slow,)}
    (row,) = rows_of(serving_record("fp16", [cell.model_copy(update=merged)]), serving_record("fp16", [cell])).values()
    assert (row["good_requests"], row["requests"], row["slo_verdict"]) == (200, 200, "passes")


def test_open_loop_with_a_growing_queue_is_reported():
    full = SimulatedServer(0.1, 0.02, slots=4)
    text = to_markdown(compare_records([measured("fp16", full, rates=[8.0])]))
    assert "fp16 at 8 requests/s: 80 % of the requests were unfinished when the last one arrived" in text


def test_start_is_the_median_of_the_rounds_and_uneven_starts_are_listed():
    records = [
        measured("fp16", FAST, concurrencies=[4], round_number=number).model_copy(
            update={"server": ServerFacts(start_s=start_s)}
        )
        for number, start_s in enumerate((159.0, 36.0, 35.0))
    ]
    (row,) = rows_of(*records).values()
    assert row["start_s"] == 36.0
    text = to_markdown(compare_records(records))
    assert "of which start s is the median: fp16 35 to 159 s. The first start on a host may compile the model." in text
    assert "of which start s" not in to_markdown(compare_records(records[1:]))


def test_tokens_that_arrive_together_are_reported():
    load = FAST.load(concurrency=4)
    assert merged_share(load) == 0
    merged = load.model_copy(update={"itl_steps": (0, 200), "itl_counts": (5_080, 20_320)})
    assert merged_share(merged) == pytest.approx(0.2)
    text = to_markdown(compare_records([serving_record("fp16", [cell_of_load(merged, concurrency=4)])]))
    assert "lacked processor cores: fp16 at 512 prompt tokens, 128 new tokens, 4 at once (20 %)." in text
    mostly_merged = load.model_copy(update={"itl_steps": (0, 200), "itl_counts": (20_320, 5_080)})
    cell = cell_of_load(mostly_merged, concurrency=4)
    assert (cell.status, cell.error_kind) == ("invalid", "merged_tokens")
    assert cell.reason.startswith("80 % of the tokens arrived together with the token before")


def test_verify_detects_a_changed_load(tmp_path):
    path = next(save(tmp_path, measured("fp16", FAST, concurrencies=[4])).iterdir())
    assert verify([tmp_path]).is_right
    text = path.read_text()
    for array, value, field in (
        ("ttft_s", 0.101, "parts_s"),
        ("request_s", 2.641, "latency_s"),
        ("itl_counts", 20_000, "sum of inter-token latencies"),
    ):
        content = json.loads(text)
        load = content["cells"][0]["samples"][0]
        load[array][0] = value
        path.write_text(json.dumps(content))
        assert [check.field for check in verify([tmp_path]).mismatches] == [field]


def test_verify_detects_a_hidden_failed_request(tmp_path):
    path = next(save(tmp_path, measured("fp16", FAST, concurrencies=[4])).iterdir())
    content = json.loads(path.read_text())
    content["cells"][0]["samples"][0]["errors"][7] = "HTTP 500"
    path.write_text(json.dumps(content))
    assert "loads without a speed" in [check.field for check in verify([tmp_path]).mismatches]


def test_exact_crossing_is_not_rounded_down():
    speed_ups = {size: SpeedUp("b", Ratio(ratio, 3), "not tested") for size, ratio in ((4, 1.2), (8, 1.0))}
    words = SizeWords("a is faster than b", "concurrency", "", " at once", speed_ups)
    fall = crossover(words.ratios)
    assert fall is not None
    exact = replace(fall, size=7.9999999999, low=6.0000000001, high=8.5, has_interval=True)
    assert words.size(exact, math.floor) == ("8", " [6, 8]")
    assert words.size(fall, math.floor)[0] == "8"


def test_loads_with_different_requests_are_separate(tmp_path):
    plain = cell_of_load(FAST.load(concurrency=4), concurrency=4)
    chat = plain.model_copy(update={"prompt_tokens": 0, "dataset": "chat.jsonl (1234ab)"})
    spread = plain.model_copy(update={"length_spread": 0.3, "shared_prefix": 1024})
    records = [serving_record("fp16", [plain, chat, spread]), serving_record("gptq", [plain])]
    text = to_markdown(compare_records(records))
    assert "(512 prompt tokens, 128 new tokens): fp16 4 or more; gptq 4 or more." in text
    assert "(128 new tokens, chat.jsonl (1234ab)): fp16 4 or more." in text
    assert "(512 prompt tokens, 128 new tokens, lengths ±30 %, 1024 shared tokens): fp16 4 or more." in text


def test_record_of_1000_requests_is_smaller_than_100_kb(tmp_path):
    path = next(save(tmp_path, measured("fp16", FAST, concurrencies=[16], requests=1000)).iterdir())
    assert path.stat().st_size < 100_000
    assert isinstance(read_record(path), ServingRecord)
    assert compare([tmp_path]).rows[0].runs == 1


@pytest.mark.parametrize(
    ("counters", "bound"),
    [
        ({"queued_s": 6, "prefill_s": 1, "decode_s": 3}, "queue"),
        ({"queued_s": 6, "prefill_s": 1, "decode_s": 3, "peak_kv_share": 1.0}, "KV capacity"),
        ({"queued_s": 0, "prefill_s": 1, "decode_s": 9, "preemptions": 2}, "KV capacity"),
        ({"queued_s": 0, "prefill_s": 6, "decode_s": 4}, "prefill"),
        ({"queued_s": 0, "prefill_s": 1, "decode_s": 9}, "decode"),
        ({"queued_s": 3, "prefill_s": 3, "decode_s": 4}, None),
        ({"queued_share": 0.8}, "queue"),
        ({"queued_share": 0.2}, None),
        ({}, None),
    ],
)
def test_bottleneck_follows_from_the_counters(counters, bound):
    load = FAST.load(concurrency=4).model_copy(update={"counters": ServerCounters(**counters)})
    assert bound_of([load]) == bound


def test_charts_have_a_line_for_each_variant(tmp_path):
    from benchmarker.report.charts.style import to_svg
    from benchmarker.workloads.serving.reading.serving_charts import charts_of

    records = [measured(name, FAST, concurrencies=[1, 16], rates=[1.0, 2.0]) for name in ("fp16", "gptq")]
    charts = charts_of(compare_records(records))
    assert [chart.name for chart in charts] == ["interactivity", "ttft-rate", "speed"]
    assert all(name in to_svg(charts[0]) for name in ("fp16", "gptq"))


def test_charts_leave_out_values_that_the_tables_call_wide():
    from benchmarker.workloads.serving.reading.serving_charts import _points

    (row,) = compare_records([measured("fp16", FAST, concurrencies=[4])]).rows
    assert len(_points([row])) == 1
    wide = replace(row.metrics["user_tokens"], low=10.0, high=50.0)
    assert _points([replace(row, metrics={**row.metrics, "user_tokens": wide})]) == []


def test_largest_concurrency_within_the_slo_is_found_by_bisection(tmp_path, monkeypatch):
    # A step takes 10 ms, and 0.495 ms more for each further request in the server: 29.8 ms with 41.
    server = SimulatedServer(0.1, 0.010, per_request=0.0495)

    def measured_load(job, path):
        return measured("fp16", server, concurrencies=[job.points()[0].concurrency])

    monkeypatch.setattr(find_limit, "_measured", measured_load)
    job = read_job(["serving", "--quant", "fp16", "--model", "qwen3-small", "--concurrency", "4"])
    limit = find_limit.find_limit(job, "concurrency", Terminal(quiet=True), folder=tmp_path)
    assert limit.words == (
        "41 requests at once within TTFT 500 ms and TPOT 30 ms; at 42: 0 % [0, 2] of 200 requests are good"
    )


def test_largest_rate_within_the_slo_is_found_by_bisection(tmp_path, monkeypatch):
    # 5 slots, each for 0.1 s + 127 * 2.5 ms: at most 12 requests a second.
    server = SimulatedServer(0.1, 0.0025, slots=5)

    def measured_load(job, path):
        (point,) = job.points()
        return measured("fp16", server, rates=[point.rate], requests=requests_of(point, job.procedure.requests))

    monkeypatch.setattr(find_limit, "_measured", measured_load)
    job = read_job(["serving", "--quant", "fp16", "--model", "qwen3-small", "--rate", "0.5"])
    limit = find_limit.find_limit(job, "rate", Terminal(quiet=True), folder=tmp_path)
    assert [trial.value for trial in limit.trials] == [0.5, 1, 2, 4, 8, 16, 12, 10, 11, 11.5, 11.25, 11.375, 11.4375]
    assert limit.words == (
        "11.4375 requests per second within TTFT 500 ms and TPOT 30 ms; at 11.5: undecided: 93 % [90, 96] of 230 "
        "requests are good"
    )


def test_rate_with_many_unfinished_requests_is_undecided():
    record = measured("fp16", SimulatedServer(0.1, 0.02), rates=[50.0])
    assert record.why_unfit == "undecided: 57 % of the requests were unfinished when the last one arrived"


def test_search_for_a_limit_requires_an_initial_value(tmp_path):
    job = read_job(["serving", "--quant", "fp16", "--model", "qwen3-small", "--concurrency", "4"])
    with pytest.raises(SpecError, match="--find-limit rate: give --rate alone, the first value of the search"):
        find_limit.find_limit(job, "rate", Terminal(quiet=True), folder=tmp_path)


def test_run_summary_contains_each_load_and_the_largest_within_the_slo():
    comparison = compare_records([measured("fp16", FAST, concurrencies=[1, 4], rates=[2.0])])
    text = tables.to_markdown(run_blocks(comparison))
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if " 512 |" in line]
    assert [row[2] for row in rows] == ["1", "4", "2/s"]
    cells = "512, 128, 1, 48.48, 50.00, 100.0, 100.0, 20.00, 20.00, 100 passes, decode"
    assert rows[0] == cells.split(", ")
    assert "Requests at once within TTFT 500 ms and TPOT 30 ms: fp16 4 or more." in text


@pytest.mark.parametrize(("field", "value"), [("slo", "ttft"), ("slo", ""), ("requests", "x"), ("requests", -1)])
def test_record_with_an_invalid_procedure_is_refused(tmp_path, field, value):
    path = next(save(tmp_path, measured("fp16", FAST, concurrencies=[4])).iterdir())
    content = json.loads(path.read_text())
    content["procedure"][field] = value
    path.write_text(json.dumps(content))
    with pytest.raises(ResultsError, match=r"no limit|number of requests"):
        read_record(path)


def test_checkpoints_and_running_servers_compare_with_the_model():
    model = {"id": "Qwen/Qwen3-4B", "config_sha256": "ab" * 32}
    cells = [cell_of_load(FAST.load(concurrency=4), concurrency=4)]
    running = ServingVariantFacts(name="mine", quant="auto", engine="vllm", url="http://127.0.0.1:8000")
    records = [
        serving_record("fp16", cells, model=ModelFacts(**model, revision="1" * 40)),
        serving_record("w4a16", cells, model=ModelFacts(**model, revision="2" * 40, checkpoint="B/Qwen3-4B-W4A16")),
        serving_record("mine", cells, model=ModelFacts(id="Qwen/Qwen3-4B")).model_copy(update={"variant": running}),
    ]
    text = to_markdown(compare_records(records))
    assert "mine: a server that was already running; its quantization is not checked." in text
    assert {row["ratio"] for row in to_rows(compare_records(records))} == {1.0}


def test_two_running_servers_have_a_speed_up():
    records = []
    for number in range(3):
        for name, slowness in (("mine", 1.0), ("other", 1.2)):
            facts = ServingVariantFacts(name=name, quant="auto", engine="vllm", url="http://127.0.0.1:8000")
            server = replace(FAST, slowness=slowness * (1 + 0.001 * number))
            record = measured(name, server, concurrencies=[4], round_number=number)
            records.append(record.model_copy(update={"variant": facts}))
    assert rows_of(*records)["other", 4, 0.0]["verdict"] == "slower"


def test_variant_with_only_disturbed_loads_has_that_reason():
    cell = cell_of_load(FAST.load(concurrency=4), concurrency=4)
    disturbed = cell.model_copy(update={"status": "invalid", "reason": "other programs took 40 % of the time"})
    explanation = explained("fp16", [serving_record("fp16", [disturbed])])
    assert explanation.why == "other programs took 40 % of the time"


@pytest.mark.parametrize(
    ("counters", "why"),
    [
        ({"queued_share": 0.2}, "no phase that the server counts takes most of the time (queue 20 %)"),
        ({}, "the server has no counters of its queue"),
    ],
)
def test_load_without_a_bottleneck_has_the_shares_that_are_known(counters, why):
    load = FAST.load(concurrency=4).model_copy(update={"counters": ServerCounters(**counters)})
    assert explained("fp16", [serving_record("fp16", [cell_of_load(load, concurrency=4)])]).why == why


def test_header_omits_servers_that_did_not_start():
    ready = measured("fp16", FAST, concurrencies=[4])
    ended = ready.model_copy(update={"server": None, "cells": (), "round": 1})
    assert "servers: vllm 0.24.0, 200" in " ".join(header([ready, ended]))
