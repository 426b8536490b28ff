"""Result files of other benchmarks, as rows: `llama-bench -o json`, `vllm bench`, and GuideLLM's reports.

Each measures something else, so a row says which of its times are there and leaves out the others: llama-bench has no
time to the first token and makes its own tokens; `vllm bench throughput` counts the prompt's tokens with the new ones.
Rows are shown beside records, never averaged with them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarker.core.errors import ResultsError, read_problem
from benchmarker.core.formatting import MISSING, seconds, significant
from benchmarker.core.tables import Column, escaped, table


@dataclass(frozen=True)
class ToolRow:
    """One result of another benchmark; None is what it does not say. Times are medians."""

    tool: str
    model: str | None
    prompt_tokens: float | None
    """A mean where requests differ."""
    new_tokens: float | None
    depth: int | None = None
    """Tokens in the KV cache before the prompt."""
    concurrency: float | None = None
    """Requests or sequences at once."""
    prefill_s: float | None = None
    """The prompt alone, without choosing a token."""
    ttft_s: float | None = None
    tpot_s: float | None = None
    """Between two tokens of one sequence."""
    latency_s: float | None = None
    """Of a whole request."""
    output_tokens_per_s: float | None = None
    """New tokens of all requests together."""
    repeats: int | None = None
    """Timed repeats, or requests that succeeded."""
    failed: int | None = None
    version: str | None = None
    """Of the tool, or the commit of its engine."""
    device: str | None = None


def read_tool_results(path: Path) -> tuple[ToolRow, ...]:
    """The rows of a result file.

    Raises:
        ResultsError: It is of none of these tools, is cut short, or lacks what its tool always writes.
    """
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise ResultsError(read_problem(path, error)) from error
    except ValueError as error:
        raise ResultsError(f"{path}: not valid JSON, or cut short ({error})") from error
    for fits, read in READERS:
        if fits(content):
            try:
                return read(content)
            except (KeyError, TypeError, ValueError, ArithmeticError) as error:
                raise ResultsError(
                    f"{path}: lacks what its tool always writes ({type(error).__name__}: {error})"
                ) from error
    raise ResultsError(
        f"{path}: a result file of none of the tools that are read: llama-bench -o json, vllm bench, GuideLLM"
    )


def _is_llama_bench(content: Any) -> bool:
    return isinstance(content, list) and bool(content) and isinstance(content[0], dict) and "samples_ns" in content[0]


def _llama_bench(content: Any) -> tuple[ToolRow, ...]:
    return tuple(_llama_bench_row(test) for test in content)


def _llama_bench_row(test: dict[str, Any]) -> ToolRow:
    """A test is of a prompt alone, of new tokens alone, or of both in one time."""
    prompt, new = test["n_prompt"], test["n_gen"]
    middle_s = median(test["samples_ns"]) / 1e9
    decode_alone = bool(new) and not prompt
    return ToolRow(
        tool="llama-bench",
        model=" ".join(filter(None, [Path(test["model_filename"]).name, _in_brackets(test.get("model_type"))])),
        prompt_tokens=prompt or None,
        new_tokens=new or None,
        depth=test.get("n_depth"),
        concurrency=1,
        prefill_s=middle_s if not new else None,
        tpot_s=middle_s / new if decode_alone else None,
        latency_s=middle_s if new and prompt else None,
        output_tokens_per_s=new / middle_s if decode_alone else None,
        repeats=len(test["samples_ns"]),
        version=test.get("build_commit"),
        device=test.get("gpu_info") or test.get("cpu_info"),
    )


def _in_brackets(words: str | None) -> str | None:
    return f"({words})" if words else None


def _is_vllm_serve(content: Any) -> bool:
    return isinstance(content, dict) and {"completed", "total_output_tokens", "output_throughput"} <= content.keys()


def _vllm_serve(content: Any) -> tuple[ToolRow, ...]:
    completed = content["completed"]
    row = ToolRow(
        tool="vllm bench serve",
        model=content.get("model_id"),
        prompt_tokens=content["total_input_tokens"] / completed if completed else None,
        new_tokens=content["total_output_tokens"] / completed if completed else None,
        concurrency=content.get("max_concurrency"),
        ttft_s=_from_ms(content.get("median_ttft_ms")),
        tpot_s=_from_ms(content.get("median_tpot_ms")),
        latency_s=_from_ms(content.get("median_e2el_ms")),
        output_tokens_per_s=content["output_throughput"],
        repeats=completed,
        failed=content.get("failed"),
    )
    return (row,)


def _is_vllm_latency(content: Any) -> bool:
    return isinstance(content, dict) and {"avg_latency", "latencies"} <= content.keys()


def _vllm_latency(content: Any) -> tuple[ToolRow, ...]:
    latencies = content["latencies"]
    row = ToolRow(
        tool="vllm bench latency",
        model=None,
        prompt_tokens=None,
        new_tokens=None,
        latency_s=median(latencies),
        repeats=len(latencies),
    )
    return (row,)


def _is_vllm_throughput(content: Any) -> bool:
    return isinstance(content, dict) and {"elapsed_time", "num_requests", "total_num_tokens"} <= content.keys()


def _vllm_throughput(content: Any) -> tuple[ToolRow, ...]:
    """Its tokens a second count the prompts' tokens too, so that they are no rate of ours and are left out."""
    row = ToolRow(
        tool="vllm bench throughput",
        model=content.get("model_id"),
        prompt_tokens=None,
        new_tokens=None,
        repeats=content["num_requests"],
    )
    return (row,)


def _is_guidellm(content: Any) -> bool:
    return isinstance(content, dict) and "guidellm_version" in (content.get("metadata") or {})


def _guidellm(content: Any) -> tuple[ToolRow, ...]:
    version = content["metadata"]["guidellm_version"]
    return tuple(_guidellm_row(benchmark["metrics"], version) for benchmark in content["benchmarks"])


def _guidellm_row(metrics: dict[str, Any], version: str) -> ToolRow:
    totals = metrics["request_totals"]
    return ToolRow(
        tool="GuideLLM",
        model=None,
        prompt_tokens=_guidellm_value(metrics, "prompt_token_count", "mean"),
        new_tokens=_guidellm_value(metrics, "output_token_count", "mean"),
        concurrency=_guidellm_value(metrics, "request_concurrency", "mean"),
        ttft_s=_from_ms(_guidellm_value(metrics, "time_to_first_token_ms", "median")),
        tpot_s=_from_ms(_guidellm_value(metrics, "inter_token_latency_ms", "median")),
        latency_s=_guidellm_value(metrics, "request_latency", "median"),
        output_tokens_per_s=_guidellm_value(metrics, "output_tokens_per_second", "mean"),
        repeats=totals["successful"],
        failed=totals["errored"],
        version=version,
    )


def _guidellm_value(metrics: dict[str, Any], name: str, statistic: str) -> float | None:
    """Of the requests that succeeded. A metric of requests that never came is all zeros there, and None here."""
    summary = (metrics.get(name) or {}).get("successful")
    return float(summary[statistic]) if summary and summary["count"] else None


def _from_ms(value_ms: float | None) -> float | None:
    return None if value_ms is None else value_ms / 1e3


READERS: tuple[tuple[Callable[[Any], bool], Callable[[Any], tuple[ToolRow, ...]]], ...] = (
    (_is_llama_bench, _llama_bench),
    (_is_vllm_serve, _vllm_serve),
    (_is_vllm_latency, _vllm_latency),
    (_is_vllm_throughput, _vllm_throughput),
    (_is_guidellm, _guidellm),
)


def _count(number: float | None) -> str:
    """A count, or a mean of counts: 26, 25.3."""
    return MISSING if number is None else f"{number:g}" if float(number).is_integer() else significant(number)


COLUMNS: tuple[Column[ToolRow], ...] = (
    Column("tool", lambda row: escaped(row.tool), "left"),
    Column("model", lambda row: escaped(row.model or MISSING), "left"),
    Column("prompt", lambda row: _count(row.prompt_tokens)),
    Column("new", lambda row: _count(row.new_tokens)),
    Column("depth", lambda row: _count(row.depth)),
    Column("at once", lambda row: _count(row.concurrency)),
    Column("prefill", lambda row: seconds(row.prefill_s)),
    Column("TTFT", lambda row: seconds(row.ttft_s)),
    Column("TPOT", lambda row: seconds(row.tpot_s)),
    Column("latency", lambda row: seconds(row.latency_s)),
    Column("new tokens/s", lambda row: significant(row.output_tokens_per_s)),
    Column("repeats", lambda row: _count(row.repeats)),
    Column("failed", lambda row: _count(row.failed)),
)


def tool_table(rows: tuple[ToolRow, ...]) -> str:
    """The rows for people."""
    return table(COLUMNS, rows)
