"""Fake records with plausible defaults, of which a test overrides the values that it checks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarker.comparison.results import results_of_records, to_rows
from benchmarker.core.errors import ErrorKind, ResultsError
from benchmarker.report.compare import Comparison, compare, explain_results
from benchmarker.schema.model import EngineFacts, LoadFacts, ModelFacts
from benchmarker.schema.quality import Divergence, Quality
from benchmarker.schema.record import DeviceFacts, Environment, Kernel, Memory, Missing, RunRecord
from benchmarker.schema.record_io import write_json
from benchmarker.workloads.generation.record import (
    GenerationCell,
    GenerationProfile,
    GenerationRecord,
    GenerationSample,
    GenerationVariant,
)

PARAMETERS = 4_022_468_096
PROMPT = "6f3c" * 16


def sample(
    latency_s: float = 1.4, *, new_tokens: int = 50, ttft_s: float | None = None, **fields: Any
) -> GenerationSample:
    """Return a repeat. By default the first token takes as long as each later token."""
    first_s = latency_s / new_tokens if ttft_s is None else ttft_s
    return GenerationSample(
        latency_s=latency_s,
        ttft_s=first_s,
        tpot_s=(latency_s - first_s) / (new_tokens - 1) if new_tokens > 1 else None,
        new_tokens=new_tokens,
        **{"peak_allocated_bytes": 8_150_000_000, **fields},
    )


def cell(
    latencies_s: Sequence[float] = (1.38, 1.39, 1.40, 1.41, 1.42),
    *,
    prompt_tokens: int = 26,
    new_tokens: int = 50,
    batch_size: int = 1,
    **fields: Any,
) -> GenerationCell:
    """Return a cell with one timed repeat per latency."""
    samples = tuple(sample(latency_s, new_tokens=new_tokens) for latency_s in latencies_s)
    defaults: dict[str, Any] = {
        "status": "ok",
        "inputs_sha256": PROMPT,
        "samples": samples,
        "memory": Memory(peak_allocated_bytes=8_150_000_000, peak_reserved_bytes=8_300_000_000),
        "first_tokens": (1, 2, 3),
    }
    return GenerationCell(
        prompt_tokens=prompt_tokens, new_tokens=new_tokens, batch_size=batch_size, **{**defaults, **fields}
    )


def failed_cell(status: str, reason: str, **shape: int) -> GenerationCell:
    return cell((), status=status, reason=reason, memory=Memory(), first_tokens=(), **shape)


def environment(*, device: Mapping[str, Any] | None = None, **fields: Any) -> Environment:
    facts = {
        "kind": "cuda",
        "name": "NVIDIA H100 80GB HBM3",
        "index": 0,
        "memory_bytes": 85_000_000_000,
        "capability": "9.0",
        "driver": "580.159.04",
        "runtime": "13.0",
        **(device or {}),
    }
    defaults: dict[str, Any] = {
        "device": DeviceFacts(**facts),
        "cpu": "Intel Xeon Platinum 8480",
        "cores": 16,
        "threads": 16,
        "memory_bytes": 137_438_953_472,
        "system": "Linux 6.8 x86_64",
        "python": "3.12.3",
        "packages": {"torch": "2.11.0+cu130", "transformers": "5.17.0"},
        "variables": {},
    }
    return Environment(**{**defaults, **fields})


def cpu_environment(**fields: Any) -> Environment:
    device = {
        "kind": "cpu",
        "name": "Intel Xeon",
        "index": None,
        "memory_bytes": None,
        "capability": None,
        "driver": None,
        "runtime": None,
    }
    return environment(device=device, **fields)


def load(*, load_s: float = 12.3, weight_bytes: int = 8_044_936_192, **fields: Any) -> LoadFacts:
    defaults: dict[str, Any] = {
        "parameters": PARAMETERS,
        "bits_per_weight": 8 * weight_bytes / PARAMETERS,
        "quantized_fraction": 0.0,
        "linear_classes": {"Linear": 253},
        "weight_classes": {"Parameter": 253},
        "lm_head_dtype": "float16",
        "lm_head_tied": True,
    }
    return LoadFacts(load_s=load_s, weight_bytes=weight_bytes, **{**defaults, **fields})


def profile(**fields: Any) -> GenerationProfile:
    defaults: dict[str, Any] = {
        "by": "device",
        "prompt_tokens": 26,
        "new_tokens": 32,
        "batch_size": 1,
        "latency_s": 1.2,
        "kernel_s": 0.5,
        "busy_s": 0.5,
        "span_s": 1.1,
        "kernels": (
            Kernel(name="nvjet_gemv", calls=800, total_s=0.375),
            Kernel(name="elementwise_kernel", calls=2000, total_s=0.125),
        ),
    }
    return GenerationProfile(**{**defaults, **fields})


def record(
    quant: str = "fp16",
    *cells: GenerationCell,
    name: str | None = None,
    runtime: str = "eager",
    options: Mapping[str, Any] | None = None,
    model: Mapping[str, Any] | None = None,
    round_number: int = 0,
    **fields: Any,
) -> GenerationRecord:
    """Return a complete run of one variant, with one successful cell by default.

    Args:
        model: Fields of ModelFacts that differ from Qwen3-4B in float16.
    """
    facts = {"id": "Qwen/Qwen3-4B", "config_sha256": "ab" * 32, "parameters": PARAMETERS, **(model or {})}
    defaults: dict[str, Any] = {
        "benchmarker": "0.1.0",
        "run_id": f"{name or quant}-{runtime}-{round_number}",
        "started_at": f"2026-03-01T10:{round_number:02}:00Z",
        "status": "complete",
        "environment": environment(),
        "procedure": {"warmup": 3, "runs": next((len(timed.samples) for timed in cells if timed.samples), 5)},
        "load": load(),
        "engine": EngineFacts(name=runtime, tokens_read="each", kv_cache="dynamic"),
        "cells": cells or (cell(),),
        "reproduce": f"benchmarker run --quant {quant}",
    }
    return GenerationRecord(
        round=round_number,
        model=ModelFacts(**facts),
        variant=GenerationVariant(name=name or quant, quant=quant, engine=runtime, options=dict(options or {})),
        **{**defaults, **fields},
    )


def missing(reason: str, kind: ErrorKind = "other") -> Missing:
    """Return the reason why a requested value is missing."""
    return Missing(error_kind=kind, reason=reason)


def quality(*, kl: float = 0.0281, perplexity: float = 13.2, noise: float = 1e-6, **fields: Any) -> Quality:
    """Return the quality of a 4-bit quantization by default."""
    change = Divergence(
        ln_ratio=0.0171,
        ln_ratio_error=0.0021,
        kl_mean=kl,
        kl_mean_error=0.0009,
        kl_median=kl / 2,
        kl_90=2 * kl,
        kl_99=5 * kl,
        kl_max=20 * kl,
        same_top=0.914,
        same_top_error=0.003,
        probability_rms=0.041,
    )
    defaults: dict[str, Any] = {
        "size": "quick",
        "text": "benchmarker evaluation.txt",
        "text_sha256": "cd" * 32,
        "text_tokens": 120_000,
        "window_tokens": 289,
        "scored_from": 256,
        "begins_with": None,
        "positions": 2048,
        "top_k": None,
        "perplexity_error": 0.31,
        "baseline": "fp16 of Qwen/Qwen3-4B in float16",
        "is_baseline": False,
        "baseline_perplexity": 12.98,
        "windows": (),
        "seconds": 31.0,
        "file_bytes": 1_244_659_712,
        "extra_bytes": 900_000_000,
    }
    return Quality(
        perplexity=perplexity,
        against=change,
        noise=change.model_copy(update={"kl_mean": noise, "ln_ratio": 0.0}),
        **{**defaults, **fields},
    )


def failed_quality(perplexity: float = 9_000.0) -> Quality:
    """Return the quality of a variant whose perplexity is far above that of the baseline."""
    wrong = quality(kl=6.5, perplexity=perplexity)
    ln_ratio = math.log(perplexity / wrong.baseline_perplexity)
    return wrong.model_copy(update={"against": wrong.against.model_copy(update={"ln_ratio": ln_ratio})})


def baseline_quality() -> Quality:
    """Return the quality of the unquantized model, whose divergence is the noise."""
    unquantized = quality(kl=1e-6, perplexity=12.98)
    return unquantized.model_copy(update={"is_baseline": True, "against": unquantized.noise})


def failed_record(quant: str, reason: str, **fields: Any) -> GenerationRecord:
    """Return a run that failed before its first cell."""
    failed = record(quant, cells=(), status="failed", reason=reason, load=None, **fields)
    return failed.model_copy(update={"engine": None})


def rounds(quant: str, latencies_s: Sequence[float], **fields: Any) -> list[GenerationRecord]:
    """Return one record per round, with the given median latencies."""
    return [
        record(quant, cell([0.999 * latency_s, latency_s, 1.001 * latency_s]), round_number=number, **fields)
        for number, latency_s in enumerate(latencies_s)
    ]


def save(folder: Path, *records: GenerationRecord) -> Path:
    """Write records as a sweep does, and return the folder."""
    for index, run_record in enumerate(records):
        write_json(run_record, folder / f"{index:03}.json")
    return folder


def compare_records(records: Sequence[RunRecord], **arguments: Any) -> Comparison:
    """Compare records in memory, with the arguments of `results_of_records`."""
    return explain_results(results_of_records(records, **arguments))


def rows_of(folder: Path, **options: object) -> dict[str, dict[str, object]]:
    """Return the JSON rows of a comparison of one cell, by variant."""
    return {row["variant"]: row for row in to_rows(compare([folder], **options))}


def refusal(*paths: Path, **options: object) -> str:
    with pytest.raises(ResultsError) as caught:
        compare(paths, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)
