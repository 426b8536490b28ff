"""Result formats of other benchmarks: conversion of parsed values to rows.

Every tool measures something else, so a row leaves out the times that its tool does not report: llama-bench has no time
to first token, and the rate of `vllm bench throughput` counts prompt tokens. Tools write 0 for a time that no request
has; the row has None instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

Values = dict[str, Any]


@dataclass(frozen=True)
class ToolRow:
    """Result of another benchmark. Times are medians if the tool reports medians; unreported values are None."""

    tool: str
    model: str | None
    prompt_tokens: float | None = None  # Mean over the requests, like `new_tokens`.
    new_tokens: float | None = None
    depth: int | None = None  # Tokens in the KV cache before the prompt.
    concurrency: float | None = None  # Requests or sequences at the same time.
    prefill_s: float | None = None  # Time of the prompt's forward pass, without choosing a token.
    ttft_s: float | None = None
    tpot_s: float | None = None
    latency_s: float | None = None
    output_tokens_per_s: float | None = None  # New tokens of all requests together.
    repeats: int | None = None
    failed: int | None = None


def llama_bench(test: Values) -> ToolRow:
    """Return the row of a test, which measures a prompt alone, new tokens alone, or the total time of both."""
    prompt, new = int(test["n_prompt"]), int(test["n_gen"])
    if samples := test.get("samples_ns") or []:
        time_s = median(samples) / 1e9
    else:
        time_s = float(test["avg_ns"]) / 1e9 if test.get("avg_ns") else (prompt + new) / float(test["avg_ts"])
    file, kind = test.get("model_filename"), test.get("model_type")
    model = f"{Path(file).name} ({kind})" if file and kind else Path(file).name if file else kind
    is_decode = bool(new) and not prompt
    return ToolRow(
        tool="llama-bench",
        model=model,
        prompt_tokens=prompt or None,
        new_tokens=new or None,
        depth=int(test.get("n_depth") or 0),
        concurrency=1,
        prefill_s=None if new else time_s,
        tpot_s=time_s / new if is_decode else None,
        latency_s=time_s if new and prompt else None,
        output_tokens_per_s=new / time_s if is_decode else None,
        repeats=len(samples) or None,
    )


_LLAMA_TEST = re.compile(r"(?:pp(?P<prompt>\d+))?\+?(?:tg(?P<new>\d+))?(?:\s*@\s*d(?P<depth>\d+))?$")


def llama_bench_markdown(lines: Sequence[str]) -> list[Values]:
    """Return the tests in tables of llama-bench: `| model | size | params | backend | ngl | test | t/s |`."""
    tests, columns = [], []
    for line in lines:
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if cells[-2:] == ["test", "t/s"]:
            columns = cells
        elif columns and len(cells) == len(columns) and (match := _LLAMA_TEST.match(cells[-2])) and match[0]:
            values = dict(zip(columns, cells, strict=True))
            rate = re.match(r"[\d.]+", values["t/s"])
            tests.append(
                {
                    "model_type": values.get("model"),
                    "n_prompt": match["prompt"] or 0,
                    "n_gen": match["new"] or 0,
                    "n_depth": match["depth"] or 0,
                    "avg_ts": rate[0] if rate else None,
                }
            )
    return tests


_MEASURED = re.compile(
    r"(mean|median|std|p\d+|total|request|output|input|generated|max_(output|concurren)|random|sharegpt)_"
    r"|(completed|failed|duration|date|concurrency|itls|ttfts|rtfx|errors|start_times|accept_length|model_id)"
)


def settings_of(run: Values, runs: Sequence[Values]) -> str:
    """Return the settings of `run` that are not equal in all `runs`, such as `max_num_seqs=64`."""
    names = [
        name for name in run if not _MEASURED.match(name) and any(sibling.get(name) != run[name] for sibling in runs)
    ]
    return ", ".join(f"{name}={run[name]}" for name in names if isinstance(run[name], int | float | str))


def serving(run: Values) -> ToolRow:
    """Return the row of `vllm bench serve`, or of sglang.bench_serving, whose results have nearly the same keys."""
    is_sglang = "median_e2e_latency_ms" in run or "total_output_tokens_retokenized" in run
    requests = int(float(run["completed"]))
    return ToolRow(
        tool="sglang.bench_serving" if is_sglang else "vllm bench serve",
        model=run.get("model_id") or run.get("model") or _get(run, "server_info.model_path"),
        prompt_tokens=float(run["total_input_tokens"]) / requests if requests else None,
        new_tokens=float(run["total_output_tokens"]) / requests if requests else None,
        concurrency=_number(run.get("concurrency") or run.get("max_concurrency")),
        ttft_s=_ms(run.get("median_ttft_ms")),
        tpot_s=_ms(run.get("median_tpot_ms")),
        latency_s=_ms(run.get("median_e2e_latency_ms") or run.get("median_e2el_ms")),
        output_tokens_per_s=_number(run["output_throughput"]) or None,
        repeats=requests,
        failed=None if run.get("failed") is None else int(float(run["failed"])),
    )


_PRINTED: dict[str, str] = {
    "Backend": "backend",
    "Successful requests": "completed",
    "Failed requests": "failed",
    "Maximum request concurrency": "max_concurrency",
    "Max request concurrency": "max_concurrency",
    "Max reqeuest concurrency": "max_concurrency",
    "Concurrency": "concurrency",
    "Total input tokens": "total_input_tokens",
    "Total generated tokens": "total_output_tokens",
    "Total generated tokens (retokenized)": "total_output_tokens_retokenized",
    "Output token throughput (tok/s)": "output_throughput",
    "Median TTFT (ms)": "median_ttft_ms",
    "Median TPOT (ms)": "median_tpot_ms",
    "Median E2EL (ms)": "median_e2el_ms",
    "Median E2E Latency (ms)": "median_e2e_latency_ms",
}
_PRINTED_LINE = re.compile(r"([A-Z][\w ]+(?:\([\w/]+\))?):\s+(\S+)\s*$")


def serving_blocks(lines: Iterable[str]) -> list[Values]:
    """Return the values in each block that vLLM or SGLang prints below `==== Serving Benchmark Result ====`."""
    blocks: list[Values] = []
    for line in lines:
        if "Serving Benchmark Result =" in line:
            blocks.append({})
        elif blocks and (match := _PRINTED_LINE.search(line)) and (key := _PRINTED.get(match[1])):
            blocks[-1].setdefault(key, match[2])
    return blocks


def vllm_latency(run: Values) -> ToolRow:
    return ToolRow("vllm bench latency", None, latency_s=median(run["latencies"]), repeats=len(run["latencies"]))


def vllm_throughput(run: Values) -> ToolRow:
    return ToolRow("vllm bench throughput", run.get("model_id"), repeats=int(float(run["num_requests"])))


def sglang_one_batch(run: Values) -> ToolRow:
    """Return the row of bench_one_batch or bench_one_batch_server, whose prefill time includes the first token."""
    new = int(run["output_len"])
    latency_s = float(run.get("total_latency") or run["latency"])
    ttft_s = _number(run.get("prefill_latency") or run.get("last_ttft"))
    tpot_s = _number(run.get("median_decode_latency"))
    if tpot_s is None and ttft_s and new > 1:
        tpot_s = (latency_s - ttft_s) / (new - 1)
    return ToolRow(
        tool="sglang.bench_one_batch" + ("" if "total_latency" in run else "_server"),
        model=run["run_name"] if run.get("run_name") not in ("", "default", "before") else None,
        prompt_tokens=int(run["input_len"]),
        new_tokens=new,
        concurrency=int(run["batch_size"]),
        ttft_s=ttft_s or None,
        tpot_s=tpot_s or None,
        latency_s=latency_s,
        output_tokens_per_s=_number(run.get("median_decode_throughput") or run.get("output_throughput")),
        repeats=1,
    )


def guidellm(report: Values) -> ToolRow:
    benchmark = report["benchmarks"][0]

    def value(name: str, statistic: str) -> float | None:
        """Return a statistic over the successful requests; None if there are none, for which GuideLLM writes 0."""
        summary = _get(benchmark, f"metrics.{name}.successful")
        return float(summary[statistic]) if summary and summary["count"] else None

    totals = benchmark["metrics"]["request_totals"]
    return ToolRow(
        tool="GuideLLM",
        model=_first_named(benchmark, "model", "backend_model") or _first_named(report, "model", "backend_model"),
        prompt_tokens=value("prompt_token_count", "mean"),
        new_tokens=value("output_token_count", "mean"),
        concurrency=value("request_concurrency", "mean"),
        ttft_s=_ms(value("time_to_first_token_ms", "median")),
        tpot_s=_ms(value("inter_token_latency_ms", "median")),
        latency_s=value("request_latency", "median"),
        output_tokens_per_s=value("output_tokens_per_second", "mean"),
        repeats=totals["successful"],
        failed=totals["errored"],
    )


_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}


def aiperf(report: Values) -> ToolRow:
    def value(name: str, statistic: str = "avg") -> float | None:
        metric = report.get(name) or {}
        number = metric.get(statistic, metric.get("avg"))
        return number * _UNITS.get(str(metric.get("unit")), 1.0) if number else None

    names = _first_named(report, "model_names", "models", "model")
    return ToolRow(
        tool="AIPerf",
        model=", ".join(map(str, names)) if isinstance(names, list) else names,
        prompt_tokens=value("input_sequence_length"),
        new_tokens=value("output_sequence_length"),
        concurrency=_first_named(report, "concurrency"),
        ttft_s=value("time_to_first_token", "p50"),
        tpot_s=value("inter_token_latency", "p50"),
        latency_s=value("request_latency", "p50"),
        output_tokens_per_s=value("output_token_throughput"),
        repeats=round(value("request_count") or 0),
        failed=round(value("error_request_count") or 0),
    )


def optimum_benchmark(result: Values) -> ToolRow:
    report, config = result.get("report", result), result.get("config")
    new = _get(config, "scenario.generate_kwargs.max_new_tokens")

    def latency_s(name: str) -> float | None:
        latency = _get(report, f"{name}.latency")
        return latency["p50"] * _UNITS.get(latency["unit"], 1.0) if latency else None

    prefill_s, decode_s, tpot_s = map(latency_s, ("prefill", "decode", "per_token"))
    if tpot_s is None and decode_s is not None and new and new > 1:
        tpot_s = decode_s / (new - 1)
    return ToolRow(
        tool="optimum-benchmark",
        model=_get(config, "backend.model") or _get(config, "name"),
        prompt_tokens=_get(config, "scenario.input_shapes.sequence_length"),
        new_tokens=new,
        concurrency=_get(config, "scenario.input_shapes.batch_size"),
        prefill_s=latency_s("forward"),
        ttft_s=prefill_s,
        tpot_s=tpot_s,
        latency_s=prefill_s + decode_s if prefill_s and decode_s else None,
        output_tokens_per_s=_get(report, "decode.throughput.value"),
        repeats=_get(report, "prefill.latency.count" if report.get("prefill") else "forward.latency.count"),
    )


def _first_named(value: Any, *names: str) -> Any:
    for name in names:
        waiting = [value]
        while waiting:
            current = waiting.pop(0)
            if isinstance(current, dict):
                if name in current and current[name] and not isinstance(current[name], dict):
                    return current[name]
                waiting += [inner for inner in current.values() if isinstance(inner, dict)]
    return None


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _ms(value_ms: Any) -> float | None:
    """Return the value in seconds; None for 0, which tools write for a time that no request has."""
    number = _number(value_ms)
    return number / 1e3 if number else None


def _get(value: Any, path: str, default: Any = None) -> Any:
    """Return the value at a path such as `outer.inner.key`. Of a list on the path, the first item is used."""
    for name in path.split("."):
        value = value[0] if isinstance(value, list) and value else value
        if not isinstance(value, dict) or name not in value:
            return default
        value = value[name]
    return value


_ABSENT = object()


@dataclass(frozen=True)
class Format:
    keys: tuple[str, ...]  # Paths that every result of this format has, such as `request_latency.unit`.
    read: Callable[[Values], ToolRow] | None
    refusal: str = ""  # End of the error for a format that is not read: `a profiler trace; give it to ...`.

    def fits(self, value: Any) -> bool:
        return isinstance(value, dict) and all(_get(value, key, _ABSENT) is not _ABSENT for key in self.keys)


FORMATS: tuple[Format, ...] = (
    Format(("n_prompt", "n_gen", "model_type"), llama_bench),
    Format(("n_prompt", "n_gen", "model_filename"), llama_bench),
    Format(("completed", "total_output_tokens", "output_throughput"), serving),
    Format(("avg_latency", "latencies"), vllm_latency),
    Format(("elapsed_time", "num_requests", "total_num_tokens"), vllm_throughput),
    Format(("batch_size", "input_len", "output_len", "overall_throughput"), sglang_one_batch),
    Format(("benchmarks.metrics",), guidellm),
    Format(("request_latency.unit", "request_count.unit"), aiperf),
    Format(("report.prefill",), optimum_benchmark),
    Format(("report.forward",), optimum_benchmark),
    Format(("prefill.latency.p50", "decode"), optimum_benchmark),
    Format(("metadata.x_request_id", "metrics"), None, "single requests of AIPerf; give profile_export_aiperf.json"),
    Format(
        ("results", "configs", "versions"),
        None,
        "scores of lm-eval, which contain no times; `benchmarker run --quality` measures quality beside the times",
    ),
    Format(("traceEvents",), None, "a profiler trace; give it to `benchmarker explain`"),
    Format(("schema_version", "cells"), None, "a benchmarker record; give it to `benchmarker compare`"),
)
