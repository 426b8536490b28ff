"""Explanation of profiler tables: time by category and by row, conclusions, and differences between tables.

A printed table has kernel time by row and its total. It shows no gaps between kernels, does not separate prefill from
decode, and all of it was measured with the profiler on. A trace shows the gaps too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

from benchmarker.core.formatting import MISSING, gib, percent, plural, seconds
from benchmarker.core.tables import Block, Column, Sheet, Text, bold, bullets, plain_line
from benchmarker.explain.phases import Conversion, Phase, table_conversion, table_phase, unpacking
from benchmarker.explain.verdict import bound_of_kernels
from benchmarker.explain.waterfall import Bound
from benchmarker.profiling.kernel_categories import CATEGORIES, UNKNOWN_LIMIT, Category, category, is_float32
from benchmarker.profiling.printed_table import ProfilerTable, TableRow
from benchmarker.profiling.profile_table import KernelLine, kernel_code, kernel_lines

LARGE_BYTES = 10 * 2**30  # Smallest sum of allocations for which an operator is named.
SHOWN_ALLOCATIONS = 2
ENOUGH = 0.5  # Share of the time that a table must list for a verdict.
SHOWN_ROWS = 30
REPEATED = 1.01  # Sum of all rows' own times divided by the total, above which operator rows repeat kernels' times.
WORTH_A_LINE = 0.05  # Share of the time from which a fact is printed.
BUSY = 0.90
LAUNCH_S = 20e-6
"""Mean duration of a launch above which launches must have waited for room in the queue; without a wait, a few us."""
MOST_CATEGORIES = 3  # Categories that a sentence on a difference names.
WORTH_NAMING = 0.02  # Difference, as a share of the larger table's time, from which it is printed.
EQUAL = 1.005  # Largest ratio of two times that are printed as equal.
LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaLaunchKernelExC", "hipLaunchKernel", "hipModuleLaunchKernel")


@dataclass(frozen=True)
class TableReport:
    table: ProfilerTable
    phase: Phase  # Kernel time by category, of the whole profiled run as if it were one token.
    bounds: tuple[Bound, ...]
    """Bottlenecks by kernel time; empty if too little of the time is listed, or the total is unknown."""
    conversion: Conversion | None  # Copy that converts each weight before it is multiplied.

    @property
    def busy_at_most(self) -> float | None:
        """Maximum share of the profiled span in which kernels ran; less if streams overlap, None if unknown."""
        busy_s = self.table.busy_s or self.phase.busy_s
        return busy_s / self.table.span_s if self.table.span_s else None

    @property
    def bound(self) -> str | None:
        """`dequantizing`, or `matrix products and dequantizing`; None if `bounds` is empty."""
        # Convolutions count as linear attention only if the table has other kernels of linear attention.
        is_convolution = "linear attention" not in self.phase.categories
        names = ["convolution" if is_convolution and bound == "linear attention" else bound for bound in self.bounds]
        return ", ".join(names[:-1]) + " and " * (len(names) > 1) + names[-1] if names else None

    @property
    def unit(self) -> str:
        return "kernel" if self.phase.by == "device" else "operator"


def report_on(table: ProfilerTable) -> TableReport | None:
    phase, conversion = table_phase(table, tokens=1), table_conversion(table)
    if not phase.categories:
        return None
    # The printed total of a CPU contains the operators that only create views, and annotations.
    views = [kernel.total_s for kernel in phase.kernels if category(kernel.name) == "bookkeeping"]
    if phase.by == "cpu" and (host_s := sum(views) + table.outside_s):
        phase = replace(phase, categories={**phase.categories, "bookkeeping": host_s})
    is_enough = table.known_total_s is not None and (table.not_listed_share or 0.0) <= 1 - ENOUGH
    bounds = bound_of_kernels(unpacking(phase, conversion)) if is_enough else ()
    return TableReport(table, phase, bounds, conversion)


def table_to_row(report: TableReport) -> dict[str, Any]:
    """Return the report for JSON: values in base units, None for an unknown value."""
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
    table = report.table
    place = f"Table in line {table.line}" if table.line else "Trace"
    process = f", {plain_line(table.process)}" if table.process else ""
    title = f" ({plain_line(table.title)})" if table.title else ""
    verdict = f"most of it for {report.bound}"
    if report.bound is None:
        verdict = "too little of it listed for a verdict"
    elif report.bounds == ("host",):
        verdict = "most of it for views and allocations, and between operators"
    elif report.bounds == ("unknown kernels",):
        verdict = f"most of it in kernels without a category, such as {_unknown(report)}"
    origin = "" if table.is_total_printed else " (worked out from the percentage of a row)"
    sentence = f"{seconds(report.phase.kernel_s)} in {report.unit}s{origin}, {verdict}"
    if table.known_total_s is None:
        sentence = "its total is missing, and without it there is no verdict"
    return [f"{bold(place + process)}{title}: {sentence}", _rows(report), bullets(list(_facts(report)))]


def _unknown(report: TableReport) -> str:
    return kernel_code(next(kernel.name for kernel in report.phase.kernels if category(kernel.name) == "other"))


def _rows(report: TableReport) -> Sheet:
    phase = report.phase
    lines = kernel_lines(phase.kernels, SHOWN_ROWS, unit=report.unit, columns=40)
    if report.table.outside_s:
        lines.append(("(annotations, without their operators)", "bookkeeping", report.table.outside_s, None))
    if phase.not_listed_s:
        lines.append(("(not in the table)", "", phase.not_listed_s, None))
    of_what = "%" if report.table.known_total_s is not None else "% of these"
    columns = [
        Column[KernelLine]("row", lambda line: line[0], "left"),
        Column[KernelLine]("category", lambda line: line[1], "left"),
        Column[KernelLine]("time", lambda line: seconds(line[2])),
        Column[KernelLine](of_what, lambda line: f"{100 * line[2] / phase.kernel_s:.1f}"),
        Column[KernelLine]("calls", lambda line: MISSING if line[3] is None else f"{line[3]:,}"),
    ]
    return Sheet("", columns, lines)


def _facts(report: TableReport) -> Iterator[str]:
    table, phase = report.table, report.phase
    yield from _by_category(report)
    yield from _corrections(table)
    yield from _float32_products(table)
    if table.device_s is not None:
        yield from _host(table, table.device_s)
    if report.conversion is not None:
        kernel = report.conversion.kernel
        yield (
            f"{kernel_code(kernel.name)} takes {percent(report.conversion.share)} and is "
            f"{'launched' if phase.by == 'device' else 'called'} {kernel.calls:,} times, as often as there are matrix "
            "products: a copy that converts each weight before it is multiplied"
        )
    if report.busy_at_most is not None:
        yield (
            f"busy {'' if table.busy_s else 'at most '}{percent(report.busy_at_most)} of the profiled span of "
            f"{seconds(table.span_s)}; that is no verdict, because the profiler slows the host"
        )
    repeated = sum(row.self_device_s or 0.0 for row in table.rows) / table.device_s if table.device_s else 0.0
    if repeated > REPEATED:
        yield (
            f"the own times of all rows add up to {percent(repeated)} of the total: operator rows repeat the time of "
            "their kernels, and annotation rows contain gaps"
        )
    for row in _allocations(table):
        yield f"{kernel_code(row.name)} allocated {gib(row.device_memory_bytes)} in {row.calls:,} calls"
    gaps = f"a table alone does not show gaps between {report.unit}s," if table.line else "a trace alone does not show"
    yield f"{gaps} prefill and decode apart, or the time without the profiler"


def _by_category(report: TableReport) -> Iterator[str]:
    phase, table = report.phase, report.table
    by_size = ", ".join(
        f"{name} {percent(phase.share(name))}" for name in sorted(phase.categories, key=lambda name: -phase.share(name))
    )
    if table.not_listed_share is None:
        yield f"{report.unit} time of the rows listed: {by_size}; the time that the table leaves out is unknown"
    else:
        rest = f", not in the table {percent(phase.not_listed_s / phase.kernel_s)}" if table.line else ""
        yield f"{report.unit} time: {by_size}{rest}"
    if phase.share("other") > UNKNOWN_LIMIT:
        share = percent(phase.share("other"))
        yield f"{share} of the {report.unit} time has no category, such as {_unknown(report)}"


def _corrections(table: ProfilerTable) -> Iterator[str]:
    """Yield facts on rows and lines that are not counted, and on totals that differ from the printed totals."""
    if table.is_total_too_small:
        yield (
            f"its rows add up to {seconds(table.listed_s)}, more than the total of "
            f"{seconds(table.known_total_s or 0.0)} below them: their sum is used"
        )
    if table.annotations_s and table.device_s:
        yield (
            f"the printed total of {seconds(table.device_s + table.annotations_s)} contains "
            f"{seconds(table.annotations_s)} of annotations, as before torch 2.5: kernels took "
            f"{seconds(table.device_s)}"
        )
    if not table.is_whole:
        yield "the table is cut off at its end: its total is worked out from the percentage of a row"
    if table.negative_rows:
        rows = plural(len(table.negative_rows), "row", "rows")
        names = ", ".join(map(kernel_code, table.negative_rows[:3]))
        yield f"{rows} of negative own time, which torch prints, left out: {names}"
    if table.foreign_lines:
        lines = plural(len(table.foreign_lines), "line", "lines")
        numbers = ", ".join(map(str, table.foreign_lines[:5]))
        yield f"{lines} between the rows left out, not a row of the table: line {numbers}"


def _float32_products(table: ProfilerTable) -> Iterator[str]:
    products = [row for row in table.of_kind("kernel") if category(row.name) in ("matmul", "attention")]
    rows = [row for row in products if is_float32(row.name)]
    own_s = sum(row.self_device_s or 0.0 for row in rows)
    if table.by == "device" and rows and own_s >= WORTH_A_LINE * table.total_s:
        largest = max(rows, key=lambda row: row.self_device_s or 0.0)
        yield (
            f"{percent(own_s / table.total_s)} of the kernel time is products or attention in 32-bit floats, most "
            f"of it in {kernel_code(largest.name)}: 16 bits would run on the tensor cores"
        )


def _host(table: ProfilerTable, device_s: float) -> Iterator[str]:
    """Yield facts on the device's time relative to the host's rows (of one or several threads, without Python)."""
    if table.cpu_s:
        busy = device_s / table.cpu_s
        share = "" if busy > 1 else f", {percent(busy)}"
        if busy > 1:
            reason = "kernels ran at the same time on several streams, or the host's rows are incomplete"
        elif busy >= BUSY:
            reason = "as far as those cover the time, the device hardly waits"
        else:
            reason = "with the profiler on, and the rows may be of several threads"
        yield f"{seconds(device_s)} of kernels in {seconds(table.cpu_s)} of the host's rows{share}: {reason}"
        waits_s = sum(
            row.self_cpu_s or 0.0
            for row in table.rows
            if row.name == "Command Buffer Full"
            or (row.name in LAUNCHES and (row.self_cpu_s or 0.0) > LAUNCH_S * row.calls)
        )
        if waits_s >= WORTH_A_LINE * table.cpu_s:
            yield (
                f"the host spent {seconds(waits_s)} on launches that waited for room in the queue: it is ahead of the "
                "device, and its launches cost nothing"
            )
    communication_s = sum(table.own_s(row) for row in table.listed if category(row.name) == "communication")
    if communication_s >= WORTH_A_LINE * table.total_s:
        yield (
            f"communication is {percent(communication_s / table.total_s)} of the kernels' sum; the part of it that "
            "runs beside other kernels costs no time, and a table does not show that part"
        )


def _allocations(table: ProfilerTable) -> list[TableRow]:
    large = [row for row in table.rows if row.kind == "operator" and (row.device_memory_bytes or 0) >= LARGE_BYTES]
    # A caller repeats the sum of its callees: of equal sums, the row with the fewest calls is nearest to the cause.
    nearest: dict[int | None, TableRow] = {}
    for row in sorted(large, key=lambda row: (-(row.self_device_memory_bytes or 0), row.calls)):
        nearest.setdefault(row.device_memory_bytes, row)
    return sorted(nearest.values(), key=lambda row: -(row.device_memory_bytes or 0))[:SHOWN_ALLOCATIONS]


def tables_contrasted(reports: Sequence[TableReport]) -> list[Block]:
    """Compare each table of the first process with its first table, and the processes of one run with each other."""
    first = reports[0]
    same = [report for report in reports if report.table.process == first.table.process]
    names = _names(same)
    sentences = [
        f"{name} {_difference(first, report)}"
        for name, report in zip(names[1:], same[1:], strict=True)
        if report.phase.by == first.phase.by and first.table.known_total_s and report.table.known_total_s
    ]
    blocks: list[Block] = [bold(f"Against {names[0]}"), bullets(sentences)] if sentences else []
    return [*blocks, *_processes(reports)]


def _processes(reports: Sequence[TableReport]) -> list[Block]:
    ordered = list({report.table.process: report for report in reversed(reports)}.values())
    ordered.sort(key=lambda report: report.table.line)
    if len(ordered) < 2:
        return []
    names = [plain_line(report.table.process or f"line {report.table.line}") for report in ordered]
    least_s = WORTH_NAMING * max(report.phase.kernel_s for report in ordered)
    sentences = []
    for purpose in CATEGORIES:
        times = [(report.phase.categories.get(purpose, 0.0), name) for report, name in zip(ordered, names, strict=True)]
        (low_s, low), (high_s, high) = min(times), max(times)
        if high_s - low_s >= least_s:
            sentences.append(f"{purpose}: {seconds(low_s)} in {low} to {seconds(high_s)} in {high}")
    sentences = sentences or ["the same time in every category, within 2 % of the total"]
    return [f"{bold('Processes of one run')}: {', '.join(names)}", bullets(sentences)]


def _names(reports: Sequence[TableReport]) -> list[str]:
    processes = [report.table.process for report in reports]
    if None not in processes and len(set(processes)) == len(processes) > 1:
        return [plain_line(process) for process in processes if process]
    titles = [report.table.title for report in reports]
    if None not in titles and len(set(titles)) == len(titles):
        return [plain_line(title) for title in titles if title]
    return [f"line {report.table.line}" if report.table.line else report.table.process or "trace" for report in reports]


def _difference(first: TableReport, report: TableReport) -> str:
    """Return `takes 8.56x less kernel time (587.35 ms for 5.0250 s): -2.2536 s matmul, -844.08 ms attention`."""
    before_s, after_s = first.phase.kernel_s, report.phase.kernel_s
    ratio = max(before_s, after_s) / min(before_s, after_s)
    than = f"{ratio:.2f}x {'less' if after_s < before_s else 'more'}" if ratio > EQUAL else "the same"
    before, after = first.phase.categories, report.phase.categories
    changes: dict[str, float] = {
        name: after.get(name, 0.0) - before.get(name, 0.0) for name in dict.fromkeys((*before, *after))
    }
    changes["not in the table"] = report.phase.not_listed_s - first.phase.not_listed_s
    largest = sorted(changes.items(), key=lambda change: -abs(change[1]))
    phrases = [
        f"{_signed(change)} {name}"
        for name, change in largest[:MOST_CATEGORIES]
        if abs(change) >= WORTH_NAMING * max(before_s, after_s)
    ]
    parts = f": {', '.join(phrases)}" if phrases else ""
    host = ""
    if ratio <= EQUAL and report.table.device_s and first.table.cpu_s and report.table.cpu_s:
        host = f"; the host's rows take {seconds(report.table.cpu_s)} for {seconds(first.table.cpu_s)}"
    return f"takes {than} {report.unit} time ({seconds(after_s)} for {seconds(before_s)}){parts}{host}"


def _signed(change_s: float) -> str:
    return f"{'+' if change_s >= 0 else '-'}{seconds(abs(change_s))}"


def tables_side_by_side(reports: Sequence[TableReport]) -> list[Block]:
    """Return one table of time by category, with a column for each profiler table and its difference from the first."""
    first = reports[0]
    unit = "kernel" if all(report.phase.by == "device" for report in reports) else "operator"
    lines: list[tuple[str, ...]] = [
        (name, *(_cell(report, first, name) for report in reports))
        for name in CATEGORIES
        if any(name in report.phase.categories for report in reports)
    ]
    rest, totals = ["not in the table"], [Text(bold(f"all {unit}s"))]
    for report in reports:
        is_known = report.table.not_listed_share is not None
        rest.append(seconds(report.phase.not_listed_s) if is_known else MISSING)
        totals.append(Text(bold(f"{'' if is_known else 'at least '}{seconds(report.phase.kernel_s)}")))
    lines += [tuple(rest), tuple(totals)]
    columns = [Column[tuple[str, ...]](f"{unit} time", itemgetter(0), "left")]
    columns += [Column(name, itemgetter(index)) for index, name in enumerate(_names(reports), 1)]
    return [Sheet("Each against the first", columns, lines)]


def _cell(report: TableReport, first: TableReport, name: Category) -> str:
    own_s, before_s = report.phase.categories.get(name), first.phase.categories.get(name)
    if own_s is None:
        return MISSING
    return seconds(own_s) + ("" if report is first or before_s is None else f" ({_signed(own_s - before_s)})")
