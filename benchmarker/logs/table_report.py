"""Explanation of a profiler table: its time by category and by row, and the facts that follow.

A printed table has kernel time by row and its total. It shows no gaps between kernels, does not separate prefill from
decode, and all of it was measured with the profiler on. A trace shows the gaps too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarker.core.formatting import MISSING, gib, percent, plural, seconds
from benchmarker.core.tables import Block, Column, Sheet, Text, bold, bullets, plain_line
from benchmarker.explain.phases import table_conversion, table_phase, unpacking
from benchmarker.explain.values import Bound, Conversion, Phase, code
from benchmarker.explain.verdict import bound_of_kernels
from benchmarker.profiling.categories import UNKNOWN_LIMIT, category, is_float32
from benchmarker.profiling.printed_table import ProfilerTable, TableRow
from benchmarker.schema.record import Kernel

LARGE_BYTES = 10 * 2**30
"""Smallest sum of allocations for which an operator is named."""
SHOWN_ALLOCATIONS = 2
ENOUGH = 0.5
"""Part of the time that must be listed for a verdict."""
SHOWN_ROWS = 30
WORTH_A_LINE = 0.05
"""Part of the time from which on a fact is printed."""
BUSY = 0.90
LAUNCH_S = 20e-6
"""Mean duration above which launches waited for room in the queue; a launch alone takes some microseconds."""
LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaLaunchKernelExC", "hipLaunchKernel", "hipModuleLaunchKernel")


@dataclass(frozen=True)
class TableReport:
    """Table with the values that follow from it."""

    table: ProfilerTable
    phase: Phase
    """Kernel time by category, of the whole profiled run as if it were one token."""
    bounds: tuple[Bound, ...]
    """Largest uses of the kernels' time; none if too little of the time is listed, or the total is unknown."""
    conversion: Conversion | None
    """Copy that converts each weight before it is multiplied."""
    repeated: float | None
    """Own device time of all rows over the total: above 1 if operator rows repeat their kernels."""
    allocations: tuple[TableRow, ...]
    """Operators that allocated most device memory, including the operators that they called."""

    @property
    def busy_at_most(self) -> float | None:
        """Largest possible share of the profiled span in which kernels ran; it is less if streams overlap."""
        busy_s = self.table.busy_s or self.phase.busy_s
        return busy_s / self.table.span_s if self.table.span_s else None

    @property
    def bound(self) -> str | None:
        """`dequantizing`, or `matrix products and dequantizing`."""
        # In records, convolutions are those of linear attention.
        is_convolution = "linear attention" not in self.phase.categories
        names = ["convolution" if is_convolution and one == "linear attention" else one for one in self.bounds]
        return ", ".join(names[:-1]) + " and " * (len(names) > 1) + names[-1] if names else None

    @property
    def unit(self) -> str:
        return "kernel" if self.phase.by == "device" else "operator"


def report_on(table: ProfilerTable) -> TableReport | None:
    """Explain a table; None if it lists no time."""
    phase = table_phase(table, tokens=1)
    if not phase.categories:
        return None
    conversion = table_conversion(table)
    own_s = sum(row.self_device_s or 0.0 for row in table.rows)
    is_enough = table.known_total_s is not None and (table.not_listed_share or 0.0) <= 1 - ENOUGH
    return TableReport(
        table=table,
        phase=phase,
        bounds=bound_of_kernels(unpacking(phase, conversion)) if is_enough else (),
        conversion=conversion,
        repeated=own_s / table.device_s if table.device_s else None,
        allocations=_allocations(table),
    )


def _allocations(table: ProfilerTable) -> tuple[TableRow, ...]:
    large = [row for row in table.rows if row.kind == "operator" and (row.device_memory_bytes or 0) >= LARGE_BYTES]
    # A caller repeats the sum of its callees: of equal sums, the row with the fewest calls is nearest to the cause.
    nearest: dict[int | None, TableRow] = {}
    for row in sorted(large, key=lambda row: (-(row.self_device_memory_bytes or 0), row.calls)):
        nearest.setdefault(row.device_memory_bytes, row)
    largest = sorted(nearest.values(), key=lambda row: -(row.device_memory_bytes or 0))
    return tuple(largest[:SHOWN_ALLOCATIONS])


def table_to_row(report: TableReport) -> dict[str, Any]:
    """Return one JSON object: values in base units, null for an unknown one."""
    table, phase = report.table, report.phase
    return {
        "table_line": table.line,
        "title": table.title,
        "rank": table.rank,
        "process": table.process,
        "is_whole": table.is_whole,
        "by": phase.by,
        "bound_by": report.bound,
        "kernel_s": phase.kernel_s if table.known_total_s is not None else None,
        "categories_s": dict(phase.categories),
        "not_listed_s": phase.not_listed_s if table.not_listed_share is not None else None,
        "profiled_span_s": table.span_s,
        "busy_at_most_of_profiled_span": report.busy_at_most,
        "annotations_s": table.annotations_s,
        "rows_left_out": [*table.negative_rows],
    }


def table_to_blocks(report: TableReport) -> list[Block]:
    """Render a table: its verdict, its rows by category, and the facts that follow."""
    table = report.table
    place = f"Table in line {table.line}" if table.line else "Trace"
    process = f", {plain_line(table.process)}" if table.process else ""
    title = f" ({plain_line(table.title)})" if table.title else ""
    return [
        f"{bold(place + process)}{title}: {_total(report)}, {_verdict(report)}",
        _rows(report),
        bullets(_facts(report)),
    ]


def _total(report: TableReport) -> str:
    if report.table.known_total_s is None:
        return "its total is missing"
    total = f"{seconds(report.phase.kernel_s)} in {report.unit}s"
    return f"{total}{'' if report.table.is_total_printed else ' (worked out from the percentage of a row)'}"


def _verdict(report: TableReport) -> str:
    if report.table.known_total_s is None:
        return "and without it there is no verdict"
    if report.bound is None:
        return "too little of it listed for a verdict"
    if report.bounds == ("unknown kernels",):
        return f"most of it in kernels without a category, such as {code(_unknown(report))}"
    return f"most of it for {report.bound}"


def _unknown(report: TableReport) -> str:
    return next(kernel.name for kernel in report.phase.kernels if category(kernel.name) == "other")


Line = tuple[str, str, float, str]
"""Name, category, seconds and calls of one row."""


def _rows(report: TableReport) -> Sheet:
    """The rows that add up, and the time that the table leaves out."""
    shown = [
        kernel
        for kernel in report.phase.kernels
        if report.phase.by == "device" or category(kernel.name) != "bookkeeping"
    ]
    lines = [_line(Text(code(kernel.name, 40)), category(kernel.name), [kernel]) for kernel in shown[:SHOWN_ROWS]]
    if others := shown[SHOWN_ROWS:]:
        lines.append(_line(f"({len(others)} other {report.unit}s)", "", others))
    if report.phase.not_listed_s:
        lines.append(("(not in the table)", "", report.phase.not_listed_s, MISSING))
    of_what = "%" if report.table.known_total_s is not None else "% of these"
    columns = [
        Column[Line]("row", lambda line: line[0], "left"),
        Column[Line]("category", lambda line: line[1], "left"),
        Column[Line]("time", lambda line: seconds(line[2])),
        Column[Line](of_what, lambda line: f"{100 * line[2] / report.phase.kernel_s:.1f}"),
        Column[Line]("calls", lambda line: line[3]),
    ]
    return Sheet("", columns, lines)


def _line(name: str, purpose: str, kernels: Sequence[Kernel]) -> Line:
    return name, purpose, sum(kernel.total_s for kernel in kernels), f"{sum(kernel.calls for kernel in kernels):,}"


def _facts(report: TableReport) -> list[str]:
    hidden = "prefill and decode apart, or the time without the profiler"
    return [
        *_by_category(report),
        *_corrections(report.table),
        *_float32_products(report),
        *_host(report.table),
        *_conversion(report),
        *_profiled_span(report),
        *(
            f"{code(row.name)} allocated {gib(row.device_memory_bytes)} in {row.calls:,} calls"
            for row in report.allocations
        ),
        f"a table alone does not show gaps between {report.unit}s, {hidden}"
        if report.table.line
        else f"a trace alone does not show {hidden}",
    ]


def _by_category(report: TableReport) -> list[str]:
    phase = report.phase
    by_size = ", ".join(
        f"{name} {percent(phase.share(name))}" for name in sorted(phase.categories, key=lambda name: -phase.share(name))
    )
    if report.table.not_listed_share is None:
        facts = [f"{report.unit} time of the rows listed: {by_size}; the time that the table leaves out is unknown"]
    else:
        rest = f", not in the table {percent(phase.not_listed_s / phase.kernel_s)}" if report.table.line else ""
        facts = [f"{report.unit} time: {by_size}{rest}"]
    if phase.share("other") > UNKNOWN_LIMIT:
        share = percent(phase.share("other"))
        facts.append(f"{share} of the {report.unit} time has no category, such as {code(_unknown(report))}")
    return facts


def _corrections(table: ProfilerTable) -> list[str]:
    """Rows and lines that are not counted, and totals that are not as printed."""
    facts = []
    if table.is_total_too_small:
        facts.append(
            f"its rows add up to {seconds(table.listed_s)}, more than the total of "
            f"{seconds(table.known_total_s or 0.0)} below them: their sum is used"
        )
    if table.annotations_s and table.device_s:
        facts.append(
            f"the printed total of {seconds(table.device_s + table.annotations_s)} contains "
            f"{seconds(table.annotations_s)} of annotations, as before torch 2.5: kernels took "
            f"{seconds(table.device_s)}"
        )
    if not table.is_whole:
        facts.append("the table is cut off at its end: its total is worked out from the percentage of a row")
    if table.negative_rows:
        rows = plural(len(table.negative_rows), "row", "rows")
        names = ", ".join(map(code, table.negative_rows[:3]))
        facts.append(f"{rows} of negative own time, which torch prints, left out: {names}")
    if table.foreign_lines:
        lines = plural(len(table.foreign_lines), "line", "lines")
        numbers = ", ".join(map(str, table.foreign_lines[:5]))
        facts.append(f"{lines} between the rows left out, not a row of the table: line {numbers}")
    return facts


def _float32_products(report: TableReport) -> list[str]:
    table = report.table
    rows = [row for row in table.kernels if is_float32(row.name) and category(row.name) in ("matmul", "attention")]
    own_s = sum(row.self_device_s or 0.0 for row in rows)
    if table.by == "cpu" or own_s < WORTH_A_LINE * table.total_s:
        return []
    largest = max(rows, key=lambda row: row.self_device_s or 0.0)
    return [
        f"{percent(own_s / table.total_s)} of the kernel time is products or attention in 32-bit floats, most "
        f"of it in {code(largest.name)}: 16 bits would run on the tensor cores"
    ]


def _host(table: ProfilerTable) -> list[str]:
    """The device's time beside that of the host's rows, which may be of several threads and leave Python's out."""
    if table.device_s is None:
        return []
    facts = []
    if table.cpu_s:
        busy = table.device_s / table.cpu_s
        both = f"{seconds(table.device_s)} of kernels in {seconds(table.cpu_s)} of the host's rows"
        if busy > 1:
            facts.append(f"{both}: kernels ran at the same time on several streams, or the host's rows are incomplete")
        elif busy >= BUSY:
            facts.append(f"{both}, {percent(busy)}: as far as those cover the time, the device hardly waits")
        else:
            facts.append(f"{both}, {percent(busy)}: with the profiler on, and the rows may be of several threads")
        facts += _full_queue(table)
    communication_s = sum(table.own_s(row) for row in table.listed if category(row.name) == "communication")
    if communication_s >= WORTH_A_LINE * table.total_s:
        facts.append(
            f"communication is {percent(communication_s / table.total_s)} of the kernels' sum; the part of it that "
            "runs beside other kernels costs no time, and a table does not show that part"
        )
    return facts


def _full_queue(table: ProfilerTable) -> list[str]:
    waits_s = sum(row.self_cpu_s or 0.0 for row in table.rows if row.name == "Command Buffer Full")
    launches = [row for row in table.rows if row.name in LAUNCHES]
    slow_s = sum(row.self_cpu_s or 0.0 for row in launches if (row.self_cpu_s or 0.0) > LAUNCH_S * row.calls)
    if waits_s + slow_s < WORTH_A_LINE * (table.cpu_s or 0.0):
        return []
    return [
        f"the host spent {seconds(waits_s + slow_s)} on launches that waited for room in the queue: it is ahead of the "
        "device, and its launches cost nothing"
    ]


def _conversion(report: TableReport) -> list[str]:
    if report.conversion is None:
        return []
    kernel = report.conversion.kernel
    ran = "launched" if report.phase.by == "device" else "called"
    return [
        f"{code(kernel.name)} takes {percent(report.conversion.share)} and is {ran} {kernel.calls:,} times, as "
        "often as there are matrix products: a copy that converts each weight before it is multiplied"
    ]


def _profiled_span(report: TableReport) -> list[str]:
    facts = []
    if report.busy_at_most is not None:
        most = "" if report.table.busy_s else "at most "
        facts.append(
            f"busy {most}{percent(report.busy_at_most)} of the profiled span of {seconds(report.table.span_s)}; that "
            "is no verdict, because the profiler slows the host"
        )
    if report.repeated is not None and report.repeated > 1.01:
        facts.append(
            f"the own times of all rows add up to {percent(report.repeated)} of the total: operator rows repeat the "
            "time of their kernels, and annotation rows contain gaps"
        )
    return facts
