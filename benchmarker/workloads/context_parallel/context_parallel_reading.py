"""Evaluation of the records of context_parallel: the floor of a call's time on the rank that computes longest, and
sentences and columns on exposed communication.

    floor = (FLOPs of one GPU) / (matmul rate measured in the same process)

Communication is exposed while no other kernel runs. Communication during computation is hidden and costs no time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import cast

from benchmarker.comparison.roofline import floor_of
from benchmarker.comparison.rows import Row, cell_words, listed
from benchmarker.core.formatting import decimal, ms, percent
from benchmarker.core.tables import Column, code, plain_line
from benchmarker.explain.waterfall import NotExplained, Timed
from benchmarker.profiling.kernel_categories import CATEGORIES, Category
from benchmarker.report.columns import fact_columns, latency_columns, number_columns, quality_columns
from benchmarker.schema.record import DISTURBING
from benchmarker.workloads.context_parallel.record import ContextParallelRecord, RankTrace, critical_trace, imbalance
from benchmarker.workloads.operation.operation_reading import CALL_ADVICE, largest_call, length_of, timed_call
from benchmarker.workloads.operation.spec import mode_text

COMPUTE_CATEGORIES = tuple(
    category for category in CATEGORIES if category not in ("communication", "copy/cast", "elementwise")
)
"""Kernel categories counted as compute, to which the floor applies."""
UNEVEN = 1.1  # Imbalance from which the advice is another order of the sequence instead of another kernel.
UNEVEN_ADVICE = f"One rank has more work than the others: an order with equal work ({code('zigzag')}) helps most."
BLOCKS_ADVICE = "Another kernel for the same blocks helps, if a row here is faster."


def timed_rank(name: str, records: Sequence[ContextParallelRecord]) -> Timed | NotExplained:
    call = largest_call(name, records, explains=lambda cell: bool(cell.traces))
    if call is None:
        if all(cell.status != "ok" for record in records for cell in record.cells):
            return NotExplained(name, "no cell of it was measured")
        return NotExplained(name, "no cell of it has a trace: a single rank has no exchange to explain")
    trace = critical_trace(call.cell)
    assert trace is not None
    # On a CPU, the traced call's times are scaled to the latency of the timed calls.
    scale = call.latency_s / trace.span_s if call.on_cpu else 1.0
    categories = {
        cast("Category", work.kind): scale * (work.alone_s if work.kind == "communication" else work.busy_s)
        for work in trace.kinds
    }
    uneven = imbalance(call.cell) or 0.0
    return timed_call(
        call,
        categories,
        floor=floor_of(call.cell.demand, call.record.limits),
        busy_s=scale * trace.busy_s,
        notes=_notes(call.row, trace),
        products=COMPUTE_CATEGORIES,
        advice={
            **CALL_ADVICE,
            "communication": (
                "A longer sequence gives more computation to hide it behind; fewer ranks or shared key and value heads "
                "send less."
            ),
            "slow products": UNEVEN_ADVICE if uneven >= UNEVEN else BLOCKS_ADVICE,
        },
    )


def _notes(row: Row, trace: RankTrace) -> Iterator[str]:
    if communication := next((work for work in trace.kinds if work.kind == "communication"), None):
        yield (
            f"communication ran for {ms(communication.busy_s)} of a call of {ms(trace.span_s)}, "
            f"{ms(communication.alone_s)} of it while nothing else ran"
        )
    if (exposed := row.facts.get("exposed")) is not None:
        yield f"without the exchange the same work takes {percent(1 - exposed)} of the time"
    if (uneven := row.facts.get("imbalance")) is not None:
        yield f"the slowest rank computes {uneven:.2f} times as long as the ranks do on average"
    needed, link = _link_rates(row)
    if link:
        yield f"each step must send {needed} to be hidden, and the link gives {link}"


HIDDEN_SHARE = 0.05  # Largest exposed share of the time at which communication counts as hidden.
MAX_DISAGREEMENT = 0.05  # Difference of the exposed shares by clock and by trace above which a remark is printed.


def brief_columns(rows: Sequence[Row]) -> tuple[list[Column[Row]], list[Column[Row]]]:
    def scaling_percent(row: Row) -> float | None:
        return 100 * row.metrics["scaling"].value if "scaling" in row.metrics else None

    scaling = number_columns(rows, "scaling %", scaling_percent, lambda value: decimal(value, digits=3))
    metrics = [rows[0].described.metric(name) for name in ("exposed", "exposed_trace")]
    exposed = [column for metric in metrics for column in fact_columns(rows, metric)]
    return [*latency_columns(rows), *scaling, *exposed], quality_columns(rows)


def remarks(rows: Sequence[Row], baseline: str | None, *, brief: bool = False) -> list[str]:  # noqa: ARG001
    return [*hiding_remarks(rows), *(() if brief else (*_ring_bounds(rows), *_disagreements(rows)))]


def hiding_remarks(rows: Sequence[Row]) -> list[str]:
    series: dict[tuple[int, str, str], list[Row]] = defaultdict(list)
    unknown: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        if row.cell and "exposed" in row.facts:
            series[row.cell.ranks, row.cell.mode, row.variant].append(row)
        elif "imbalance" in row.facts and DISTURBING.intersection(row.flags):
            unknown["Disturbed cells have no scaling and no exposed share"].append(row.variant)
        elif "imbalance" in row.facts:
            where = f"{row.variant} at {cell_words(row.cell)}"
            unknown["No exposed share, because calls without the exchange took longer"].append(where)
    return [f"{reason}: {listed(names)}." for reason, names in unknown.items()] + [
        f"{ranks} ranks, {mode_text(mode)}: {plain_line(variant)} {_hiding_text(sorted(members, key=length_of))}."
        for (ranks, mode, variant), members in series.items()
    ]


def _hiding_text(series: Sequence[Row]) -> str:
    exposing = [row for row in series if row.facts["exposed"] > HIDDEN_SHARE]
    lengths = [length_of(row) for row in series]
    every = f"at any measured length, from {lengths[0]:,} to {lengths[-1]:,} positions"
    if not exposing:
        measured = every if len(lengths) > 1 else f"at {lengths[0]:,} positions"
        return f"hides its communication {measured} (at most {percent(HIDDEN_SHARE)} exposed)"
    last = exposing[-1]
    exposed = f"{percent(last.facts['exposed'])} exposed"
    needed, link = _link_rates(last)
    need = f"; each step would need {needed}, and the link gives {link}" if link else ""
    if link and last.facts["needed_link"] < last.facts["measured_link"]:
        need = f", although each step needs only {needed} and the link gives {link}"
    if last is not series[-1]:
        span = f"between {length_of(last):,} and {lengths[series.index(last) + 1]:,} positions on"
        return f"hides its communication from {span}; at {length_of(last):,}, {exposed}{need}"
    if len(exposing) == len(series) > 1:
        return f"does not hide its communication {every}: {exposed} at {lengths[-1]:,}{need}"
    return f"does not hide its communication at {lengths[-1]:,} positions: {exposed}{need}"


def _link_rates(row: Row) -> tuple[str, str]:
    needed, link = row.facts.get("needed_link"), row.facts.get("measured_link")
    return ("", "") if needed is None or link is None else (f"{needed / 1e9:.3g} GB/s", f"{link / 1e9:.3g}")


def _ring_bounds(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a sentence for each contiguous ring: the largest possible use of its GPUs, and its measured scaling."""
    longest: dict[tuple[int, str], Row] = {}
    for row in sorted((row for row in rows if row.cell and row.form.get("split") == "ring"), key=length_of):
        if row.cell and row.cell.ranks > 1 and "scaling" in row.metrics:
            longest[row.cell.ranks, row.variant] = row
    for (ranks, variant), row in longest.items():
        imbalance = row.facts.get("imbalance")
        suffix = f", imbalance {imbalance:.2f}" if imbalance is not None else ""
        most, scaling = ranks / (2 * ranks - 1), row.metrics["scaling"].value
        suffix += ": more than possible, because its times vary" if scaling > most else ""
        bound = f"{percent(most, places=1)} of {ranks} ranks"
        yield (
            f"{plain_line(variant)}: under the causal mask a contiguous ring can use at most {bound}, "
            f"N / (2N - 1); at {length_of(row):,} positions its scaling was "
            f"{percent(scaling, places=1)}{suffix}."
        )


def _disagreements(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        by_trace, by_difference = row.facts.get("exposed_trace"), row.facts.get("exposed")
        if not row.cell or by_trace is None or by_difference is None:
            continue
        if abs(by_trace - by_difference) > MAX_DISAGREEMENT:
            yield (
                f"{plain_line(row.variant)} at {row.cell.words}: {percent(by_trace)} exposed by the trace and "
                f"{percent(by_difference)} by leaving the exchange out, more than {100 * MAX_DISAGREEMENT:.0f} points "
                "apart: they are of different calls, and a disturbance shifts either."
            )
