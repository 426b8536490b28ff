"""Seconds per unit of work by category of kernel, from a profile or from a printed table.

The unit of work is a call, a training step, or a token: one decode step, which yields one token for every sequence of
the batch. If a record or log does not separate prefill and decode, a token is an equal share of the generation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from benchmarker.profiling.kernel_categories import Category, category, seconds_by_category
from benchmarker.profiling.printed_table import ProfilerTable, TableRow
from benchmarker.schema.model import LoadFacts
from benchmarker.schema.record import Kernel, Limits, Profile

COMPILED_CAST = re.compile(r"triton_poi_fused_\d+")
"""Kernels of inductor that convert int8 weights: the cast is added by a decomposition, so the name has no operator."""
CONVERSION_SHARE = 0.15
FEWEST_PRODUCTS = 8  # Smallest number of matrix products at which an equal number of copies is no coincidence.
FINEST_S = 1e-9  # Finest printed time, one nanosecond. Smaller remainders are rounding errors.
SAME_NUMBER = 0.10
"""Largest relative difference between the numbers of copies and products. The output layer and prefill add some."""


@dataclass(frozen=True)
class Phase:
    by: Literal["device", "cpu"]
    is_decode: bool
    tokens: int  # Number of units of work, of any kind, over which `kernels` are summed.
    busy_s: float  # Seconds per unit in which a kernel ran; on CPU the operators' own time, without bookkeeping.
    categories: dict[Category, float]  # Seconds per unit by purpose. Overlapping kernels are each counted in full.
    kernels: tuple[Kernel, ...]  # Calls and seconds of each kernel over all units, longest first.
    profiled_s: float | None
    not_listed_s: float = 0.0
    launches: float | None = None

    @property
    def kernel_s(self) -> float:
        return sum(self.categories.values()) + self.not_listed_s

    @property
    def what(self) -> str:
        return "kernel time" if self.by == "device" else "operators' time"

    @property
    def kernel_calls(self) -> float:
        return sum(kernel.calls for kernel in self.kernels) / self.tokens

    def seconds(self, *categories: Category) -> float:
        return sum(self.categories.get(category, 0.0) for category in categories)

    def share(self, *categories: Category) -> float:
        return self.seconds(*categories) / self.kernel_s if self.kernel_s else 0.0


@dataclass(frozen=True)
class Conversion:
    """Kernel that converts weights before they are multiplied: dequantization under another name."""

    kernel: Kernel
    share: float
    category: Category = "copy/cast"  # Category in which `Phase` counts the kernel.


@dataclass(frozen=True)
class Ceiling:
    """Range of the rate at which the profiled kernels would run if they did not wait for the host."""

    per_s: float
    least_per_s: float | None  # Lower end: an empty kernel's time is added per kernel; None if not measured.


def phase_of(profile: Profile, *, units: int = 1) -> Phase:
    return _phase(profile.by, profile.kernels, units, busy_s=profile.busy_s, profiled_s=profile.latency_s / units)


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
        profile.by,
        kernels,
        units,
        busy_s=section.busy_s,
        profiled_s=section.span_s / units if section.span_s is not None else None,
        launches=section.launches / units if section.launches is not None else None,
    )


def table_phase(table: ProfilerTable, tokens: int) -> Phase:
    """Return the phase of a printed table. If the number of tokens is unknown, pass 1: only shares are correct then."""
    left_s = table.total_s - table.listed_s
    return _phase(
        table.by,
        [Kernel(name=row.name, calls=row.calls, total_s=table.own_s(row)) for row in table.listed],
        tokens,
        # The sum of kernel times is the busy time if all kernels ran on one stream, and else an upper limit of it.
        busy_s=table.total_s,
        profiled_s=table.span_s / tokens if table.span_s else None,
        not_listed_s=left_s / tokens if left_s > FINEST_S else 0.0,
    )


def _phase(
    by: Literal["device", "cpu"],
    kernels: Iterable[Kernel],
    tokens: int,
    *,
    busy_s: float,
    profiled_s: float | None,
    not_listed_s: float = 0.0,
    launches: float | None = None,
) -> Phase:
    longest_first = tuple(sorted(kernels, key=lambda kernel: (-kernel.total_s, kernel.name)))
    spent = seconds_by_category((kernel.name, kernel.total_s) for kernel in longest_first)
    categories = {purpose: total_s / tokens for purpose, total_s in spent.items()}
    # On a CPU, operators that only create views do no work: their time counts as gaps between operators.
    views_s = categories.pop("bookkeeping", 0.0) if by == "cpu" else 0.0
    busy_s = busy_s / tokens - views_s
    return Phase(by, False, tokens, busy_s, categories, longest_first, profiled_s, not_listed_s, launches)


def unpacking(phase: Phase, conversion: Conversion | None) -> Phase:
    """Return the phase with the time of `conversion` moved from its category to `dequantize`."""
    if conversion is None:
        return phase
    before_s = phase.categories.get(conversion.category, 0.0)
    converting_s = min(conversion.kernel.total_s / phase.tokens, before_s)
    moved: dict[Category, float] = {
        conversion.category: before_s - converting_s,
        "dequantize": phase.categories.get("dequantize", 0.0) + converting_s,
    }
    return replace(phase, categories=phase.categories | moved)


def conversion_of(phase: Phase, load: LoadFacts | None = None) -> Conversion | None:
    """Return the kernel that converts each weight before it is multiplied: a copy kernel that runs as often as the
    matrix products and takes at least 15 % of the time, or, of quantized weights, inductor's pointwise kernels without
    an operator in their names, added up. None if there is no such kernel."""
    copies = [kernel for kernel in phase.kernels if category(kernel.name) == "copy/cast"]
    # A product split along its inner dimension (split-K) has a second kernel, which adds up the parts.
    products = sum(
        kernel.calls
        for kernel in phase.kernels
        if category(kernel.name) == "matmul" and "reduce" not in kernel.name.lower()
    )
    kernel_s = phase.kernel_s * phase.tokens
    is_quantized = load is not None and load.quantized_fraction
    casts = [kernel for kernel in phase.kernels if is_quantized and COMPILED_CAST.fullmatch(kernel.name)]
    casts_s, calls = sum(kernel.total_s for kernel in casts), sum(kernel.calls for kernel in casts)
    if casts and casts_s >= CONVERSION_SHARE * kernel_s:
        return Conversion(Kernel(name=casts[0].name, calls=calls, total_s=casts_s), casts_s / kernel_s, "elementwise")
    return _conversion(copies, products, kernel_s)


def table_conversion(table: ProfilerTable) -> Conversion | None:
    operators = table.of_kind("operator")
    if table.by == "cpu" or not operators:
        return conversion_of(table_phase(table, tokens=1))
    products = max((row.calls for row in operators if row.name in ("aten::mm", "aten::addmm")), default=0)
    copies = [
        Kernel(name=row.name, calls=row.calls, total_s=row.self_device_s or 0.0)
        for row in table.of_kind("kernel")
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
    own_s, operators = kernel.self_device_s or 0.0, table.of_kind("operator")
    not_listed_s = table.total_s - sum(row.self_device_s or 0.0 for row in operators)
    able = [row for row in operators if (row.self_device_s or 0.0) >= own_s]
    return not_listed_s < own_s and len(able) == 1 and category(able[0].name) == "copy/cast"


def rate_in_graph(phase: Phase, limits: Limits | None, *, units: int) -> Ceiling:
    """Return the upper and lower limit of units per second in a replayed CUDA graph: units / busy, and units /
    (busy + kernels * t) with t the time of an empty kernel in a graph. Eight graphs took 0.11 to 0.45 us more per
    kernel than busy, and t is 0.53 to 0.79 us (results/reference/h100-runtimes and h200-runtimes)."""
    if limits is None or limits.graph_kernel_s is None:
        return Ceiling(units / phase.busy_s, None)
    longest_s = phase.busy_s + phase.kernel_calls * limits.graph_kernel_s
    return Ceiling(units / phase.busy_s, units / longest_s)
