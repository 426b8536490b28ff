"""Why a call takes as long as it does on the rank that computes longest, and what of it is communication alone.

    floor = (operations of one GPU) / (matmul rate measured in the same process)

Communication counts as far as nothing else runs beside it: what is hidden costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

from benchmarker.comparison.aggregate import make_row
from benchmarker.comparison.comparing import cell_of, keys_of
from benchmarker.comparison.rows import CellKey, Row
from benchmarker.core.formatting import percent
from benchmarker.core.tables import code
from benchmarker.explain.advice import always
from benchmarker.explain.case import Case, Timed
from benchmarker.explain.reasons import floor_of
from benchmarker.explain.sentence_numbers import ms
from benchmarker.explain.values import Bound, NotExplained, Phase
from benchmarker.profiling.categories import CATEGORIES, Category
from benchmarker.schema.profile import Kernel
from benchmarker.workloads.context_parallel.declared import critical_trace, imbalance
from benchmarker.workloads.context_parallel.record import ContextParallelCell, ContextParallelRecord, RankTrace

COMPUTES = tuple(category for category in CATEGORIES if category not in ("communication", "copy/cast", "elementwise"))
"""Categories of kernels that the floor is of."""
FLOORS = {"bytes": "moving data at the measured bandwidth", "flops": "products at the measured matmul rate"}
UNEVEN = 1.1
"""Imbalance from which on the order of the sequence costs more than a kernel could win."""


def timed_call(name: str, records: Sequence[ContextParallelRecord]) -> Timed | NotExplained:
    """A call of the last cell that was measured with a trace."""
    keys = [key for record in records for key in keys_of(record) if _measured(record, key)]
    if not keys:
        if all(cell.status != "ok" for record in records for cell in record.cells):
            return NotExplained(name, "no cell of it was measured")
        return NotExplained(name, "no cell of it has a trace: one rank by itself has no exchange to look for")
    key = max(keys)
    record = next(record for record in records if _measured(record, key))
    cell, row = cast("ContextParallelCell", cell_of(record, key)), make_row(name, key, records)
    trace = critical_trace(cell)
    assert row.latency is not None
    assert trace is not None
    return Timed(
        record=record,
        phase=_phase(record, cell, trace, row.latency.value),
        total_s=row.latency.value,
        cell=key,
        floor=floor_of(cell.demand, record.limits),
        notes=tuple(_notes(row, trace)),
        form={"split": record.variant.variant, "kernel": record.variant.kernel},
        floors=FLOORS,
        products=COMPUTES,
        advice=OWN_ADVICE,
    )


def _measured(record: ContextParallelRecord, key: CellKey) -> bool:
    cell = cast("ContextParallelCell | None", cell_of(record, key))
    return cell is not None and cell.status == "ok" and bool(cell.samples) and bool(cell.traces)


def _phase(record: ContextParallelRecord, cell: ContextParallelCell, trace: RankTrace, total_s: float) -> Phase:
    """The trace's call as one of the timed ones: on a processor a call took as long as its own span."""
    on_cpu = record.environment.device.kind == "cpu"
    scale = total_s / trace.span_s if on_cpu else 1.0
    categories = {
        cast("Category", work.kind): scale * (work.alone_s if work.kind == "communication" else work.busy_s)
        for work in trace.kinds
    }
    kernels = () if on_cpu else cell.kernels
    return Phase(
        by="cpu" if on_cpu else "device",
        is_decode=False,
        tokens=1,
        busy_s=scale * trace.busy_s,
        categories=categories,
        kernels=tuple(Kernel(name=kernel.name, calls=kernel.calls, total_s=kernel.total_s) for kernel in kernels),
        profiled_s=None,
    )


def _notes(row: Row, trace: RankTrace) -> list[str]:
    """Both measures of what is exposed, what the ranks wait for each other, and what the link would have to give."""
    notes = []
    communication = next((work for work in trace.kinds if work.kind == "communication"), None)
    if communication:
        notes.append(
            f"communication ran for {ms(communication.busy_s)} of a call of {ms(trace.span_s)}, "
            f"{ms(communication.alone_s)} of it while nothing else did"
        )
    exposed = row.facts.get("exposed")
    if exposed is not None:
        notes.append(f"without the exchange the same work takes {percent(1 - exposed)} of the time")
    imbalance = row.facts.get("imbalance")
    if imbalance is not None:
        notes.append(f"the slowest rank computes {imbalance:.2f} times as long as they do on average")
    needed, link = row.facts.get("needed_link"), row.facts.get("measured_link")
    if needed is not None and link is not None:
        notes.append(f"each step must send {needed / 1e9:.3g} GB/s to be hidden, and the link gives {link / 1e9:.3g}")
    return notes


def _slow_products(case: Case) -> str:
    """What to do about products that take longer than an even share of the work must."""
    assert case.timed.cell is not None
    record = cast("ContextParallelRecord", case.record)
    cell = cast("ContextParallelCell | None", cell_of(record, case.timed.cell))
    uneven = imbalance(record, cell) if cell else None
    if uneven is not None and uneven >= UNEVEN:
        return f"One rank has more work than the others: an order with equal work ({code('zigzag')}) helps most."
    return "Another kernel for the same blocks helps, where a row here is faster."


OWN_ADVICE: Mapping[Bound, Callable[[Case], str]] = {
    "communication": always(
        "A longer sequence gives more arithmetic to hide it behind; fewer ranks or a shared head of keys and values "
        "sends less."
    ),
    "slow products": _slow_products,
}
