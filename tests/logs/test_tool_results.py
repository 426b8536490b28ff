"""Result files of other benchmarks are read; the data has the structure that the tools' sources write."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarker.cli.app import app
from benchmarker.core.errors import ResultsError
from benchmarker.logs.tool_results import ToolRow, read_tool_results

LLAMA = {
    "build_commit": "8cf427ff", "cpu_info": "a CPU", "gpu_info": "NVIDIA GeForce RTX 4080", "backends": "CUDA",
    "model_filename": "models/Qwen2.5-7B-Instruct-Q4_K_M.gguf", "model_size": 4677120000, "n_gpu_layers": -1,
    "n_depth": 0, "avg_ts": 118.9,
}  # fmt: skip
PROMPT = {**LLAMA, "n_prompt": 512, "n_gen": 0, "samples_ns": [74_000_000, 72_000_000, 71_000_000]}
DECODE = {**LLAMA, "n_prompt": 0, "n_gen": 128, "samples_ns": [1_280_000_000, 1_270_000_000, 1_290_000_000]}
BOTH = {**LLAMA, "n_prompt": 512, "n_gen": 128, "samples_ns": [1_400_000_000]}

SERVE = {
    "date": "20261101-120000", "backend": "vllm", "model_id": "Qwen/Qwen3-4B", "num_prompts": 4, "max_concurrency": 2,
    "duration": 8.0, "completed": 4, "failed": 1, "total_input_tokens": 2048, "total_output_tokens": 512,
    "request_throughput": 0.5, "output_throughput": 64.0, "total_token_throughput": 320.0,
    "mean_ttft_ms": 31.0, "median_ttft_ms": 30.0, "mean_tpot_ms": 8.2, "median_tpot_ms": 8.0,
}  # fmt: skip
LATENCY = {"avg_latency": 1.1, "latencies": [1.0, 1.3, 1.0], "percentiles": {"50": 1.0}}
THROUGHPUT = {"elapsed_time": 10.0, "num_requests": 100, "total_num_tokens": 50000, "tokens_per_second": 5000.0}


def summary(median: float, count: int = 3) -> dict[str, Any]:
    spread = {"mean": median + 1, "median": median, "std_dev": 0.1, "count": count, "total_sum": 3 * median}
    return {"successful": spread, "errored": None, "incomplete": None, "total": spread}


GUIDELLM = {
    "metadata": {"version": 2, "guidellm_version": "0.8.1", "python_version": "3.12.1", "platform": "Linux"},
    "benchmarks": [{"type_": "generative_benchmark", "metrics": {
        "request_totals": {"successful": 3, "errored": 1, "incomplete": 0, "total": 4},
        "request_concurrency": summary(1.0), "request_latency": summary(2.5), "prompt_token_count": summary(255.0),
        "output_token_count": summary(127.0), "time_to_first_token_ms": summary(40.0),
        "inter_token_latency_ms": summary(9.5), "output_tokens_per_second": summary(0.0, count=0),
    }}],
}  # fmt: skip


def rows_of_json(folder: Path, content: object) -> tuple[ToolRow, ...]:
    return rows_of_text(folder, "results.json", json.dumps(content))


def rows_of_text(folder: Path, name: str, text: str) -> tuple[ToolRow, ...]:
    path = folder / name
    path.write_text(text)
    result = read_tool_results(path)
    assert result is not None
    return result


def test_llama_bench_model_name_contains_the_quantization(tmp_path):
    (named,) = rows_of_json(tmp_path, [{**PROMPT, "model_filename": "a/model.gguf", "model_type": "qwen3 4B Q8_0"}])
    assert named.model == "model.gguf (qwen3 4B Q8_0)"


def test_llama_bench_prompt_decode_and_combined_times_are_separate(tmp_path):
    prompt, decode, both = rows_of_json(tmp_path, [PROMPT, DECODE, BOTH])
    assert (prompt.prefill_s, prompt.ttft_s, prompt.tpot_s) == (0.072, None, None)
    assert (decode.tpot_s, decode.output_tokens_per_s) == (0.01, pytest.approx(100.0))
    assert (both.latency_s, both.tpot_s, both.output_tokens_per_s) == (1.4, None, None)
    assert decode.model == "Qwen2.5-7B-Instruct-Q4_K_M.gguf"
    assert decode.repeats == 3


def test_llama_bench_is_read_in_every_output_format(tmp_path):
    expected = rows_of_json(tmp_path, [PROMPT, DECODE])
    noise = "ggml_cuda_init: found 1 ROCm devices:\n  Device 0: a GPU\n"
    lines = "\n".join(map(json.dumps, (PROMPT, DECODE)))
    assert rows_of_text(tmp_path, "results.jsonl", noise + lines) == expected
    assert rows_of_text(tmp_path, "results.log", noise + lines) == expected
    assert rows_of_text(tmp_path, "results.txt", noise + json.dumps([PROMPT, DECODE], indent=2)) == expected


def test_llama_bench_without_samples_uses_the_average(tmp_path):
    averages = [{**LLAMA, "n_prompt": 0, "n_gen": 128, "avg_ns": 1_280_000_000}, {**LLAMA, "n_prompt": 512, "n_gen": 0}]
    decode, prompt = rows_of_json(tmp_path, averages)
    assert (decode.tpot_s, decode.repeats) == (0.01, None)
    assert prompt.prefill_s == pytest.approx(512 / 118.9)
    names = ["build_commit", "model_filename", "model_type", "n_prompt", "n_gen", "n_depth", "avg_ns", "avg_ts"]
    csv = f"{','.join(names)}\n" + '"8cf427ff","a/b.gguf","qwen3 4B","0","128","512","1280000000","100.0"\n'
    (row,) = rows_of_text(tmp_path, "results.csv", csv)
    assert (row.tpot_s, row.depth, row.model) == (0.01, 512, "b.gguf (qwen3 4B)")


def test_llama_bench_markdown_is_read(tmp_path):
    text = """
| model                          |       size |     params | backend    | ngl |            test |                  t/s |
| ------------------------------ | ---------: | ---------: | ---------- | --: | --------------: | -------------------: |
| llama 1B Q4_K - Medium         | 762.81 MiB |     1.24 B | CUDA       |  99 |           pp512 |      5120.00 ± 12.30 |
| llama 1B Q4_K - Medium         | 762.81 MiB |     1.24 B | CUDA       |  99 |   tg128 @ d4096 |        200.00 ± 0.50 |
| llama 1B Q4_K - Medium         | 762.81 MiB |     1.24 B | CUDA       |  99 |     pp512+tg128 |        640.00 ± 1.00 |

build: 1c1409e1 (6865)
"""
    prompt, decode, both = rows_of_text(tmp_path, "bench.md", text)
    assert (prompt.prefill_s, prompt.prompt_tokens) == (0.1, 512)
    assert (decode.tpot_s, decode.output_tokens_per_s, decode.depth) == (0.005, 200, 4096)
    assert (both.latency_s, both.model) == (1.0, "llama 1B Q4_K - Medium")


SGLANG = {
    "backend": "sglang", "dataset_name": "sharegpt", "max_concurrency": 256, "duration": 204.5, "completed": 1000,
    "total_input_tokens": 302118, "total_output_tokens": 195775, "total_output_tokens_retokenized": 195324,
    "output_throughput": 957.162, "median_e2e_latency_ms": 1537.9, "median_ttft_ms": 76.42, "median_tpot_ms": 11.83,
}  # fmt: skip


@pytest.mark.parametrize("name", ["sglang.json", "sglang.jsonl"])
def test_sglang_serving_results_are_read(tmp_path, name):
    (row,) = rows_of_text(tmp_path, name, json.dumps(SGLANG))
    assert row.concurrency == 256
    (measured,) = rows_of_text(tmp_path, name, json.dumps({**SGLANG, "request_rate": 5.0, "concurrency": 11.78}))
    assert measured.concurrency == 11.78
    assert (row.tool, row.model) == ("sglang.bench_serving", name)
    assert (row.latency_s, row.ttft_s, row.tpot_s) == (1.5379, 0.07642, 0.01183)
    assert (row.output_tokens_per_s, row.failed) == (957.162, None)


def test_results_with_only_failed_requests_have_no_times(tmp_path):
    zeros = dict.fromkeys(("output_throughput", "median_ttft_ms", "median_tpot_ms", "median_e2el_ms"), 0.0)
    tokens = {"total_input_tokens": 0, "total_output_tokens": 0}
    (row,) = rows_of_json(tmp_path, {**SERVE, **zeros, **tokens, "completed": 0, "failed": 8})
    assert (row.ttft_s, row.tpot_s, row.latency_s, row.output_tokens_per_s) == (None, None, None, None)
    assert (row.repeats, row.failed, row.prompt_tokens) == (0, 8, None)


def test_vllm_sweep_has_one_row_per_run_with_its_settings(tmp_path):
    runs = [{**SERVE, "run_number": 0, "max_num_seqs": 16}, {**SERVE, "run_number": 0, "max_num_seqs": 64}]
    assert [row.model for row in rows_of_json(tmp_path, runs)] == [
        "Qwen/Qwen3-4B, max_num_seqs=16",
        "Qwen/Qwen3-4B, max_num_seqs=64",
    ]


BLOCK = """
INFO 08-25 11:02:14 [__init__.py:216] Automatically detected platform cuda.
============ Serving Benchmark Result ============
Successful requests:                     4
Failed requests:                         1
Maximum request concurrency:             2
Benchmark duration (s):                  8.00
Total input tokens:                      2048
Total generated tokens:                  512
Request throughput (req/s):              0.50
Output token throughput (tok/s):         64.00
Total Token throughput (tok/s):          320.00
---------------Time to First Token----------------
Mean TTFT (ms):                          31.00
Median TTFT (ms):                        30.00
-----Time per Output Token (excl. 1st token)------
Median TPOT (ms):                        8.00
==================================================
"""


@pytest.mark.parametrize("prefix", ["", "client-1  | ", "2026-03-01 10:00:00 | INFO | bench:1 - "])
def test_printed_vllm_results_equal_the_saved_file(tmp_path, prefix):
    (row,) = rows_of_text(tmp_path, "serve.log", "\n".join(prefix + line for line in BLOCK.splitlines()))
    (saved,) = rows_of_json(tmp_path, SERVE)
    assert row == replace(saved, model="serve.log")


def test_printed_sglang_results_are_read(tmp_path):
    block = BLOCK.replace("Successful", "Backend:            sglang-oai\nSuccessful")
    block += "Total generated tokens (retokenized):    500\nMedian E2E Latency (ms):                 1500.00\n"
    (row,) = rows_of_text(tmp_path, "serve.log", block)
    assert (row.tool, row.latency_s) == ("sglang.bench_serving", 1.5)


def test_sglang_single_batch_results_are_read(tmp_path):
    in_process = {
        "run_name": "default", "batch_size": 4, "input_len": 1024, "output_len": 9, "prefill_latency": 0.1,
        "prefill_throughput": 40960.0, "median_decode_latency": 0.01, "median_decode_throughput": 400.0,
        "total_latency": 0.18, "overall_throughput": 22955.0,
    }  # fmt: skip
    (row,) = rows_of_text(tmp_path, "result.jsonl", json.dumps(in_process))
    assert (row.ttft_s, row.tpot_s, row.latency_s, row.concurrency) == (0.1, 0.01, 0.18, 4)
    server = {key: value for key, value in in_process.items() if "decode" not in key and "total" not in key}
    del server["prefill_latency"]
    server |= {"latency": 0.18, "last_ttft": 0.1, "output_throughput": 450.0}
    (row,) = rows_of_text(tmp_path, "result.jsonl", json.dumps(server))
    assert (row.tool, row.ttft_s, row.tpot_s) == ("sglang.bench_one_batch_server", 0.1, pytest.approx(0.01))


def test_aiperf_results_are_read(tmp_path):
    (row,) = rows_of_json(
        tmp_path,
        {
            "request_count": {"unit": "requests", "avg": 10.0},
            "request_latency": {"unit": "ms", "avg": 1100.0, "p50": 1000.0},
            "time_to_first_token": {"unit": "ms", "avg": 50.0, "p50": 40.0},
            "inter_token_latency": {"unit": "ms", "avg": 10.0, "p50": 9.0},
            "output_token_throughput": {"unit": "tokens/sec", "avg": 300.0},
            "input_sequence_length": {"unit": "tokens", "avg": 550.0},
            "output_sequence_length": {"unit": "tokens", "avg": 128.0},
            "input_config": {"endpoint": {"model_names": ["Qwen/Qwen3-4B"]}, "loadgen": {"concurrency": 4}},
        },
    )
    assert (row.model, row.ttft_s, row.tpot_s, row.latency_s) == ("Qwen/Qwen3-4B", 0.04, pytest.approx(0.009), 1.0)
    assert (row.concurrency, row.repeats, row.failed, row.output_tokens_per_s) == (4, 10, 0, 300)


def test_optimum_benchmark_is_read_with_and_without_config(tmp_path):
    latency = {"unit": "s", "count": 5, "mean": 0.2, "p50": 0.1, "values": [0.1]}
    report = {
        "prefill": {"latency": latency},
        "decode": {"latency": {**latency, "p50": 0.9}, "throughput": {"unit": "tokens/s", "value": 110.0}},
    }
    scenario = {"input_shapes": {"batch_size": 2, "sequence_length": 256}, "generate_kwargs": {"max_new_tokens": 91}}
    config = {"name": "x", "backend": {"model": "Qwen/Qwen3-4B"}, "scenario": scenario}
    (row,) = rows_of_json(tmp_path, {"config": config, "report": report})
    assert (row.model, row.ttft_s, row.tpot_s, row.latency_s) == ("Qwen/Qwen3-4B", 0.1, pytest.approx(0.01), 1.0)
    assert (row.prompt_tokens, row.new_tokens, row.concurrency, row.repeats) == (256, 91, 2, 5)
    (without_config,) = rows_of_json(tmp_path, report)
    assert (without_config.model, without_config.ttft_s, without_config.tpot_s) == ("results.json", 0.1, None)


def test_guidellm_row_has_the_model_or_file_name(tmp_path):
    (named,) = rows_of_json(
        tmp_path,
        {**GUIDELLM, "benchmarks": [{**GUIDELLM["benchmarks"][0], "config": {"backend": {"model": "org/model"}}}]},
    )
    assert named.model == "org/model"
    assert rows_of_json(tmp_path, GUIDELLM)[0].model == "results.json"


def test_log_of_runs_is_not_a_result_file():
    assert read_tool_results(Path(__file__).parents[1] / "data" / "reference-log.md") is None


def test_vllm_serving_row_has_medians_over_requests(tmp_path):
    (row,) = rows_of_json(tmp_path, SERVE)
    assert (row.ttft_s, row.tpot_s, row.output_tokens_per_s) == (0.03, 0.008, 64.0)
    assert (row.prompt_tokens, row.new_tokens, row.concurrency) == (512, 128, 2)
    assert (row.repeats, row.failed, row.latency_s) == (4, 1, None)


def test_vllm_throughput_with_prompt_tokens_is_ignored(tmp_path):
    (row,) = rows_of_json(tmp_path, THROUGHPUT)
    assert row.output_tokens_per_s is None
    assert row.repeats == 100
    assert rows_of_json(tmp_path, LATENCY)[0].latency_s == 1.0


def test_guidellm_metric_without_samples_is_none(tmp_path):
    (row,) = rows_of_json(tmp_path, GUIDELLM)
    assert (row.ttft_s, row.tpot_s, row.latency_s) == (0.04, 0.0095, 2.5)
    assert (row.prompt_tokens, row.new_tokens) == (256, 128)
    assert row.output_tokens_per_s is None
    assert (row.repeats, row.failed) == (3, 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"a": 1}, r"results.json: not a result file of llama-bench, .*; docs/imports.md lists the files"),
        ([{"n_prompt": 1, "n_gen": 0, "model_filename": "a"}], r"lacks a value .* \(KeyError: 'avg_ts'\)"),
        ({**SERVE, "model_id": 5}, r"lacks a value .* \(TypeError: .*\); get the whole file"),
        (
            {**GUIDELLM, "benchmarks": [*GUIDELLM["benchmarks"], {"metrics": {}}]},
            r"lacks a value .* \(KeyError: 'request_totals'\); get the whole file",
        ),
        ({"results": {"gsm8k": {"acc,none": 0.5}}, "configs": {}, "versions": {}}, "scores of lm-eval, .* no times"),
        ({"traceEvents": []}, "a profiler trace; give it to `benchmarker explain`"),
        ({"schema_version": 3, "cells": []}, "a benchmarker record; give it to `benchmarker compare`"),
        ({"metadata": {"x_request_id": "1"}, "metrics": {}}, "give profile_export_aiperf.json"),
    ],
)
def test_unsupported_or_incomplete_file_is_refused_with_a_reason(tmp_path, content, message):
    with pytest.raises(ResultsError, match=message):
        rows_of_json(tmp_path, content)


def test_truncated_file_is_refused(tmp_path):
    (tmp_path / "results.json").write_text(json.dumps([DECODE])[:-5])
    with pytest.raises(ResultsError, match="not valid JSON, or cut short"):
        read_tool_results(tmp_path / "results.json")


def test_import_command_prints_the_rows(tmp_path):
    (tmp_path / "llama.json").write_text(json.dumps([DECODE]))
    result = CliRunner().invoke(app, ["import", str(tmp_path / "llama.json")])
    assert result.exit_code == 0
    assert "Qwen2.5-7B-Instruct-Q4_K_M.gguf" in result.output
    assert "10.00 ms" in result.output
    refused = CliRunner().invoke(app, ["import", str(tmp_path / "llama.json"), "--model", "x"])
    assert refused.exit_code == 2
