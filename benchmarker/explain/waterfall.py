"""A token's time as a sum: what reading the weights takes at best, and everything that comes on top.

    TPOT = weight bytes / bandwidth + (matrix products - that) + dequantizing + attention + ... + (TPOT - busy)

Kernel times are the profiled generation's, TPOT is not: the profiler slows the host by half or more, so the gaps that
it shows are its own doing. What the parts do not add up to is a part as well, and has its own name.
"""

from __future__ import annotations

from benchmarker.explain.values import Part, PartName, Phase, Waterfall
from benchmarker.profiling.categories import Category
from benchmarker.schema.roofline import Limits
from benchmarker.workloads.generation.record import GenerationDemand

UNEXPLAINED = 0.01
"""Parts add up to the measured time within this, or the remainder is shown."""

_OF_CATEGORY: dict[Category, PartName] = {
    "dequantize": "dequantizing",
    "attention": "attention",
    "KV update": "KV cache",
    "norm": "norms, rotary, elementwise",
    "rotary": "norms, rotary, elementwise",
    "elementwise": "norms, rotary, elementwise",
    "copy/cast": "copies and casts",
    "sampling": "sampling",
    "communication": "communication",
    "other": "other",
}


def waterfall(
    phase: Phase, *, total_s: float, demand: GenerationDemand | None = None, limits: Limits | None = None
) -> Waterfall:
    """The parts in their order, those that are nothing left out.

    Args:
        total_s: A token's time without the profiler.
        demand: What the work cannot do without, and the device's limits; without them the ideal time of the matrix
            products is not known, and they are one part.
    """
    seconds: dict[PartName, float] = dict(_products(phase, demand, limits))
    for category, name in _OF_CATEGORY.items():
        seconds[name] = seconds.get(name, 0.0) + phase.categories.get(category, 0.0)
    seconds["not in the table"] = phase.not_listed_s
    seconds["gaps (launches, host)"] = max(0.0, total_s - phase.busy_s)
    # On several streams, or each launched while the one before it ends.
    overlap_s = phase.kernel_s - phase.busy_s
    if overlap_s > UNEXPLAINED * total_s:
        seconds["kernels at once"] = -overlap_s
    left_s = total_s - sum(seconds.values())
    if abs(left_s) > UNEXPLAINED * total_s:
        seconds["unexplained"] = left_s
    return Waterfall(
        total_s=total_s,
        parts=tuple(Part(name, value) for name, value in seconds.items() if value),
        busy_share=phase.busy_s / total_s,
        slow_down=phase.profiled_s / total_s if phase.profiled_s is not None else None,
    )


def _products(phase: Phase, demand: GenerationDemand | None, limits: Limits | None) -> list[tuple[PartName, float]]:
    products_s = phase.categories.get("matmul", 0.0) + phase.categories.get("quantized matmul", 0.0)
    if demand is None or limits is None:
        return [("matrix products", products_s)]
    # A small model's weights stay in the cache, and are read faster than from memory.
    ideal_s = min(products_s, demand.weight_bytes / limits.bytes_per_s)
    return [("reading the weights", ideal_s), ("matrix products beyond that", products_s - ideal_s)]
