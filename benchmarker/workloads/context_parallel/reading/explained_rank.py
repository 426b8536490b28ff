"""Limit of one call on the rank that computes longest, and the share of communication.

    floor = (FLOPs of one GPU) / (matmul rate measured in the same process)

Communication counts only while nothing else runs: hidden communication costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from benchmarker.comparison.rows import Row
from benchmarker.core.formatting import percent
from benchmarker.core.tables import code
from benchmarker.explain.advice import always
from benchmarker.explain.case import Case, Timed
from benchmarker.explain.reasons import floor_of
from benchmarker.explain.sentence_numbers import ms
from benchmarker.explain.values import NotExplained, Phase
from benchmarker.profiling.categories import CATEGORIES, Category
from benchmarker.workloads.context_parallel.context_parallel_metrics import critical_trace, imbalance
from benchmarker.workloads.context_parallel.record import ContextParallelRecord, RankTrace
from benchmarker.workloads.operation.reading.explained_call import (
    CALL_ADVICE,
    LargestCall,
    largest_call,
    phase_of_call,
    timed_call,
)

COMPUTE_CATEGORIES = tuple(
    category for category in CATEGORIES if category not in ("communication", "copy/cast", "elementwise")
)
"""Kernel categories counted as compute, to which the floor applies."""
UNEVEN = 1.1
"""Imbalance above which the order of the sequence costs more than a better kernel could save."""


def timed_rank(name: str, records: Sequence[ContextParallelRecord], *, form: Mapping[str, str]) -> Timed | NotExplained:
    """Return the largest measured call that has a trace."""
    call = largest_call(name, records, explains=lambda cell: bool(cell.traces))
    if call is None:
        if all(cell.status != "ok" for record in records for cell in record.cells):
            return NotExplained(name, "no cell of it was measured")
        return NotExplained(name, "no cell of it has a trace: a single rank has no exchange to explain")
    trace = critical_trace(call.cell)
    assert trace is not None
    return timed_call(
        call,
        _phase(call, trace),
        floor=floor_of(call.cell.demand, call.record.limits),
        form=form,
        notes=_notes(call.row, trace),
        products=COMPUTE_CATEGORIES,
        advice={
            **CALL_ADVICE,
            "communication": always(
                "A longer sequence gives more computation to hide it behind; fewer ranks or shared key and value heads "
                "send less."
            ),
            "slow products": lambda case: _slow_products(case, call),
        },
    )


def _phase(call: LargestCall, trace: RankTrace) -> Phase:
    """Return the traced call, on a CPU scaled to the time of the timed calls."""
    scale = call.latency_s / trace.span_s if call.on_cpu else 1.0
    categories = {
        cast("Category", work.kind): scale * (work.alone_s if work.kind == "communication" else work.busy_s)
        for work in trace.kinds
    }
    return phase_of_call(call, categories, busy_s=scale * trace.busy_s)


def _notes(row: Row, trace: RankTrace) -> Iterator[str]:
    """Yield both measures of exposed communication, the imbalance of the ranks, and the required rate of the link."""
    communication = next((work for work in trace.kinds if work.kind == "communication"), None)
    if communication:
        yield (
            f"communication ran for {ms(communication.busy_s)} of a call of {ms(trace.span_s)}, "
            f"{ms(communication.alone_s)} of it while nothing else ran"
        )
    if (exposed := row.facts.get("exposed")) is not None:
        yield f"without the exchange the same work takes {percent(1 - exposed)} of the time"
    if (uneven := row.facts.get("imbalance")) is not None:
        yield f"the slowest rank computes {uneven:.2f} times as long as the ranks do on average"
    needed, link = row.facts.get("needed_link"), row.facts.get("measured_link")
    if needed is not None and link is not None:
        yield f"each step must send {needed / 1e9:.3g} GB/s to be hidden, and the link gives {link / 1e9:.3g}"


def _slow_products(case: Case, call: LargestCall) -> str:  # noqa: ARG001
    """Return the advice on products that take longer than an even share of the work."""
    uneven = imbalance(call.cell)
    if uneven is not None and uneven >= UNEVEN:
        return f"One rank has more work than the others: an order with equal work ({code('zigzag')}) helps most."
    return "Another kernel for the same blocks helps, if a row here is faster."
