"""All that a verdict on one variant rests on."""

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
    """What was profiled, with its time without the profiler."""

    record: RunRecord
    """The record that has the profile."""
    phase: Phase
    total_s: float
    """Seconds a unit without the profiler, over all processes."""
    cell: CellKey | None = None
    floor: Floor | None = None
    conversion: Conversion | None = None
    mbu: float | None = None
    """Share of the bandwidth that was used, over all processes; None where it or the bytes were not measured."""
    units: int = 1
    """Units that one step makes at once: the tokens of a batch."""
    notes: tuple[str, ...] = ()
    """What a reader must know of the numbers."""
    before: str | None = None
    """A sentence on what runs before the units, such as prefill."""
    form: Mapping[str, str] = field(default_factory=dict)
    """Fields that are shown of the variant beside its name, such as its engine."""
    parts: Mapping[str, str] = field(default_factory=lambda: PARTS)
    """Name of the part of the waterfall for each category of kernels."""
    floors: Mapping[str, str] = field(default_factory=lambda: FLOORS)
    """Name of the floor, by its kind: `bytes` or `flops`."""
    products: tuple[str, ...] = PRODUCTS
    """Categories of kernels to which the floor applies."""
    advice: Mapping[Bound, Callable[[Case], str]] = field(default_factory=dict)
    """Advice in place of the default, by bound."""
    loaded: LoadFacts | None = None
    """What was loaded, as proof of what ran."""
    replaces_linears: bool = False
    """Whether the engine multiplied with other kernels than those of the loaded layers."""
    can_replay: bool = False
    """Whether a CUDA graph would remove the launches, so that its ceiling is worth printing."""


@dataclass(frozen=True)
class Case:
    """All that a verdict rests on."""

    timed: Timed
    phase: Phase
    """As in `timed`, but a copy that converts each weight counts as unpacking."""
    waterfall: Waterfall
    shares: tuple[Share, ...]

    @property
    def record(self) -> RunRecord:
        return self.timed.record

    @property
    def device(self) -> str | None:
        """cuda, rocm or cpu; None where a log does not say."""
        return self.record.environment.device.kind

    def part(self, *names: ShareName) -> float:
        """These shares together, as part of the unit's time, between 0 and 1."""
        return sum(share.of_total for share in self.shares if share.name in names)


def floor_of(demand: Demand | None, limits: Limits | None) -> Floor | None:
    """The least time of one call, from its own bytes and operations; None where they or the limits are not known."""
    if demand is None or limits is None or (demand.bytes is None and demand.flops is None):
        return None
    moving_s = (demand.bytes or 0) / limits.bytes_per_s
    computing_s = (demand.flops or 0) / limits.matmul_flops_per_s
    return Floor(max(moving_s, computing_s), "bytes" if moving_s >= computing_s else "flops")


def timed_call(name: str, records: Sequence[RunRecord]) -> Timed | NotExplained:
    """The profiled repeat as one call of the last cell that ran, which is the one that is profiled."""
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
    """What the records say of a profile that is not there."""
    reason = next((record.no_profile.reason for record in records if record.no_profile), None)
    return reason or "it has no profile: left out, or the run ended before it"


def always(text: str) -> Callable[[Case], str]:
    """The same for every case."""
    return lambda case: text


ADVICE: Mapping[Bound, Callable[[Case], str]] = {
    "host": always("Fewer launches help: larger inputs, a captured graph or a compiled step."),
    "bandwidth": always("It is near what the memory allows: only fewer bytes make it faster."),
    "compute": always("It is near what the arithmetic units allow: fewer or shorter operands make it faster."),
    "slow products": always("A better kernel for the products helps most."),
    "matrix products": always(
        f"Measure the bandwidth too (leave {code('--no-limits')} out): it tells what the products lack."
    ),
    "dequantizing": always("A kernel that multiplies the packed weights saves it."),
    "attention/KV": always("Another attention kernel, or a shorter context, helps most."),
    "linear attention": always("Another kernel of the mixer, a smaller state, or fewer heads help most."),
    "copies": always("Fewer or fused copies help most."),
    "communication": always("Less of it, or more arithmetic beside it, helps most."),
    "small kernels": always("Fusing them helps most."),
    "unknown kernels": always("What they are for is not known; their names are in the notes."),
}


def graph_ceiling(phase: Phase, limits: Limits | None, *, units: int) -> Ceiling:
    """Units a second if the host never made the device wait, as in a replayed graph: between

        units / (busy + kernels * an empty kernel in a replayed graph)   and   units / busy

    An empty kernel's time has all in it that one node of a graph costs the device, its own end and the next one's
    start; between two real kernels some of that is hidden. Eight graphs that were measured took 0.11 to 0.45 us a
    kernel, where an empty one takes 0.53 to 0.79 us (results/reference/h100-runtimes and h200-runtimes).
    """
    if limits is None or limits.graph_kernel_s is None:
        return Ceiling(units / phase.busy_s, None)
    longest_s = phase.busy_s + phase.kernel_calls * limits.graph_kernel_s
    return Ceiling(units / phase.busy_s, units / longest_s)
