"""How a workload's time is explained: its unit, its parts, its floor and what to do. Every field has a default.

A workload names its `Reasons` in its description (`reasons = "benchmarker.workloads.<name>.reasons:REASONS"`), so that
the description stays light. One that names none is explained by the defaults: the profiled repeat as one call.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarker.core.named_import import imported
from benchmarker.explain.advice import ADVICE
from benchmarker.explain.case import Case, Timed
from benchmarker.explain.phases import phase_of
from benchmarker.explain.values import Bound, Floor, NotExplained
from benchmarker.explain.waterfall import FLOORS, PARTS, PRODUCTS
from benchmarker.schema.model_facts import LoadFacts
from benchmarker.schema.record import RunRecord
from benchmarker.schema.registry import workload_of
from benchmarker.schema.roofline import Demand, Limits


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


@dataclass(frozen=True)
class Reasons:
    """How a workload's time is explained."""

    unit: str = "call"
    """What the time is of: a token, a call, a step."""
    timed: Callable[[str, Sequence[RunRecord]], Timed | NotExplained] = timed_call
    """What was profiled and how long it takes without the profiler, from the name and all records of a variant."""
    parts: Mapping[str, str] = field(default_factory=lambda: PARTS)
    """Name of the part that a category of kernels is in."""
    floors: Mapping[str, str] = field(default_factory=lambda: FLOORS)
    """Name of the floor, by what it is of: `bytes` or `flops`."""
    products: tuple[str, ...] = PRODUCTS
    """Categories of kernels that the floor is of."""
    advice: Mapping[Bound, Callable[[Case], str]] = field(default_factory=lambda: ADVICE)
    """What to do, by what the unit waits for."""
    form: Callable[[RunRecord], dict[str, str]] = lambda record: {}
    """What is shown of a variant beside its name, such as its engine, by field."""
    loaded: Callable[[RunRecord], LoadFacts | None] = lambda record: None
    """What was loaded, as proof of what ran; None where a record does not say."""
    replaces_linears: Callable[[Timed], bool] = lambda timed: False
    """Whether the engine multiplied by other kernels than those of the layers that were loaded."""
    can_replay: Callable[[Case], bool] = lambda case: False
    """Whether a CUDA graph would take the launches out of it, so that the graph's ceiling is worth printing."""


def reasons_of(workload: str) -> Reasons:
    """The reasons that a workload declares, or the default ones."""
    place = workload_of(workload).reasons
    reasons: Reasons = imported(place) if place else Reasons()
    return reasons
