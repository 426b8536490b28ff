"""Why a training step takes as long as it does: its parts, the arithmetic that it needs, what a switch would change.

    floor = (linear layers' FLOPs of the step) / (the matmul rate measured in the same process)

What gradient checkpointing computes again is in no floor: it is the price of memory.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from benchmarker.comparison.comparing import keys_of
from benchmarker.core.formatting import percent
from benchmarker.core.tables import code
from benchmarker.explain.advice import ADVICE as PLAIN_ADVICE
from benchmarker.explain.case import Case, Timed
from benchmarker.explain.phases import phase_of
from benchmarker.explain.reasons import why_no_profile
from benchmarker.explain.values import Bound, Floor, NotExplained, Phase
from benchmarker.explain.waterfall import PARTS
from benchmarker.schema.profile import Profile
from benchmarker.schema.roofline import Limits
from benchmarker.workloads.finetune.reading.purposes import (
    FLOAT32_ATTENTION,
    FLOAT32_PRODUCTS,
    LOSS,
    OPTIMIZER,
    has_fused_attention,
    recompute_share,
    seconds_by_purpose,
    unpacking_calls,
)
from benchmarker.workloads.finetune.record import FinetuneDemand, FinetuneRecord

WORTH_SAYING = 0.02
"""Of the kernel time."""
LARGE = 0.05
"""Of the kernel time: an advice rests on it."""


def timed_step(name: str, records: Sequence[FinetuneRecord]) -> Timed | NotExplained:
    """The profiled step, held against the time of undivided steps over all processes."""
    profiled = next((record for record in records if record.profile and record.last_good is not None), None)
    if profiled is None or profiled.profile is None or profiled.last_good is None:
        return NotExplained(name, why_no_profile(records))
    position = profiled.last_good
    key, cell = keys_of(profiled)[position], profiled.cells[position]
    medians = [
        statistics.median(sample.latency_s for sample in repeat_cell.samples)
        for record in records
        for repeat_cell, repeat_key in zip(record.cells, keys_of(record), strict=True)
        if repeat_key == key and repeat_cell.status == "ok" and repeat_cell.samples
    ]
    return Timed(
        record=profiled,
        phase=step_phase(profiled.profile),
        total_s=statistics.median(medians),
        cell=key,
        floor=floor_of_step(cell.demand, profiled.limits),
        units=cell.batch_size * cell.seq_len * cell.accumulate,
        notes=tuple(_notes(profiled, profiled.profile)),
        parts={**PARTS, FLOAT32_ATTENTION: FLOAT32_ATTENTION, LOSS: "loss", OPTIMIZER: "optimizer"},
        floors={"bytes": "moving the bytes", "flops": "linear layers at the measured rate"},
        products=("matmul", "quantized matmul", FLOAT32_PRODUCTS),
        advice=ADVICE,
        loaded=profiled.load,
    )


def step_phase(profile: Profile) -> Phase:
    """One step by purpose."""
    phase, purposes = phase_of(profile), seconds_by_purpose(profile)
    # On a CPU what the host does around operators is no operator's time.
    host_s = purposes.pop("bookkeeping", 0.0)
    busy_s = profile.busy_s - (host_s if profile.by == "cpu" else 0.0)
    return replace(phase, categories=cast("Any", purposes), busy_s=max(busy_s, 0.0))


def floor_of_step(demand: FinetuneDemand | None, limits: Limits | None) -> Floor | None:
    """The least time of the linear layers' products; None where the rate was not measured."""
    if demand is None or limits is None:
        return None
    return Floor(demand.linear_flops / limits.matmul_flops_per_s, "flops")


def shares_of_kernels(profile: Profile) -> dict[str, float]:
    """Part of all kernel time by purpose."""
    purposes = seconds_by_purpose(profile)
    total_s = sum(purposes.values())
    return {name: time_s / total_s for name, time_s in purposes.items()} if total_s else {}


def float32_share(profile: Profile) -> float:
    """Part of all kernel time that multiplies in float32."""
    shares = shares_of_kernels(profile)
    return shares.get(FLOAT32_PRODUCTS, 0.0) + shares.get(FLOAT32_ATTENTION, 0.0)


def _notes(record: FinetuneRecord, profile: Profile) -> list[str]:
    """What the parts do not say: float32, unpacking, recomputing, and whether the recipe learns."""
    shares, what = shares_of_kernels(profile), "kernel time" if profile.by == "device" else "operators' time"
    notes = []
    singles = float32_share(profile)
    if singles >= WORTH_SAYING:
        dtypes = record.built.dtypes if record.built else None
        types = (
            f" (the output layer multiplies {dtypes.head_input}, attention {dtypes.attention_query})" if dtypes else ""
        )
        notes.append(
            f"{percent(singles)} of the {what} is products and attention in float32, without tensor cores{types}"
        )
    if record.variant.attention == "sdpa" and profile.by == "device" and not has_fused_attention(profile):
        notes.append(
            "no fused kernel computes attention: scores are written to memory, and its products count among the others"
        )
    if record.built and record.built.dequantize_calls:
        notes.append(_unpacking_words(record, profile, shares.get("dequantize", 0.0), what))
    again = recompute_share(profile)
    if again >= WORTH_SAYING:
        notes.append(f"{percent(again)} of the {what} computes forward passes again, for gradient checkpointing")
    if record.learned:
        notes.append(_learned_words(record))
    return notes


def _unpacking_words(record: FinetuneRecord, profile: Profile, share: float, what: str) -> str:
    assert record.built is not None
    calls, expected = unpacking_calls(profile), record.built.dequantize_calls or 0
    times = 3 if record.variant.checkpointing == "all" else 2
    agree = f"{times} for each weight" if calls == expected else f"where {expected:,} were expected"
    return f"dequantizing is {percent(share)} of the {what}: {calls:,} calls, {agree}"


def _learned_words(record: FinetuneRecord) -> str:
    """The mean drop beside twice its standard error."""
    learned = record.learned
    assert learned is not None
    drops = [learned.before - after for after in learned.after]
    mean = statistics.fmean(drops)
    error = statistics.stdev(drops) / len(drops) ** 0.5 if len(drops) > 1 else 0.0
    verdict = "it learns" if mean > 2 * error else "no more than its noise"
    return (
        f"loss on text that it was not trained on: {learned.before:.3f} before, {learned.before - mean:.3f} after "
        f"{learned.steps} steps (mean of {len(drops)} seeds, drop {mean:.3f} ± {2 * error:.3f}): {verdict}"
    )


def _variant(case: Case) -> Any:
    return cast("FinetuneRecord", case.record).variant


def _switch(case: Case) -> str | None:
    """The switch of the recipe that saves most of what the kernels do; None where none saves much."""
    profile = case.record.profile
    if profile is not None and float32_share(profile) >= LARGE and _variant(case).base != "plain":
        return (
            f"Keep norms and output layer in 16 bit ({code('--prepare keep')}, the recipe qlora-bf16): products and "
            "attention then run on the tensor cores, and activations take half the bytes."
        )
    if profile is not None and recompute_share(profile) >= LARGE:
        return f"Where memory allows it, {code('--checkpointing none')} saves computing the forward passes again."
    return None


def _products(case: Case) -> str:
    """What makes the products slower than their arithmetic."""
    larger = "Larger batches or longer sequences make larger products, which run nearer to the measured rate."
    return _switch(case) or larger


def _dequantizing(case: Case) -> str:
    again = f" {code('--checkpointing none')} unpacks each weight twice a step and not three times." * (
        _variant(case).checkpointing == "all"
    )
    return f"Unpacking costs the same for any number of tokens: a larger batch spreads it.{again}"


def _between(case: Case) -> str:
    """What is between the products: norms, activations, copies and casts."""
    return _switch(case) or PLAIN_ADVICE["small kernels"](case)


ADVICE: Mapping[Bound, Callable[[Case], str]] = {
    "host": lambda case: "Fewer launches help: a larger batch or longer sequences do the same work in as many of them.",
    "compute": lambda case: "It is near what the arithmetic units allow: only fewer tokens or weights make it faster.",
    "slow products": _products,
    "dequantizing": _dequantizing,
    "small kernels": _between,
    "copies": _between,
    "attention/KV": _between,
}
