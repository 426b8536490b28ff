"""Time per unit by purpose, from a profile or from a printed table."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace

from benchmarker.explain.values import Ceiling, Conversion, Floor, NotExplained, Phase
from benchmarker.explain.waterfall import Timed
from benchmarker.profiling.categories import Category, category, seconds_by_category
from benchmarker.profiling.printed_table import ProfilerTable, TableRow
from benchmarker.schema.record import Demand, Kernel, Limits, Profile, RunRecord

CONVERSION_SHARE = 0.15
FEWEST_PRODUCTS = 8
"""Number of matrix products from which equal numbers of calls are no coincidence."""
FINEST_S = 1e-9
"""Finest printed time, one nanosecond. Smaller remainders are rounding errors."""
SAME_NUMBER = 0.10
"""Largest difference of the numbers of copies and products, allowing for the output layer and the prompt's kernels."""


def phase_of(profile: Profile, *, units: int = 1) -> Phase:
    return _phase(profile, profile.kernels, tokens=units, busy_s=profile.busy_s, profiled_s=profile.latency_s / units)


def section_phase(profile: Profile, name: str, *, units: int = 1) -> Phase | None:
    section = profile.sections.get(name)
    if section is None:
        return None
    kernels = [
        Kernel(name=kernel.name, calls=time.calls, total_s=time.total_s if time.alone_s is None else time.alone_s)
        for kernel in profile.kernels
        if (time := kernel.sections.get(name))
    ]
    return _phase(
        profile,
        kernels,
        tokens=units,
        busy_s=section.busy_s,
        profiled_s=section.span_s / units if section.span_s is not None else None,
        launches=section.launches / units if section.launches is not None else None,
    )


def _phase(
    profile: Profile,
    kernels: Iterable[Kernel],
    *,
    tokens: int,
    busy_s: float,
    profiled_s: float | None,
    launches: float | None = None,
) -> Phase:
    longest_first = tuple(sorted(kernels, key=lambda kernel: (-kernel.total_s, kernel.name)))
    categories = _by_category(longest_first, tokens)
    return Phase(
        by=profile.by,
        is_decode=False,
        tokens=tokens,
        # Creating views is the host's time between operators.
        busy_s=busy_s / tokens - categories.pop("bookkeeping", 0.0),
        categories=categories,
        kernels=longest_first,
        profiled_s=profiled_s,
        launches=launches,
    )


def _by_category(kernels: Iterable[Kernel], tokens: int) -> dict[Category, float]:
    spent = seconds_by_category((kernel.name, kernel.total_s) for kernel in kernels)
    return {purpose: total_s / tokens for purpose, total_s in spent.items()}


def unpacking(phase: Phase, conversion: Conversion | None) -> Phase:
    """Return the phase with the copy that converts each weight counted as unpacking, whatever its name."""
    if conversion is None:
        return phase
    copies_s = phase.categories.get("copy/cast", 0.0)
    converting_s = min(conversion.kernel.total_s / phase.tokens, copies_s)
    moved: dict[Category, float] = {
        "copy/cast": copies_s - converting_s,
        "dequantize": phase.categories.get("dequantize", 0.0) + converting_s,
    }
    return replace(phase, categories=phase.categories | moved)


def table_phase(table: ProfilerTable, tokens: int) -> Phase:
    """Return the phase of a printed table. With `tokens` 1, if their number is unknown, only shares are correct."""
    rows = sorted(table.listed, key=table.own_s, reverse=True)
    kernels = tuple(Kernel(name=row.name, calls=row.calls, total_s=table.own_s(row)) for row in rows)
    categories = _by_category(kernels, tokens)
    views_s = categories.pop("bookkeeping", 0.0) if table.by == "cpu" else 0.0
    left_s = table.total_s - table.listed_s
    return Phase(
        by=table.by,
        is_decode=False,
        tokens=tokens,
        # The sum is the busy time if all kernels ran on one stream; with more streams the busy time can only be less.
        busy_s=table.total_s / tokens - views_s,
        categories=categories,
        kernels=kernels,
        profiled_s=table.span_s / tokens if table.span_s else None,
        not_listed_s=left_s / tokens if left_s > FINEST_S else 0.0,
    )


def conversion_of(phase: Phase) -> Conversion | None:
    """Return the copy of each weight before it is multiplied, if there is one.

    A cast of activations takes one or two microseconds. A copy kernel that runs as often as there are matrix products
    and takes this share of the time copies their weights.
    """
    copies = [kernel for kernel in phase.kernels if category(kernel.name) == "copy/cast"]
    # A product split along its inner dimension ends in a second kernel that adds up.
    products = sum(
        kernel.calls
        for kernel in phase.kernels
        if category(kernel.name) == "matmul" and "reduce" not in kernel.name.lower()
    )
    return _conversion(copies, products, phase.kernel_s * phase.tokens)


def table_conversion(table: ProfilerTable) -> Conversion | None:
    if table.by == "cpu" or not table.operators:
        return conversion_of(table_phase(table, tokens=1))
    products = max((row.calls for row in table.operators if row.name in ("aten::mm", "aten::addmm")), default=0)
    copies = [
        Kernel(name=row.name, calls=row.calls, total_s=row.self_device_s or 0.0)
        for row in table.kernels
        if category(row.name) == "copy/cast" or _is_of_a_copy(row, table)
    ]
    return _conversion(copies, products, table.total_s)


def _conversion(copies: Iterable[Kernel], products: int, kernel_s: float) -> Conversion | None:
    for kernel in copies:
        is_one_for_one = products >= FEWEST_PRODUCTS and abs(kernel.calls - products) <= SAME_NUMBER * products
        if is_one_for_one and kernel.total_s >= CONVERSION_SHARE * kernel_s:
            return Conversion(kernel, kernel.total_s / kernel_s)
    return None


def _is_of_a_copy(kernel: TableRow, table: ProfilerTable) -> bool:
    own_s = kernel.self_device_s or 0.0
    not_listed_s = table.total_s - sum(row.self_device_s or 0.0 for row in table.operators)
    able = [row for row in table.operators if (row.self_device_s or 0.0) >= own_s]
    return not_listed_s < own_s and len(able) == 1 and category(able[0].name) == "copy/cast"


def floor_of(demand: Demand | None, limits: Limits | None) -> Floor | None:
    if demand is None or limits is None or (demand.bytes is None and demand.flops is None):
        return None
    return Floor(*demand.floor(limits))


def timed_call(name: str, records: Sequence[RunRecord]) -> Timed | NotExplained:
    profiled = next((record for record in records if record.profile and record.last_good is not None), None)
    if profiled is None or profiled.profile is None or profiled.last_good is None:
        return NotExplained(name, why_no_profile(records))
    cell = profiled.cells[profiled.last_good]
    return Timed(
        record=profiled,
        phase=phase_of(profiled.profile),
        total_s=statistics.median(sample.latency_s for sample in cell.samples),
        floor=floor_of(cell.demand, profiled.limits),
    )


def why_no_profile(records: Sequence[RunRecord]) -> str:
    reason = next((record.no_profile.reason for record in records if record.no_profile), None)
    return reason or "it has no profile: left out, or the run ended before it"


def rate_in_graph(phase: Phase, limits: Limits | None, *, units: int) -> Ceiling:
    """Return a range of units per second if the host never delayed the device, as in a replayed graph.

    The upper end is units / busy, the lower end units / (busy + kernels * time of an empty kernel in a replayed
    graph). The time of an empty kernel contains the cost of a graph node, of which two real kernels hide a part: eight
    graphs took 0.11 to 0.45 us per kernel, and an empty kernel takes 0.53 to 0.79 us (results/reference/h100-runtimes
    and h200-runtimes).
    """
    if limits is None or limits.graph_kernel_s is None:
        return Ceiling(units / phase.busy_s, None)
    longest_s = phase.busy_s + phase.kernel_calls * limits.graph_kernel_s
    return Ceiling(units / phase.busy_s, units / longest_s)
