"""Limit of one call of attention: its kernels compared with the limits of the device.

    floor = max(FLOPs / matmul rate, bytes / bandwidth)

The bytes are those of inputs and outputs; for `naive` also those of the scores, which a fused kernel does not write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from benchmarker.core.formatting import percent
from benchmarker.explain.advice import ADVICE
from benchmarker.explain.case import Case, Timed
from benchmarker.explain.values import Floor, NotExplained, Phase
from benchmarker.profiling.categories import seconds_by_category
from benchmarker.schema.roofline import Limits
from benchmarker.workloads.attention.attention_flops import NAIVE, scores_passes
from benchmarker.workloads.attention.record import AttentionCell, AttentionRecord
from benchmarker.workloads.attention.spec import AttentionVariant, shape_of
from benchmarker.workloads.operation.reading.explained_call import (
    CALL_ADVICE,
    LargestCall,
    kernels_note,
    largest_call,
    phase_of_call,
    timed_call,
)
from benchmarker.workloads.operation.spec import LengthPoint

IMPOSSIBLE_SHARE = 1.02
"""Share of the matmul rate above which the FLOPs, the time or the rate must be wrong."""


def timed_attention(name: str, records: Sequence[AttentionRecord], *, form: Mapping[str, str]) -> Timed | NotExplained:
    """Return the largest measured call, with the kernels of its proof."""
    call = largest_call(name, records)
    if call is None:
        return NotExplained(name, "no cell of it was measured")
    record, cell = cast("AttentionRecord", call.record), cast("AttentionCell", call.cell)
    notes = kernels_note(cell.kernels)
    if record.limits and cell.demand:
        share = cell.demand.flops / call.latency_s / record.limits.matmul_flops_per_s
        rate = f"{percent(share)} of the measured {record.limits.matmul_dtype} matmul rate"
        notes.append(f"impossible: {rate}" if share > IMPOSSIBLE_SHARE else f"it reaches {rate}")
    return timed_call(
        call,
        _phase(call),
        floor=floor_of(record, cell),
        form=form,
        notes=notes,
        advice={**CALL_ADVICE, "bandwidth": _fewer_bytes},
    )


def floor_of(record: AttentionRecord, cell: AttentionCell) -> Floor | None:
    """Return the least time of one call of this implementation; None without measured limits."""
    limits, demand = record.limits, cell.demand
    if limits is None or demand is None:
        return None
    computing_s, least_moving_s = demand.flops / limits.matmul_flops_per_s, demand.bytes / limits.bytes_per_s
    moving_s = least_moving_s + scores_s(record, cell, limits)
    if computing_s >= moving_s:
        return Floor(computing_s, "flops")
    return Floor(moving_s, "bytes", fewer=1 - max(least_moving_s, computing_s) / moving_s)


def scores_s(record: AttentionRecord, cell: AttentionCell, limits: Limits) -> float:
    """Return the seconds of moving the scores at the measured bandwidth; 0 for a fused kernel."""
    if not _writes_scores(record) or cell.demand is None:
        return 0.0
    variant = AttentionVariant(name=record.variant.name, variant=record.variant.variant, dtype=record.variant.dtype)
    shape = shape_of(record.subject, variant, LengthPoint(cell.seq_len, cell.batch_size, cell.mode))
    return scores_passes(shape) * cell.demand.scores_bytes / limits.bytes_per_s


def _writes_scores(record: AttentionRecord) -> bool:
    return record.variant.variant == NAIVE


def _phase(call: LargestCall) -> Phase:
    """Return the kernels of the profiled call.

    On a CPU the call is its operators, without gaps. A GPU at its power limit has no gaps either: under the timed calls
    its clocks are lower than under the single profiled call, whose kernels are therefore stretched.
    """
    if call.on_cpu:
        return phase_of_call(call, seconds_by_category([("attention", call.latency_s)]))
    times = seconds_by_category([(kernel.name, kernel.total_s) for kernel in call.cell.kernels])
    busy_s = sum(times.values())
    is_slowed = "power_limited" in call.cell.flags and 0 < busy_s < call.latency_s
    stretch = call.latency_s / busy_s if is_slowed else 1.0
    stretched = {category: stretch * time_s for category, time_s in times.items()}
    return phase_of_call(call, stretched, busy_s=stretch * busy_s)


def _fewer_bytes(case: Case) -> str:
    if _writes_scores(cast("AttentionRecord", case.record)):
        return "A fused kernel never writes the scores: flash, efficient, cudnn or flex."
    return ADVICE["bandwidth"](case)
