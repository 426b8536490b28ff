"""JSON values of a row of text generation."""

from __future__ import annotations

from typing import Any

from benchmarker.comparison.rows import metric_numbers, ratio_numbers
from benchmarker.core.stats import Estimate
from benchmarker.schema.quality import Quality, StepDivergence
from benchmarker.workloads.generation.reading.generation_rows import FirstDifference, GenerationRow

WITH_OWN_KEYS = ("latency", "ttft", "tpot", "tok/s", "decode", "tok/step")
"""Metrics whose JSON keys do not follow the rule for metric names."""


COSTS = (
    "peak_memory_bytes",
    "weight_bytes",
    "working_bytes",
    "reserved_kv_bytes",
    "bits_per_weight",
    "load_s",
    "setup_s",
    "setup_cold_s",
    "setup_warm_s",
    "mbu",
    "floor_s",
    "best_ratio",
)
"""Fields of a row that have a JSON key of the same name."""
OF_QUALITY = ("perplexity", "kl_divergence", "top1_agreement")


def to_row(row: GenerationRow) -> dict[str, Any]:
    """Return JSON values in base units (s, bytes); unknown values are None. Details of quality are optional."""
    cell, energy = row.cell, row.energy
    return {
        **{name: getattr(row, name) for name in ("variant", "quant", "engine", "model", "device")},
        **{name: cell and cell[name] for name in ("prompt_tokens", "new_tokens", "batch_size", "depth")},
        **({"prompts": "distinct"} if cell and cell.has_distinct_prompts else {}),
        "status": row.status,
        **{f"{name}_s": _value(getattr(row, name)) for name in ("latency", "ttft", "tpot")},
        "tokens_per_s": _value(row.rate),
        "decode_tokens_per_s": row.decode_tokens_per_s,
        "tokens_per_step": _value(row.metrics.get("tok/step")),
        **{name: getattr(row, name) for name in COSTS},
        "best_ratio_reached": row.share_of_best_ratio,
        **{name: getattr(row, name) for name in ("prefill_mfu", "kernels_per_token", "same_tokens")},
        **ratio_numbers(row),
        "bound_by": row.bound_by,
        **(_details(row.quality) if row.quality else dict.fromkeys(OF_QUALITY)),
        **(_step(row.step_divergence) if row.step_divergence else {}),
        **(_first_difference(row.first_difference) if row.first_difference else {}),
        "tokens_in_common": row.tokens_in_common,
        "energy_per_token_j": energy and energy.per_token.value,
        "energy_net_per_token_j": energy and energy.net_per_token_j,
        "energy_decode_per_token_j": energy and energy.decode_per_token_j,
        "energy_prefill_j": energy and energy.prefill_j,
        **{name: getattr(row, name) for name in ("rounds", "runs")},
        "dummy_weights": row.has_random_weights,
        "flags": list(row.flags),
        **metric_numbers(row, (metric for metric in row.described.metrics if metric.name not in WITH_OWN_KEYS)),
    }


def _first_difference(difference: FirstDifference) -> dict[str, Any]:
    return {
        "greedy_texts": difference.prompts,
        "greedy_texts_same": difference.same,
        "greedy_first_difference": difference.token,
        "greedy_gap": difference.gap,
        "greedy_verdict": difference.verdict,
    }


def _step(checked: StepDivergence) -> dict[str, Any]:
    return {
        "step_kl_divergence": checked.kl_mean,
        "step_kl_divergence_max": checked.kl_max,
        "step_kl_divergence_rounding": checked.rounding_kl_mean,
        "step_top1_agreement": checked.same_top,
        "step_verdict": checked.verdict,
    }


def _details(quality: Quality) -> dict[str, Any]:
    against = quality.against
    return {
        "perplexity": quality.perplexity,
        "kl_divergence": against.kl_mean,
        "kl_divergence_error": against.kl_mean_error,
        **{f"kl_divergence_{part}": getattr(against, f"kl_{part}") for part in ("median", "90", "99", "999", "max")},
        "kl_divergence_noise": quality.noise.kl_mean,
        "ln_ratio": against.ln_ratio,
        "ln_ratio_error": against.ln_ratio_error,
        "probability_change_low": against.change_low,
        "probability_change_high": against.change_high,
        "quality_path": quality.path,
        "is_silent": quality.is_silent,
        "top1_agreement": against.same_top,
        "text_sha256": quality.text_sha256,
        "quality_size": quality.size,
        "quality_top_k": quality.top_k,
    }


def _value(measured: Estimate | None) -> float | None:
    return measured.value if measured else None
