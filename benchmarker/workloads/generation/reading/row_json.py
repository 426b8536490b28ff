"""Plain values of a row of text generation, for programs."""

from __future__ import annotations

from typing import Any

from benchmarker.comparison.rows import metric_numbers, ratio_numbers
from benchmarker.core.stats import Estimate
from benchmarker.schema.quality import Quality, StepDivergence
from benchmarker.workloads.generation.reading.generation_rows import FirstDifference, GenerationRow

WITH_OWN_KEYS = ("latency", "ttft", "tpot", "tok/s", "decode")
"""Metrics whose keys do not follow the rule for metric names."""


def to_row(row: GenerationRow) -> dict[str, Any]:
    """Return plain values in base units; None for unknown. Details of quality appear only if measured."""
    cell, energy = row.cell, row.energy
    return {
        "variant": row.variant,
        "quant": row.quant,
        "engine": row.engine,
        "model": row.model,
        "device": row.device,
        "prompt_tokens": cell.prompt_tokens if cell else None,
        "new_tokens": cell.new_tokens if cell else None,
        "batch_size": cell.batch_size if cell else None,
        "depth": cell.depth if cell else None,
        "status": row.status,
        "latency_s": _value(row.latency),
        "ttft_s": _value(row.ttft),
        "tpot_s": _value(row.tpot),
        "tokens_per_s": _value(row.rate),
        "decode_tokens_per_s": row.decode_tokens_per_s,
        "peak_memory_bytes": row.peak_memory_bytes,
        "weight_bytes": row.weight_bytes,
        "bits_per_weight": row.bits_per_weight,
        "load_s": row.load_s,
        "setup_s": row.setup_s,
        "setup_cold_s": row.setup_cold_s,
        "setup_warm_s": row.setup_warm_s,
        "mbu": row.mbu,
        "floor_s": row.floor_s,
        "best_ratio": row.best_ratio,
        "best_ratio_reached": row.share_of_best_ratio,
        "prefill_mfu": row.prefill_mfu,
        "kernels_per_token": row.kernels_per_token,
        "same_tokens": row.same_tokens,
        **ratio_numbers(row),
        "bound_by": row.bound_by,
        **(_details(row.quality) if row.quality else dict.fromkeys(("perplexity", "kl_divergence", "top1_agreement"))),
        **_step(row.step_divergence),
        **_first_difference(row.first_difference),
        "tokens_in_common": row.tokens_in_common,
        "energy_per_token_j": energy.per_token.value if energy else None,
        "energy_net_per_token_j": energy.net_per_token_j if energy else None,
        "energy_decode_per_token_j": energy.decode_per_token_j if energy else None,
        "energy_prefill_j": energy.prefill_j if energy else None,
        "rounds": row.rounds,
        "runs": row.runs,
        "dummy_weights": row.dummy_weights,
        "flags": list(row.flags),
        **metric_numbers(row, (metric for metric in row.described.metrics if metric.name not in WITH_OWN_KEYS)),
    }


def _first_difference(found: FirstDifference | None) -> dict[str, Any]:
    if found is None:
        return {}
    return {
        "greedy_texts": found.prompts,
        "greedy_texts_same": found.same,
        "greedy_first_difference": found.token,
        "greedy_gap": found.gap,
        "greedy_verdict": found.verdict,
    }


def _step(checked: StepDivergence | None) -> dict[str, Any]:
    if checked is None:
        return {}
    return {
        "step_kl_divergence": checked.kl_mean,
        "step_kl_divergence_max": checked.kl_max,
        "step_kl_divergence_uncaptured": checked.plain_kl_mean,
        "step_top1_agreement": checked.same_top,
        "step_verdict": checked.verdict,
    }


def _details(quality: Quality) -> dict[str, Any]:
    against = quality.against
    return {
        "perplexity": quality.perplexity,
        "kl_divergence": against.kl_mean,
        "kl_divergence_error": against.kl_mean_error,
        "kl_divergence_median": against.kl_median,
        "kl_divergence_90": against.kl_90,
        "kl_divergence_99": against.kl_99,
        "kl_divergence_999": against.kl_999,
        "kl_divergence_max": against.kl_max,
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
