"""Why a call of a mixer takes as long as it does: the kernels of one profiled call against the limits of the device.

    floor = max(operations / matmul rate, bytes of inputs and outputs / bandwidth)

A cell of a model's training step is not explained: the kernels of its record are of its mixer alone. Nor is a call on
a processor, where no operators of a mixer are told apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

from benchmarker.comparison.aggregate import make_row
from benchmarker.comparison.comparing import cell_of, keys_of
from benchmarker.comparison.rows import CellKey
from benchmarker.core.formatting import percent
from benchmarker.explain.advice import always
from benchmarker.explain.case import Case, Timed
from benchmarker.explain.reasons import floor_of
from benchmarker.explain.sentence_numbers import code, ms
from benchmarker.explain.values import Bound, NotExplained, Phase
from benchmarker.profiling.categories import CATEGORIES, seconds_by_category
from benchmarker.schema.profile import Kernel
from benchmarker.workloads.mixers.record import MixersCell, MixersRecord

SHOWN_KERNELS = 3
OWN_ADVICE: Mapping[Bound, Callable[[Case], str]] = {
    "host": always("Larger batches or longer sequences fill the device; a captured graph saves the launches."),
    "slow products": always("Another kernel for the same work helps, where a row here is faster."),
}
FLOORS = {"bytes": "moving data at the measured bandwidth", "flops": "products at the measured matmul rate"}


def timed_call(name: str, records: Sequence[MixersRecord]) -> Timed | NotExplained:
    """A call of the last cell of the mixer alone that was measured, with the kernels that its proof saw."""
    pairs = [(key, record) for record in records for key in keys_of(record) if _explains(record, key)]
    if not pairs:
        return NotExplained(name, "no cell of the mixer alone was measured")
    key, record = max(pairs, key=lambda pair: pair[0])
    if record.environment.device.kind == "cpu":
        return NotExplained(name, "on a processor the operators of a mixer are not told apart")
    cell, latency = cast("MixersCell", cell_of(record, key)), make_row(name, key, records).latency
    assert latency is not None
    return Timed(
        record=record,
        phase=_phase(cell),
        total_s=latency.value,
        cell=key,
        floor=floor_of(cell.demand, record.limits),
        notes=(_ran(cell),) if cell.kernels else (),
        form={"mixer": record.variant.mixer, "implementation": record.variant.implementation},
        floors=FLOORS,
        products=CATEGORIES,
        advice=OWN_ADVICE,
    )


def _explains(record: MixersRecord, key: CellKey) -> bool:
    cell = cast("MixersCell | None", cell_of(record, key))
    return cell is not None and cell.status == "ok" and bool(cell.samples) and cell.block is None


def _phase(cell: MixersCell) -> Phase:
    """The kernels of the profiled call."""
    kernels = tuple(Kernel(name=kernel.name, calls=kernel.calls, total_s=kernel.total_s) for kernel in cell.kernels)
    categories = seconds_by_category((kernel.name, kernel.total_s) for kernel in kernels)
    return Phase(
        by="device",
        is_decode=False,
        tokens=1,
        busy_s=sum(categories.values()),
        categories=categories,
        kernels=kernels,
        profiled_s=None,
    )


def _ran(cell: MixersCell) -> str:
    kernels = [f"{code(kernel.name)} {ms(kernel.total_s)}" for kernel in cell.kernels[:SHOWN_KERNELS]]
    listed_s = sum(kernel.total_s for kernel in cell.kernels)
    share = percent(sum(kernel.total_s for kernel in cell.kernels[:SHOWN_KERNELS]) / listed_s) if listed_s else ""
    return f"one profiled call ran {', '.join(kernels)}" + (f" ({share} of its kernels' time)" if share else "")
