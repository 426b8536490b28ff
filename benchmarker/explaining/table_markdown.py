"""What a printed profiler table says by itself, as markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from benchmarker.explaining.tables import TableReport
from benchmarker.explaining.words import code, percent
from benchmarker.profiling.kernels import Category, category
from benchmarker.report.tables import Column, bullets, table
from benchmarker.units import MISSING, gib, seconds

Line = tuple[str, str, float, str]
"""Name, category, seconds and calls of one row."""
UNKNOWABLE = "a table alone does not tell: gaps between kernels, prefill from decode, or the time without the profiler"


def table_to_markdown(report: TableReport) -> str:
    """One table: its rows by category, and what follows from them."""
    rank = f", rank {report.table.rank}" if report.table.rank is not None else ""
    device_s = report.table.device_s
    total = f"{seconds(device_s)} in kernels" if device_s is not None else "its total is missing"
    head = f"**Table in line {report.table.line}{rank}**: {total}, {_verdict(report)}"
    return f"{head}\n\n{_rows(report)}\n\n{bullets(_facts(report))}"


def tables_side_by_side(reports: Sequence[TableReport]) -> str:
    """Kernel time by category, a column a table; the others against the first."""
    first = reports[0]
    names: list[Category] = [
        one for one in get_args(Category) if any(one in report.phase.categories for report in reports)
    ]
    lines = [(str(name), *(_compared(report, first, name) for report in reports)) for name in names]
    lines.append(("not in the table", *(seconds(report.phase.not_listed_s) for report in reports)))
    lines.append(("**all kernels**", *(f"**{seconds(report.phase.kernel_s)}**" for report in reports)))
    columns = [Column[tuple[str, ...]]("kernel time", lambda line: line[0], "left")]
    columns += [_column(index, report) for index, report in enumerate(reports, 1)]
    return f"**Each against the first**\n\n{table(columns, lines)}"


def _column(index: int, report: TableReport) -> Column[tuple[str, ...]]:
    return Column(f"line {report.table.line}", lambda line: line[index])


def _compared(report: TableReport, first: TableReport, name: Category) -> str:
    own_s = report.phase.categories.get(name)
    if own_s is None:
        return MISSING
    before_s = first.phase.categories.get(name)
    if report is first or before_s is None:
        return seconds(own_s)
    change = own_s - before_s
    return f"{seconds(own_s)} ({'+' if change >= 0 else '-'}{seconds(abs(change))})"


def _verdict(report: TableReport) -> str:
    said = "most of it for " if report.bound == "bandwidth or compute" else "by its kernels bound by "
    return f"{said}{'matrix products' if report.bound == 'bandwidth or compute' else report.bound}"


def _rows(report: TableReport) -> str:
    """The rows that add up, and what the table leaves out."""
    total_s, left_s = report.phase.kernel_s, report.phase.not_listed_s
    lines: list[Line] = [
        (code(row.name, 40).replace("|", "\\|"), category(row.name), row.self_device_s or 0.0, f"{row.calls:,}")
        for row in sorted(report.table.listed, key=lambda row: -(row.self_device_s or 0.0))
    ]
    if left_s:
        lines.append(("(not in the table)", "", left_s, MISSING))
    columns = [
        Column[Line]("row", lambda line: line[0], "left"),
        Column[Line]("category", lambda line: line[1], "left"),
        Column[Line]("time", lambda line: seconds(line[2])),
        Column[Line]("%", lambda line: f"{100 * line[2] / total_s:.1f}"),
        Column[Line]("calls", lambda line: line[3]),
    ]
    return table(columns, lines)


def _facts(report: TableReport) -> list[str]:
    phase = report.phase
    listed = [(name, phase.share(name)) for name in phase.categories]
    by_size = ", ".join(f"{name} {percent(share)}" for name, share in sorted(listed, key=lambda one: -one[1]))
    said = [f"kernel time: {by_size}, not in the table {percent(phase.not_listed_s / phase.kernel_s)}"]
    if report.conversion:
        kernel = report.conversion.kernel
        said.append(
            f"{code(kernel.name)} takes {percent(report.conversion.share)} and is launched {kernel.calls:,} times, as "
            "often as there are matrix products: a copy that converts each weight before it is multiplied"
        )
    if report.busy_at_most is not None:
        said.append(
            f"busy at most {percent(report.busy_at_most)} of the *profiled* span of {seconds(report.span_s)}; that is "
            "no verdict, as the profiler slows the host"
        )
    if report.repeated is not None and report.repeated > 1.01:
        said.append(
            f"all rows' own times add up to {percent(report.repeated)} of the total: operators repeat their kernels, "
            "and annotations span the gaps"
        )
    said += [
        f"{code(row.name)} allocated {gib(row.device_memory_bytes)} in {row.calls:,} calls"
        for row in report.allocations
    ]
    return [*said, UNKNOWABLE]
