"""Input of a verdict on one variant, and the default advice."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarker.comparison.rows import CellKey
from benchmarker.core.tables import code
from benchmarker.explain.phases import phase_of
from benchmarker.explain.values import (
    Bound,
    Ceiling,
    Conversion,
    Floor,
    NotExplained,
    Phase,
    Share,
    ShareName,
    Waterfall,
)
from benchmarker.explain.waterfall import FLOORS, PARTS, PRODUCTS
from benchmarker.schema.model import LoadFacts
from benchmarker.schema.record import Demand, Limits, RunRecord


@dataclass(frozen=True)
class Timed:
    """Profiled work, with its time without the profiler."""

    record: RunRecord
    """The record with the profile."""
    phase: Phase
    total_s: float
    """Seconds per unit without the profiler, over all processes."""
    cell: CellKey | None = None
    floor: Floor | None = None
    conversion: Conversion | None = None
    mbu: float | None = None
    """Share of the bandwidth that was used, over all processes; None if it was not measured."""
    units: int = 1
    """Units per step: the tokens of a batch."""
    notes: tuple[str, ...] = ()
    before: str | None = None
    """A sentence on the work before the units, such as prefill."""
    form: Mapping[str, str] = field(default_factory=dict)
    """Fields that are shown with the variant's name, such as its engine."""
    parts: Mapping[str, str] = field(default_factory=lambda: PARTS)
    """Name of the waterfall's part by category of kernels."""
    floors: Mapping[str, str] = field(default_factory=lambda: FLOORS)
    """Name of the floor by its kind: `bytes` or `flops`."""
    products: tuple[str, ...] = PRODUCTS
    """Categories of kernels to which the floor applies."""
    advice: Mapping[Bound, Callable[[Case], str]] = field(default_factory=dict)
    """Advice that replaces the default, by bound."""
    loaded: LoadFacts | None = None
    """Facts of loading that prove what ran."""
    replaces_linears: bool = False
    """True if the engine multiplies with other kernels than those of the loaded layers."""
    can_replay: bool = False
    """True if a CUDA graph would remove the launches, so that its ceiling is worth printing."""


@dataclass(frozen=True)
class Case:
    """Input of a verdict."""

    timed: Timed
    phase: Phase
    """Phase in which a copy that converts each weight counts as unpacking."""
    waterfall: Waterfall
    shares: tuple[Share, ...]

    @property
    def record(self) -> RunRecord:
        return self.timed.record

    @property
    def device(self) -> str | None:
        """cuda, rocm or cpu; None if a log does not contain it."""
        return self.record.environment.device.kind

    def part(self, *names: ShareName) -> float:
        """Return these shares together, as part of the unit's time."""
        return sum(share.of_total for share in self.shares if share.name in names)


def floor_of(demand: Demand | None, limits: Limits | None) -> Floor | None:
    """Return the shortest time of one call from its bytes and operations; None if they or the limits are unknown."""
    if demand is None or limits is None or (demand.bytes is None and demand.flops is None):
        return None
    moving_s = (demand.bytes or 0) / limits.bytes_per_s
    computing_s = (demand.flops or 0) / limits.matmul_flops_per_s
    return Floor(max(moving_s, computing_s), "bytes" if moving_s >= computing_s else "flops")


def timed_call(name: str, records: Sequence[RunRecord]) -> Timed | NotExplained:
    """Return the profiled repeat as one call of the last measured cell, which is the profiled one."""
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
    """Return why the records have no profile."""
    reason = next((record.no_profile.reason for record in records if record.no_profile), None)
    return reason or "it has no profile: left out, or the run ended before it"


def always(text: str) -> Callable[[Case], str]:
    return lambda case: text


ADVICE: Mapping[Bound, Callable[[Case], str]] = {
    "host": always("Fewer launches help: larger inputs, a captured graph or a compiled step."),
    "bandwidth": always("It is near what the memory allows: only fewer bytes make it faster."),
    "compute": always("It is near what the arithmetic units allow: fewer or shorter operands make it faster."),
    "slow products": always("A better kernel for the products helps most."),
    "matrix products": always(
        f"Measure the bandwidth too (leave {code('--no-limits')} out): it shows the limit of the products."
    ),
    "dequantizing": always("A kernel that multiplies the packed weights saves it."),
    "attention/KV": always("Another attention kernel, or a shorter context, helps most."),
    "linear attention": always("Another kernel of the mixer, a smaller state, or fewer heads help most."),
    "copies": always("Fewer or fused copies help most."),
    "communication": always("Less communication, or more arithmetic at the same time, helps most."),
    "small kernels": always("Fusing them helps most."),
    "unknown kernels": always("What they are for is not known; their names are in the notes."),
}


def graph_ceiling(phase: Phase, limits: Limits | None, *, units: int) -> Ceiling:
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
