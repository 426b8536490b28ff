"""Why a call takes as long as it does: the kernels of one profiled call against the limits of the device.

    floor = max(operations / matmul rate, bytes / bandwidth)

The bytes are those of inputs and outputs; of `naive` also those of the scores, each time that it moves them, which a
fused kernel saves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

from benchmarker.comparison.aggregate import make_row
from benchmarker.comparison.comparing import cell_of, keys_of
from benchmarker.comparison.rows import CellKey
from benchmarker.core.formatting import abridged, percent
from benchmarker.explain.advice import ADVICE, always
from benchmarker.explain.case import Case, Timed
from benchmarker.explain.sentence_numbers import code, ms
from benchmarker.explain.values import Bound, Floor, NotExplained, Phase
from benchmarker.profiling.categories import CATEGORIES, seconds_by_category
from benchmarker.schema.profile import Kernel
from benchmarker.schema.roofline import Limits
from benchmarker.workloads.attention.attention_flops import scores_passes
from benchmarker.workloads.attention.declared import PLAIN
from benchmarker.workloads.attention.record import AttentionCell, AttentionRecord
from benchmarker.workloads.attention.spec import AttentionShape, AttentionVariant, shape_of
from benchmarker.workloads.operation.spec import LengthPoint

SHOWN_KERNELS = 3
MATMUL_LIMIT = 1.02
"""A row above it is impossible: the FLOPs, the time or the rate is wrong."""
FLOORS = {"bytes": "moving data at the measured bandwidth", "flops": "products at the measured matmul rate"}


def timed_call(name: str, records: Sequence[AttentionRecord]) -> Timed | NotExplained:
    """A call of the last cell that was measured, with the kernels that its proof saw."""
    keys = [key for record in records for key in keys_of(record) if _measured(record, key)]
    if not keys:
        return NotExplained(name, "no cell of it was measured")
    key = max(keys)
    record = next(record for record in records if _measured(record, key))
    cell, latency = cast("AttentionCell", cell_of(record, key)), make_row(name, key, records).latency
    assert latency is not None
    notes = [_ran(cell)] if cell.kernels else []
    if record.limits and cell.demand:
        share = cell.demand.flops / latency.value / record.limits.matmul_flops_per_s
        rate = f"{percent(share)} of the measured {record.limits.matmul_dtype} matmul rate"
        notes.append(f"impossible: {rate}" if share > MATMUL_LIMIT else f"it reaches {rate}")
    return Timed(
        record=record,
        phase=_phase(record, cell, latency.value),
        total_s=latency.value,
        cell=key,
        floor=floor_of(record, cell),
        notes=tuple(notes),
        form={"implementation": record.variant.variant, "dtype": record.variant.dtype},
        floors=FLOORS,
        products=CATEGORIES,
        advice=OWN_ADVICE,
    )


def floor_of(record: AttentionRecord, cell: AttentionCell) -> Floor | None:
    """The least time of one call in this implementation; None where the limits were not measured."""
    limits, demand = record.limits, cell.demand
    if limits is None or demand is None:
        return None
    computing_s, least_moving_s = demand.flops / limits.matmul_flops_per_s, demand.bytes / limits.bytes_per_s
    moving_s = least_moving_s + scores_s(record, cell, limits)
    if computing_s >= moving_s:
        return Floor(computing_s, "flops")
    return Floor(moving_s, "bytes", fewer=1 - max(least_moving_s, computing_s) / moving_s)


def scores_s(record: AttentionRecord, cell: AttentionCell, limits: Limits) -> float:
    """Seconds that moving the scores takes at the measured bandwidth: none in a fused kernel."""
    if record.variant.variant != PLAIN or cell.demand is None:
        return 0.0
    return scores_passes(_shape(record, cell)) * cell.demand.scores_bytes / limits.bytes_per_s


def _shape(record: AttentionRecord, cell: AttentionCell) -> AttentionShape:
    variant = AttentionVariant(name=record.variant.name, variant=record.variant.variant, dtype=record.variant.dtype)
    return shape_of(record.subject, variant, LengthPoint(cell.seq_len, cell.batch_size, cell.mode))


def _measured(record: AttentionRecord, key: CellKey) -> bool:
    cell = cell_of(record, key)
    return cell is not None and cell.status == "ok" and bool(cell.samples)


def _phase(record: AttentionRecord, cell: AttentionCell, total_s: float) -> Phase:
    """The kernels of the profiled call.

    On a CPU nothing waits: the call is its operators. Nor does a GPU that draws all the power it may: under the timed
    calls its clocks are lower than under the single one that was profiled, whose kernels took less.
    """
    on_cpu = record.environment.device.kind == "cpu"
    kernels = tuple(Kernel(name=kernel.name, calls=kernel.calls, total_s=kernel.total_s) for kernel in cell.kernels)
    times = seconds_by_category(
        [("attention", total_s)] if on_cpu else [(kernel.name, kernel.total_s) for kernel in kernels]
    )
    busy_s = sum(times.values())
    slowed = total_s / busy_s if "power_limited" in cell.flags and 0 < busy_s < total_s else 1.0
    return Phase(
        by="cpu" if on_cpu else "device",
        is_decode=False,
        tokens=1,
        busy_s=busy_s * slowed,
        categories={category: time_s * slowed for category, time_s in times.items()},
        kernels=() if on_cpu else kernels,
        profiled_s=None,
    )


def _ran(cell: AttentionCell) -> str:
    names = [f"{code(kernel.name)} {ms(kernel.total_s)}" for kernel in cell.kernels]
    return f"one profiled call ran {abridged(names, SHOWN_KERNELS)}"


def _fewer_bytes(case: Case) -> str:
    if cast("AttentionRecord", case.record).variant.variant == PLAIN:
        return "A fused kernel never writes the scores: flash, efficient, cudnn or flex."
    return ADVICE["bandwidth"](case)


OWN_ADVICE: Mapping[Bound, Callable[[Case], str]] = {
    "host": always("Larger batches, a captured graph or a compiled model save launches."),
    "bandwidth": _fewer_bytes,
    "slow products": always("Another kernel for the same work helps, where a row here is faster."),
}
