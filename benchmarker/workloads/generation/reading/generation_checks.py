"""Checks of a record in `benchmarker verify` that only text generation has."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy import stats

from benchmarker.comparison.invariants import TOLERANCE, Check, equal
from benchmarker.comparison.rows import keys_of
from benchmarker.workloads.generation.architecture import MBU_LIMIT, mbu
from benchmarker.workloads.generation.record import GenerationCell, GenerationRecord

DRAIN_S, DRAIN_SHARE = 0.05, 0.10  # Longest wait after the last token: s, or share of the latency if that is longer.


def checks(record: GenerationRecord) -> Iterator[Check]:
    limits = record.limits
    for key, cell in zip(keys_of(record), record.cells, strict=True):
        if cell.status == "ok":
            yield from _token_checks(f"cell {key.words}", cell)
            tpots = [sample.tpot_s for sample in cell.samples if sample.tpot_s is not None]
            if limits and cell.demand and tpots and cell.demand.step_bytes > (limits.cache_bytes or 0):
                used = mbu(cell.demand, limits, tpot_s=statistics.median(tpots))
                yield Check(f"cell {key.words}", "mbu", used, f"at most {MBU_LIMIT}", holds=used <= MBU_LIMIT)
    if record.load:
        bits = 8 * record.load.weight_bytes / record.load.parameters
        yield equal("load", "bits_per_weight", record.load.bits_per_weight, bits)
    if record.engine and record.engine.recompilations and any(cell.status == "ok" for cell in record.cells):
        count = record.engine.recompilations
        yield Check("engine", "recompilations", count, "none in a cell that is ok", holds=False)
    if record.quality:
        stated = record.quality.model_dump()
        for field, recomputed in _quality_of(stated["windows"]).items():
            group, _, name = field.rpartition(".")
            yield equal("quality", field, (stated[group] if group else stated)[name], recomputed)


def _token_checks(place: str, cell: GenerationCell) -> Iterator[Check]:
    for number, sample in enumerate(cell.samples, start=1):
        where = f"{place}, run {number}"
        yield equal(where, "new_tokens", sample.new_tokens, cell.new_tokens)
        if sample.ttft_s is not None:
            steps = sample.new_tokens - 1
            has_tpot = sample.tpot_s is not None
            expected = "a time" if steps else "none for a single token"
            yield Check(where, "tpot_s", sample.tpot_s, expected, holds=has_tpot == bool(steps))
            known_s = sample.ttft_s + steps * (sample.tpot_s or 0.0)
            most_s = known_s + max(DRAIN_S, DRAIN_SHARE * sample.latency_s)
            fits = known_s * (1 - TOLERANCE) <= sample.latency_s and (
                sample.latency_s <= most_s or has_tpot != bool(steps)
            )
            yield Check(where, "latency_s", sample.latency_s, f"{known_s} for first token and steps", holds=fits)


def _quality_of(windows: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    means = {name: np.array([window[name] for window in windows]) for name in windows[0]}
    change = means["nats"] - means["baseline_nats"]
    many = len(windows) > 1
    return {
        "perplexity": float(np.exp(np.mean(means["nats"]))),
        "baseline_perplexity": float(np.exp(np.mean(means["baseline_nats"]))),
        "against.ln_ratio": float(np.mean(change)),
        "against.ln_ratio_error": float(stats.sem(change)) if many else None,
        "against.kl_mean": float(np.mean(means["kl"])),
        "against.kl_mean_error": float(stats.sem(means["kl"])) if many else None,
        "against.same_top": float(np.mean(means["same_top"])),
        "against.probability_rms": float(np.sqrt(np.mean(means["squared_change"]))),
    }
