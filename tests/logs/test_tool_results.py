"""Result files of other benchmarks, in the shapes that the tools' sources write."""

from __future__ import annotations

import json
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


def rows(folder: Path, content: object) -> tuple[ToolRow, ...]:
    path = folder / "results.json"
    path.write_text(json.dumps(content))
    return read_tool_results(path)


def test_llama_bench_names_the_form_where_it_tells_one(tmp_path):
    (named,) = rows(tmp_path, [{**PROMPT, "model_filename": "a/model.gguf", "model_type": "qwen3 4B Q8_0"}])
    assert named.model == "model.gguf (qwen3 4B Q8_0)"


def test_llama_bench_times_a_prompt_new_tokens_or_both(tmp_path):
    prompt, decode, both = rows(tmp_path, [PROMPT, DECODE, BOTH])
    assert (prompt.prefill_s, prompt.ttft_s, prompt.tpot_s) == (0.072, None, None)
    assert (decode.tpot_s, decode.output_tokens_per_s) == (0.01, pytest.approx(100.0))
    assert (both.latency_s, both.tpot_s, both.output_tokens_per_s) == (1.4, None, None)
    assert decode.model == "Qwen2.5-7B-Instruct-Q4_K_M.gguf"
    assert (decode.version, decode.device, decode.repeats) == ("8cf427ff", "NVIDIA GeForce RTX 4080", 3)


def test_vllms_server_benchmark_has_medians_of_its_requests(tmp_path):
    (row,) = rows(tmp_path, SERVE)
    assert (row.ttft_s, row.tpot_s, row.output_tokens_per_s) == (0.03, 0.008, 64.0)
    assert (row.prompt_tokens, row.new_tokens, row.concurrency) == (512, 128, 2)
    assert (row.repeats, row.failed, row.latency_s) == (4, 1, None)


def test_vllms_rate_that_counts_the_prompts_is_left_out(tmp_path):
    (row,) = rows(tmp_path, THROUGHPUT)
    assert row.output_tokens_per_s is None
    assert row.repeats == 100
    assert rows(tmp_path, LATENCY)[0].latency_s == 1.0


def test_guidellm_has_a_row_a_benchmark_and_no_zero_for_what_never_came(tmp_path):
    (row,) = rows(tmp_path, GUIDELLM)
    assert (row.ttft_s, row.tpot_s, row.latency_s) == (0.04, 0.0095, 2.5)
    assert (row.prompt_tokens, row.new_tokens) == (256, 128)
    assert row.output_tokens_per_s is None
    assert (row.repeats, row.failed, row.version) == (3, 1, "0.8.1")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"a": 1}, "none of the tools that are read"),
        ([{"samples_ns": [1]}], r"lacks what its tool always writes \(KeyError: 'n_prompt'\)"),
        ([{**DECODE, "samples_ns": []}], "lacks what its tool always writes"),
    ],
)
def test_a_file_of_another_kind_is_one_line(tmp_path, content, message):
    with pytest.raises(ResultsError, match=message):
        rows(tmp_path, content)


def test_a_file_that_is_cut_short_is_one_line(tmp_path):
    (tmp_path / "results.json").write_text(json.dumps([DECODE])[:-5])
    with pytest.raises(ResultsError, match="not valid JSON, or cut short"):
        read_tool_results(tmp_path / "results.json")


def test_import_shows_the_rows(tmp_path):
    (tmp_path / "llama.json").write_text(json.dumps([DECODE]))
    result = CliRunner().invoke(app, ["import", str(tmp_path / "llama.json")])
    assert result.exit_code == 0
    assert "Qwen2.5-7B-Instruct-Q4_K_M.gguf" in result.output
    assert "10.00 ms" in result.output
    refused = CliRunner().invoke(app, ["import", str(tmp_path / "llama.json"), "--model", "x"])
    assert refused.exit_code == 2
