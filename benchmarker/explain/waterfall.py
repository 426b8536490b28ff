"""A unit's time as a sum: the floor of its products, and all other time.

    time = floor + (products - floor) + unpacking + attention + norms + copies + ... + (time - busy)

Kernel times come from the profiled repeat, the time from repeats without the profiler, which slows the host by half or
more. The parts are never negative and add up to the time by two rules:

- If kernels ran at once, those between the products waited: the shared time is subtracted from them first, then from
the excess of the products. (Records with times of kernels alone share none.)
- If kernels took longer than the unit itself, the profiler slowed them: all are shortened by one factor.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarker.explain.values import Floor, Part, Phase, Share, ShareName, Waterfall

FLOORS = {"bytes": "moving the bytes", "flops": "arithmetic at the measured rate"}
"""Name of the floor by its kind."""
PARTS: Mapping[str, str] = {
    "dequantize": "dequantizing",
    "attention": "attention",
    "KV update": "KV cache",
    "linear attention": "linear attention",
    "convolution": "linear attention",
    "norm": "norms, rotary, elementwise",
    "rotary": "norms, rotary, elementwise",
    "elementwise": "norms, rotary, elementwise",
    "copy/cast": "copies and casts",
    "sampling": "sampling",
    "communication": "communication",
    "optimizer": "optimizer",
    "other": "other",
}
"""Name of the part of each category. Those of `matmul` are the products."""
PRODUCTS = ("matmul", "quantized matmul")
GAPS = "gaps (launches, host)"
LABELS: Mapping[ShareName, str] = {
    "excess": "products above the floor",
    "products": "matrix products",
    "unpacking": "unpacking",
    "between": "between products",
    "not listed": "not in the table",
    "gaps": "gaps",
}
UNEXPLAINED = 0.01
"""Largest remainder of the sum that is not shown."""

Times = dict[tuple[str, ShareName], float]


def waterfall(
    phase: Phase,
    *,
    total_s: float,
    floor: Floor | None = None,
    parts: Mapping[str, str] = PARTS,
    floors: Mapping[str, str] = FLOORS,
    products: tuple[str, ...] = PRODUCTS,
) -> Waterfall:
    """Return the parts in their order, without empty ones.

    Args:
        total_s: Time of a unit without the profiler.
        floor: None makes the products one part.
        parts: Name of each category's part. Missing categories are `other`.
        floors: Name of the floor by its kind.
        products: Categories of the floor.
    """
    slowed = max(1.0, phase.busy_s / total_s)
    busy_s = phase.busy_s / slowed
    categories = {str(name): seconds / slowed for name, seconds in phase.categories.items()}
    products_s = sum(categories.pop(name, 0.0) for name in products)
    between: Times = {}
    for name, part in parts.items():
        key: tuple[str, ShareName] = (part, "unpacking" if name == "dequantize" else "between")
        between[key] = between.get(key, 0.0) + categories.pop(name, 0.0)
    rest: tuple[str, ShareName] = ("other", "between")
    between[rest] = between.get(rest, 0.0) + sum(categories.values())
    overlap_s = max(0.0, phase.kernel_s / slowed - busy_s)
    waiting_s = sum(seconds for (_, share), seconds in between.items() if share == "between")
    alone = max(0.0, 1 - overlap_s / waiting_s) if waiting_s else 1.0
    between = {key: seconds * (alone if key[1] == "between" else 1.0) for key, seconds in between.items()}
    products_s -= min(max(0.0, overlap_s - waiting_s), products_s)
    times = _products(products_s, floor, floors) | between
    times["not in the table", "not listed"] = phase.not_listed_s / slowed
    times[GAPS, "gaps"] = max(0.0, total_s - busy_s)
    rest_s = total_s - sum(times.values())
    if abs(rest_s) > UNEXPLAINED * total_s:
        times["unexplained", "between"] = rest_s
    return Waterfall(
        total_s=total_s,
        parts=tuple(Part(name, share, seconds) for (name, share), seconds in times.items() if seconds),
        busy_share=phase.busy_s / total_s,
        slow_down=phase.profiled_s / total_s if phase.profiled_s is not None else None,
    )


def shares_of(fall: Waterfall, floor: Floor | None = None) -> tuple[Share, ...]:
    """Return the parts by kind, without empty ones. They add up to the unit's time."""
    names: dict[ShareName, float] = {}
    least = next((part.name for part in fall.parts if part.share == "floor"), "")
    for part in fall.parts:
        names[part.share] = names.get(part.share, 0.0) + part.seconds
    return tuple(
        Share(
            name=name,
            label=LABELS.get(name, f"{least} (the floor)"),
            seconds=seconds,
            avoidable_s=seconds * (floor.fewer if floor else 0.0) if name == "floor" else seconds,
            of_total=seconds / fall.total_s,
        )
        for name, seconds in names.items()
    )


def _products(products_s: float, floor: Floor | None, floors: Mapping[str, str]) -> Times:
    if floor is None:
        return {("matrix products", "products"): products_s}
    # A small model's weights stay in the cache, and are read faster than from memory.
    least_s = min(products_s, floor.seconds)
    return {
        (floors[floor.by], "floor"): least_s,
        ("matrix products beyond that", "excess"): products_s - least_s,
    }
