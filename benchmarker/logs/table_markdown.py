"""What a printed profiler table says by itself, as markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from benchmarker.core.numbers import percent
from benchmarker.core.tables import Column, bullets, table
from benchmarker.core.units import MISSING, gib, seconds
from benchmarker.explain.numbers import code
from benchmarker.logs.explain_table import TableReport
from benchmarker.profiling.categories import UNKNOWN_LIMIT, Category, category

Line = tuple[str, str, float, str]
"""Name, category, seconds and calls of one row."""
UNKNOWABLE = "a table alone does not tell: gaps between {}, prefill from decode, or the time without the profiler"


def table_to_markdown(report: TableReport) -> str:
    """One table: its rows by category, and what follows from them."""
    rank = f", rank {report.table.rank}" if report.table.rank is not None else ""
    head = f"**Table in line {report.table.line}{rank}**: {_total(report)}, {_verdict(report)}"
    return f"{head}\n\n{_rows(report)}\n\n{bullets(_facts(report))}"


def tables_side_by_side(reports: Sequence[TableReport]) -> str:
    """Kernel time by category, a column a table; the others against the first."""
    first = reports[0]
    names: list[Category] = [
        one for one in get_args(Category) if any(one in report.phase.categories for report in reports)
    ]
    lines = [(str(name), *(_compared(report, first, name) for report in reports)) for name in names]
    lines.append(("not in the table", *map(_not_listed, reports)))
    what = "kernel" if all(report.phase.by == "device" for report in reports) else "operator"
    lines.append((f"**all {what}s**", *(f"**{_at_least(report)}**" for report in reports)))
    columns = [Column[tuple[str, ...]](f"{what} time", lambda line: line[0], "left")]
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


def _not_listed(report: TableReport) -> str:
    return seconds(report.phase.not_listed_s) if report.table.not_listed_share is not None else MISSING


def _at_least(report: TableReport) -> str:
    """All kernels' time; where it is not known what the table leaves out, that of its rows."""
    is_known = report.table.not_listed_share is not None
    return f"{'' if is_known else 'at least '}{seconds(report.phase.kernel_s)}"


def _what(report: TableReport) -> str:
    """What the rows are of, on a device or on a processor."""
    return "kernel" if report.phase.by == "device" else "operator"


def _total(report: TableReport) -> str:
    if report.table.known_total_s is None:
        return "its total is missing"
    said = f"{seconds(report.phase.kernel_s)} in {_what(report)}s"
    return f"{said}{'' if report.table.is_total_printed else ' (worked out from the percentage of a row)'}"


def _verdict(report: TableReport) -> str:
    if report.table.known_total_s is None:
        return "and without it there is no verdict"
    if report.bound is None:
        return "too little of it listed for a verdict"
    said = "most of it for " if report.bound == "bandwidth or compute" else f"by its {_what(report)}s bound by "
    return f"{said}{'matrix products' if report.bound == 'bandwidth or compute' else report.bound}"


def _rows(report: TableReport) -> str:
    """The rows that add up, and what the table leaves out."""
    total_s, left_s = report.phase.kernel_s, report.phase.not_listed_s
    of_what = "%" if report.table.known_total_s is not None else "% of these"
    lines: list[Line] = [
        (code(kernel.name, 40).replace("|", "\\|"), category(kernel.name), kernel.total_s, f"{kernel.calls:,}")
        for kernel in report.phase.kernels
        if report.phase.by == "device" or category(kernel.name) != "bookkeeping"
    ]
    if left_s:
        lines.append(("(not in the table)", "", left_s, MISSING))
    columns = [
        Column[Line]("row", lambda line: line[0], "left"),
        Column[Line]("category", lambda line: line[1], "left"),
        Column[Line]("time", lambda line: seconds(line[2])),
        Column[Line](of_what, lambda line: f"{100 * line[2] / total_s:.1f}"),
        Column[Line]("calls", lambda line: line[3]),
    ]
    return table(columns, lines)


def _facts(report: TableReport) -> list[str]:
    phase, what = report.phase, _what(report)
    listed = [(name, phase.share(name)) for name in phase.categories]
    by_size = ", ".join(f"{name} {percent(share)}" for name, share in sorted(listed, key=lambda one: -one[1]))
    said = [f"{what} time{_left_out(report, by_size)}"]
    if report.table.is_total_too_small:
        said.append(
            f"its rows add up to {seconds(report.table.listed_s)}, more than the total of "
            f"{seconds(report.table.known_total_s or 0.0)} below them: their sum is used"
        )
    if phase.share("other") > UNKNOWN_LIMIT:
        unknown = next(one.name for one in phase.kernels if category(one.name) == "other")
        said.append(
            f"{percent(phase.share('other'))} of the {what} time has no category: the table in profiling/kernels.py "
            f"needs names such as {code(unknown)}"
        )
    if report.conversion:
        kernel = report.conversion.kernel
        ran = "launched" if phase.by == "device" else "called"
        said.append(
            f"{code(kernel.name)} takes {percent(report.conversion.share)} and is {ran} {kernel.calls:,} times, as "
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
    return [*said, UNKNOWABLE.format(f"{what}s")]


def _left_out(report: TableReport, by_size: str) -> str:
    """The categories, and what is known of the rows that are not there."""
    share = report.table.not_listed_share
    if share is None:
        return f" of the rows listed: {by_size}; what the table leaves out is not known"
    return f": {by_size}, not in the table {percent(report.phase.not_listed_s / report.phase.kernel_s)}"
