"""Reading of the records of finetune: the purposes of a step's kernels, and the limit of a training step.

    floor = (linear layers' FLOPs of the step) / (the matmul rate measured in the same process)

FLOPs that gradient checkpointing repeats are not in the floor: they are the price of memory. The optimizer and
recomputation are identified by their section of the profile; the loss by its kernels' names, since its softmax is not
attention's. float32 products and float32 attention, which run without tensor cores, are separate purposes.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from benchmarker.comparison.rows import keys_of
from benchmarker.core.formatting import percent
from benchmarker.core.tables import code
from benchmarker.explain.case import ADVICE as DEFAULT_ADVICE
from benchmarker.explain.case import Case, Timed, always, why_no_profile
from benchmarker.explain.phases import phase_of
from benchmarker.explain.values import Bound, Floor, NotExplained, Phase
from benchmarker.explain.waterfall import PARTS
from benchmarker.profiling.categories import is_float32, shares
from benchmarker.schema.record import Limits, Profile
from benchmarker.workloads.finetune.record import FinetuneDemand, FinetuneFacts, FinetuneRecord, Learned
from benchmarker.workloads.training.record import RECOMPUTE

FLOAT32_PRODUCTS = "products in float32"
FLOAT32_ATTENTION = "attention in float32"
LOSS = "loss"
OPTIMIZER = "optimizer"
_LOSS = re.compile(r"(?i)cunn_SoftMax|log_?softmax|nll_?loss|cross_?entropy")
_AUTOGRAD = re.compile(r"^autograd::|Backward\d*$|AccumulateGrad$|^torch::")
"""Bookkeeping around operators, in a CPU's profile."""


def seconds_by_purpose(profile: Profile) -> dict[str, float]:
    """Return the time of each purpose. On a device it is the time in which no earlier kernel still ran, if recorded."""
    totals: dict[str, float] = defaultdict(float)
    for name, section, time_s in _kernel_sections(profile):
        for purpose, share in purposes(name, section, on_device=profile.by == "device").items():
            totals[purpose] += share * time_s
    return dict(totals)


def purposes(name: str, section: str, *, on_device: bool) -> dict[str, float]:
    """Return the purposes of a kernel, with shares that add up to 1."""
    if section == "optimizer":
        return {OPTIMIZER: 1.0}
    if _LOSS.search(name):
        return {LOSS: 1.0}
    if not on_device and _AUTOGRAD.search(name):
        return {"bookkeeping": 1.0}
    # The embedding's gradient sorts token ids like sampling, which a training step does not have.
    renamed = {"sampling": "other"}
    # On a CPU, float32 products use the same instructions as others.
    if on_device and is_float32(name):
        renamed |= {"matmul": FLOAT32_PRODUCTS, "attention": FLOAT32_ATTENTION}
    return {renamed.get(category, str(category)): share for category, share in shares(name).items()}


def recompute_share(profile: Profile) -> float:
    """Return the share of all kernel time that repeats forward passes."""
    total_s = sum(time_s for *_, time_s in _kernel_sections(profile))
    recompute_s = sum(time_s for _, section, time_s in _kernel_sections(profile) if section == RECOMPUTE)
    return recompute_s / total_s if total_s else 0.0


def has_fused_attention(profile: Profile) -> bool:
    """Return whether a kernel computes all of attention. A softmax kernel alone belongs to separate products."""
    return any(
        shares(kernel.name).get("attention") and "softmax" not in kernel.name.lower() and not _LOSS.search(kernel.name)
        for kernel in profile.kernels
    )


def unpacking_calls(profile: Profile) -> int:
    """Return the launches of kernels that dequantize weights."""
    return sum(kernel.calls for kernel in profile.kernels if shares(kernel.name).get("dequantize"))


def _kernel_sections(profile: Profile) -> Iterator[tuple[str, str, float]]:
    """Yield name, section and seconds of each kernel in each section; section '' for the time outside of sections."""
    for kernel in profile.kernels:
        rest_s = kernel.total_s
        for section, time in kernel.sections.items():
            rest_s -= time.total_s
            yield kernel.name, section, time.total_s if time.alone_s is None else time.alone_s
        if rest_s > 1e-9:
            yield kernel.name, "", rest_s


NOTED_SHARE = 0.02
"""Share of the kernel time from which a note mentions a purpose."""
ADVISED_SHARE = 0.05
"""Share of the kernel time from which an advice relies on a purpose."""


def timed_step(name: str, records: Sequence[FinetuneRecord]) -> Timed | NotExplained:
    """Return the profiled step with the time of undivided steps over all processes."""
    profiled = next((record for record in records if record.profile and record.last_good is not None), None)
    if profiled is None or profiled.profile is None or profiled.last_good is None:
        return NotExplained(name, why_no_profile(records))
    position = profiled.last_good
    key, cell = keys_of(profiled)[position], profiled.cells[position]
    medians = [
        statistics.median(sample.latency_s for sample in other.samples)
        for record in records
        for other, other_key in zip(record.cells, keys_of(record), strict=True)
        if other_key == key and other.status == "ok" and other.samples
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
    """Return one step by purpose."""
    phase, purposes = phase_of(profile), seconds_by_purpose(profile)
    # On a CPU, bookkeeping around operators is no operator's time.
    host_s = purposes.pop("bookkeeping", 0.0)
    busy_s = profile.busy_s - (host_s if profile.by == "cpu" else 0.0)
    return replace(phase, categories=cast("Any", purposes), busy_s=max(busy_s, 0.0))


def floor_of_step(demand: FinetuneDemand | None, limits: Limits | None) -> Floor | None:
    """Return the least time of the linear layers' products; None without a measured rate."""
    if demand is None or limits is None:
        return None
    return Floor(demand.linear_flops / limits.matmul_flops_per_s, "flops")


def purpose_shares(profile: Profile) -> dict[str, float]:
    """Return the share of each purpose in all kernel time."""
    purposes = seconds_by_purpose(profile)
    total_s = sum(purposes.values())
    return {name: time_s / total_s for name, time_s in purposes.items()} if total_s else {}


def float32_share(profile: Profile) -> float:
    """Return the share of all kernel time that multiplies in float32."""
    shares = purpose_shares(profile)
    return shares.get(FLOAT32_PRODUCTS, 0.0) + shares.get(FLOAT32_ATTENTION, 0.0)


def _notes(record: FinetuneRecord, profile: Profile) -> list[str]:
    """Return notes on float32, dequantization, recomputation, and learning."""
    time_name = "kernel time" if profile.by == "device" else "operators' time"
    notes = []
    in_float32 = float32_share(profile)
    if in_float32 >= NOTED_SHARE:
        dtypes = record.built.dtypes if record.built else None
        types = (
            f" (the output layer multiplies {dtypes.head_input}, attention {dtypes.attention_query})" if dtypes else ""
        )
        notes.append(
            f"{percent(in_float32)} of the {time_name} is products and attention in float32, without tensor "
            f"cores{types}"
        )
    if record.variant.attention == "sdpa" and profile.by == "device" and not has_fused_attention(profile):
        notes.append(
            "no fused kernel computes attention: scores are written to memory, and its products count among the others"
        )
    if record.built and record.built.dequantize_calls:
        share = percent(purpose_shares(profile).get("dequantize", 0.0))
        notes.append(f"dequantizing is {share} of the {time_name}: {_dequantize_calls_text(record, profile)}")
    recomputing = recompute_share(profile)
    if recomputing >= NOTED_SHARE:
        notes.append(f"{percent(recomputing)} of the {time_name} repeats forward passes, for gradient checkpointing")
    if record.learned:
        notes.append(_learned_text(record.learned))
    return notes


def _dequantize_calls_text(record: FinetuneRecord, profile: Profile) -> str:
    calls, expected = unpacking_calls(profile), cast("FinetuneFacts", record.built).dequantize_calls or 0
    times = 3 if record.variant.checkpointing == "all" else 2
    return f"{calls:,} calls, " + (f"{times} per weight" if calls == expected else f"but {expected:,} were expected")


def _learned_text(learned: Learned) -> str:
    """Return the mean drop of the loss with twice its standard error."""
    drops = [learned.before - after for after in learned.after]
    mean = statistics.fmean(drops)
    error = statistics.stdev(drops) / len(drops) ** 0.5 if len(drops) > 1 else 0.0
    verdict = "it learns" if mean > 2 * error else "no more than noise"
    return (
        f"loss on held-out text: {learned.before:.3f} before, {learned.before - mean:.3f} after {learned.steps} steps "
        f"(mean of {len(drops)} seeds, drop {mean:.3f} ± {2 * error:.3f}): {verdict}"
    )


def _record(case: Case) -> FinetuneRecord:
    return cast("FinetuneRecord", case.record)


def _switch_advice(case: Case) -> str | None:
    """Return the switch of the recipe that saves most kernel time; None if none saves much."""
    profile = case.record.profile
    if profile is not None and float32_share(profile) >= ADVISED_SHARE and _record(case).variant.base != "plain":
        return (
            f"Keep norms and output layer in 16 bit ({code('--prepare keep')}, the recipe qlora-bf16): products and "
            "attention then run on the tensor cores, and activations take half the bytes."
        )
    if profile is not None and recompute_share(profile) >= ADVISED_SHARE:
        return f"If memory allows it, {code('--checkpointing none')} saves repeating the forward passes."
    return None


def _products_advice(case: Case) -> str:
    larger = "Larger batches or longer sequences make larger products, which run closer to the measured rate."
    return _switch_advice(case) or larger


def _dequantizing_advice(case: Case) -> str:
    is_checkpointed = _record(case).variant.checkpointing == "all"
    twice = (
        f" {code('--checkpointing none')} dequantizes each weight twice a step instead of three times."
        * is_checkpointed
    )
    return f"Dequantizing costs the same for any number of tokens: a larger batch amortizes it.{twice}"


def _between_advice(case: Case) -> str:
    """Return the advice on norms, activations, copies and casts."""
    return _switch_advice(case) or DEFAULT_ADVICE["small kernels"](case)


ADVICE: Mapping[Bound, Callable[[Case], str]] = {
    "host": always("Fewer launches help: a larger batch or longer sequences do more work per launch."),
    "compute": always("It is near the limit of the arithmetic units: only fewer tokens or weights make it faster."),
    "slow products": _products_advice,
    "dequantizing": _dequantizing_advice,
    "small kernels": _between_advice,
    "copies": _between_advice,
    "attention/KV": _between_advice,
}
