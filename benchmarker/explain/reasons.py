"""The default explanation of a workload's time: the profiled repeat as one call."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarker.explain.case import Timed
from benchmarker.explain.phases import phase_of
from benchmarker.explain.values import Floor, NotExplained
from benchmarker.schema.record import Demand, Limits, RunRecord


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
