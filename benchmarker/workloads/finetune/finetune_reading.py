"""Evaluation of the records of finetune: the purpose of each kernel, and the floor of a training step's time.

    floor = (linear layers' FLOPs of the step) / (the matmul rate measured in the same process)

The floor does not contain the FLOPs that gradient checkpointing repeats to save memory. Kernels of the optimizer and of
recomputation are identified by their section of the profile; kernels of the loss by name, because attention also has a
softmax. float32 products and float32 attention, which run without tensor cores, are separate purposes.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

from benchmarker.comparison.roofline import floor_of
from benchmarker.comparison.rows import cell_of, keys_of
from benchmarker.core.formatting import percent
from benchmarker.core.tables import code
from benchmarker.explain.phases import Phase, phase_of
from benchmarker.explain.verdict import ADVICE as DEFAULT_ADVICE
from benchmarker.explain.waterfall import PARTS, Advice, NotExplained, Timed, timed_profile
from benchmarker.profiling.kernel_categories import is_float32, shares
from benchmarker.schema.record import Demand, Profile, median_latency_s
from benchmarker.workloads.finetune.record import FinetuneRecord, Learned
from benchmarker.workloads.training_step import RECOMPUTE

FLOAT32_PRODUCTS = "products in float32"
FLOAT32_ATTENTION = "attention in float32"
LOSS = "loss"
OPTIMIZER = "optimizer"
_LOSS = re.compile(r"(?i)cunn_SoftMax|log_?softmax|nll_?loss|cross_?entropy")
_AUTOGRAD = re.compile(r"^autograd::|Backward\d*$|AccumulateGrad$|^torch::")
"""Names of autograd's bookkeeping in the profile of a CPU."""


def seconds_by_purpose(profile: Profile) -> dict[str, float]:
    """Return the seconds by purpose. On a GPU, time in which kernels overlap counts for the earlier kernel only."""
    totals: dict[str, float] = defaultdict(float)
    for name, section, time_s in _kernel_sections(profile):
        for purpose, share in purposes(name, section, on_device=profile.by == "device").items():
            totals[purpose] += share * time_s
    return dict(totals)


def purposes(name: str, section: str, *, on_device: bool) -> dict[str, float]:
    """Return the purposes of a kernel and the share of its time for each; the shares add up to 1."""
    if section == "optimizer":
        return {OPTIMIZER: 1.0}
    if _LOSS.search(name):
        return {LOSS: 1.0}
    if not on_device and _AUTOGRAD.search(name):
        return {"bookkeeping": 1.0}
    # The embedding's gradient sorts token ids with kernels of the category sampling; a training step does not sample.
    renamed = {"sampling": "other"}
    # float32 products are a separate purpose only on a GPU, because only a GPU has slower units for them.
    if on_device and is_float32(name):
        renamed |= {"matmul": FLOAT32_PRODUCTS, "attention": FLOAT32_ATTENTION}
    return {renamed.get(category, str(category)): share for category, share in shares(name).items()}


def share_of(profile: Profile, *names: str) -> float:
    spent = seconds_by_purpose(profile)
    total_s = sum(spent.values())
    return sum(spent.get(name, 0.0) for name in names) / total_s if total_s else 0.0


def float32_share(profile: Profile) -> float:
    return share_of(profile, FLOAT32_PRODUCTS, FLOAT32_ATTENTION)


def recompute_share(profile: Profile) -> float:
    times = [(section, time_s) for _, section, time_s in _kernel_sections(profile)]
    repeated_s = sum(time_s for section, time_s in times if section == RECOMPUTE)
    return repeated_s / sum(time_s for _, time_s in times) if repeated_s else 0.0


def has_fused_attention(profile: Profile) -> bool:
    """Return True if one kernel computes all of attention. A separate softmax kernel indicates eager attention."""
    return any(
        shares(kernel.name).get("attention") and "softmax" not in kernel.name.lower() and not _LOSS.search(kernel.name)
        for kernel in profile.kernels
    )


def unpacking_calls(profile: Profile) -> int:
    return sum(kernel.calls for kernel in profile.kernels if shares(kernel.name).get("dequantize"))


def _kernel_sections(profile: Profile) -> Iterator[tuple[str, str, float]]:
    """Yield (kernel name, section, seconds) for each kernel and section; '' is the time outside of all sections."""
    for kernel in profile.kernels:
        rest_s = kernel.total_s
        for section, time in kernel.sections.items():
            rest_s -= time.total_s
            yield kernel.name, section, time.total_s if time.alone_s is None else time.alone_s
        if rest_s > 1e-9:
            yield kernel.name, "", rest_s


NOTED_SHARE = 0.02  # Smallest share of the kernel time at which a note mentions a purpose.
ADVISED_SHARE = 0.05  # Smallest share of the kernel time at which there is advice for a purpose.


def timed_step(name: str, records: Sequence[FinetuneRecord]) -> Timed | NotExplained:
    if isinstance(timed := timed_profile(name, records), NotExplained):
        return timed
    record = next(record for record in records if record is timed.record)
    profile, position = cast("Profile", record.profile), cast("int", record.last_good)
    key, cell = keys_of(record)[position], record.cells[position]
    measured = [each for process in records if (each := cell_of(process, key))]
    medians = [median_latency_s(each) for each in measured if each.status == "ok" and each.samples]
    return replace(
        timed,
        phase=step_phase(profile),
        total_s=statistics.median(medians),
        cell=key,
        floor=floor_of(Demand(flops=cell.demand.linear_flops) if cell.demand else None, record.limits),
        units=cell.batch_size * cell.seq_len * cell.accumulate,
        notes=tuple(_notes(record, profile)),
        parts={**PARTS, FLOAT32_ATTENTION: FLOAT32_ATTENTION, LOSS: "loss", OPTIMIZER: "optimizer"},
        floors={"bytes": "moving the bytes", "flops": "linear layers at the measured rate"},
        products=("matmul", "quantized matmul", FLOAT32_PRODUCTS),
        advice=ADVICE,
        loaded=record.load,
    )


def step_phase(profile: Profile) -> Phase:
    phase, purposes = phase_of(profile), seconds_by_purpose(profile)
    # On a CPU, autograd's bookkeeping is time of the host, not of an operator.
    host_s = purposes.pop("bookkeeping", 0.0)
    busy_s = profile.busy_s - (host_s if profile.by == "cpu" else 0.0)
    return replace(phase, categories=cast("Any", purposes), busy_s=max(busy_s, 0.0))


def _notes(record: FinetuneRecord, profile: Profile) -> Iterator[str]:
    time_name = "kernel time" if profile.by == "device" else "operators' time"
    built, in_float32, recomputing = record.built, float32_share(profile), recompute_share(profile)
    if in_float32 >= NOTED_SHARE:
        output, query = (built.dtypes.head_input, built.dtypes.attention_query) if built else (None, None)
        types = f" (the output layer multiplies {output}, attention {query})" if built else ""
        yield (
            f"{percent(in_float32)} of the {time_name} is products and attention in float32, without tensor "
            f"cores{types}"
        )
    if record.variant.attention == "sdpa" and profile.by == "device" and not has_fused_attention(profile):
        yield (
            "no fused kernel computes attention: scores are written to memory, and its products count among the others"
        )
    if built and built.dequantize_calls:
        calls, times = unpacking_calls(profile), 3 if record.variant.checkpointing == "all" else 2
        is_expected = calls == built.dequantize_calls
        yield (
            f"dequantizing is {percent(share_of(profile, 'dequantize'))} of the {time_name}: {calls:,} calls, "
            + (f"{times} per weight" if is_expected else f"but {built.dequantize_calls:,} were expected")
        )
    if recomputing >= NOTED_SHARE:
        yield f"{percent(recomputing)} of the {time_name} repeats forward passes, for gradient checkpointing"
    if record.learned:
        yield _learned_text(record.learned)


def _learned_text(learned: Learned) -> str:
    drops = [learned.before - after for after in learned.after]
    mean = statistics.fmean(drops)
    error = statistics.stdev(drops) / len(drops) ** 0.5 if len(drops) > 1 else 0.0
    verdict = "it learns" if mean > 2 * error else "no more than noise"
    return (
        f"loss on held-out text: {learned.before:.3f} before, {learned.before - mean:.3f} after {learned.steps} steps "
        f"(mean of {len(drops)} seeds, drop {mean:.3f} ± {2 * error:.3f}): {verdict}"
    )


def _switch_advice(timed: Timed) -> str | None:
    record = cast("FinetuneRecord", timed.record)
    if record.profile and float32_share(record.profile) >= ADVISED_SHARE and record.variant.base != "plain":
        return (
            f"Keep norms and output layer in 16 bit ({code('--prepare keep')}, the recipe qlora-bf16): products and "
            "attention then run on the tensor cores, and activations take half the bytes."
        )
    if record.profile and recompute_share(record.profile) >= ADVISED_SHARE:
        return f"If memory allows it, {code('--checkpointing none')} saves repeating the forward passes."
    return None


def _dequantizing_advice(timed: Timed) -> str:
    is_repeated = cast("FinetuneRecord", timed.record).variant.checkpointing == "all"
    fewer = f" {code('--checkpointing none')} dequantizes each weight twice a step instead of three times."
    return f"Dequantizing costs the same for any number of tokens: a larger batch amortizes it.{fewer * is_repeated}"


def _between_advice(timed: Timed) -> str:
    return _switch_advice(timed) or DEFAULT_ADVICE["small kernels"]


LARGER = "Larger batches or longer sequences make larger products, which run closer to the measured rate."
ADVICE: Advice = {
    "host": "Fewer launches help: a larger batch or longer sequences do more work per launch.",
    "compute": "It is near the limit of the arithmetic units: only fewer tokens or weights make it faster.",
    "slow products": lambda timed: _switch_advice(timed) or LARGER,
    "dequantizing": _dequantizing_advice,
    "small kernels": _between_advice,
    "copies": _between_advice,
    "attention/KV": _between_advice,
}
