"""What a printed profiler table says by itself, as markdown."""

from __future__ import annotations

from benchmarker.core.formatting import MISSING, gib, percent, seconds
from benchmarker.core.tables import Block, Column, Sheet, Text, bold, bullets, escaped
from benchmarker.explain.values import code
from benchmarker.logs.explain_table import TableReport
from benchmarker.logs.table_facts import against_the_host, singles_in_full
from benchmarker.profiling.categories import UNKNOWN_LIMIT, category

Line = tuple[str, str, float, str]
"""Name, category, seconds and calls of one row."""
UNKNOWABLE = "a table alone does not tell: gaps between {}, prefill from decode, or the time without the profiler"


def table_to_blocks(report: TableReport) -> list[Block]:
    """One table: its rows by category, and what follows from them."""
    table = report.table
    rank = f", rank {table.rank}" if table.rank is not None else ""
    title = f" ({escaped(table.title)})" if table.title else ""
    head = f"{bold(f'Table in line {table.line}{rank}')}{title}: {_total(report)}, {_verdict(report)}"
    return [head, _rows(report), bullets(_facts(report))]


def _what(report: TableReport) -> str:
    """What the rows are of, on a device or on a processor."""
    return "kernel" if report.phase.by == "device" else "operator"


def _total(report: TableReport) -> str:
    if report.table.known_total_s is None:
        return "its total is missing"
    total = f"{seconds(report.phase.kernel_s)} in {_what(report)}s"
    return f"{total}{'' if report.table.is_total_printed else ' (worked out from the percentage of a row)'}"


def _verdict(report: TableReport) -> str:
    if report.table.known_total_s is None:
        return "and without it there is no verdict"
    if report.bound is None:
        return "too little of it listed for a verdict"
    if report.bounds == ("unknown kernels",):
        kernel = next(kernel for kernel in report.phase.kernels if category(kernel.name) == "other")
        return f"most of it in kernels that no rule knows, such as {code(kernel.name)}"
    return f"most of it for {report.bound}"


def _rows(report: TableReport) -> Sheet:
    """The rows that add up, and what the table leaves out."""
    total_s, not_listed_s = report.phase.kernel_s, report.phase.not_listed_s
    of_what = "%" if report.table.known_total_s is not None else "% of these"
    lines: list[Line] = [
        (Text(code(kernel.name, 40)), category(kernel.name), kernel.total_s, f"{kernel.calls:,}")
        for kernel in report.phase.kernels
        if report.phase.by == "device" or category(kernel.name) != "bookkeeping"
    ]
    if not_listed_s:
        lines.append(("(not in the table)", "", not_listed_s, MISSING))
    columns = [
        Column[Line]("row", lambda line: line[0], "left"),
        Column[Line]("category", lambda line: line[1], "left"),
        Column[Line]("time", lambda line: seconds(line[2])),
        Column[Line](of_what, lambda line: f"{100 * line[2] / total_s:.1f}"),
        Column[Line]("calls", lambda line: line[3]),
    ]
    return Sheet("", columns, lines)


def _facts(report: TableReport) -> list[str]:
    """What follows from the table, a sentence each, and last what a table cannot tell."""
    return [
        *_by_category(report),
        *singles_in_full(report),
        *against_the_host(report),
        *_conversion(report),
        *_profiled_span(report),
        *_allocations(report),
        UNKNOWABLE.format(f"{_what(report)}s"),
    ]


def _by_category(report: TableReport) -> list[str]:
    """The categories by their size, whether they add up, and names that no rule knows."""
    phase, what = report.phase, _what(report)
    shares = [(name, phase.share(name)) for name in phase.categories]
    by_size = ", ".join(f"{name} {percent(share)}" for name, share in sorted(shares, key=lambda pair: -pair[1]))
    facts = [f"{what} time{_left_out(report, by_size)}"]
    if report.table.is_total_too_small:
        facts.append(
            f"its rows add up to {seconds(report.table.listed_s)}, more than the total of "
            f"{seconds(report.table.known_total_s or 0.0)} below them: their sum is used"
        )
    if not report.table.is_whole:
        facts.append("the table is cut off at its end: its total is worked out from the percentage of a row")
    if phase.share("other") > UNKNOWN_LIMIT:
        unknown = next(kernel.name for kernel in phase.kernels if category(kernel.name) == "other")
        facts.append(
            f"{percent(phase.share('other'))} of the {what} time has no category: no rule knows names such as "
            f"{code(unknown)}"
        )
    return facts


def _conversion(report: TableReport) -> list[str]:
    """Whether a copy converts each weight before it is multiplied."""
    if report.conversion is None:
        return []
    kernel = report.conversion.kernel
    ran = "launched" if report.phase.by == "device" else "called"
    return [
        f"{code(kernel.name)} takes {percent(report.conversion.share)} and is {ran} {kernel.calls:,} times, as "
        "often as there are matrix products: a copy that converts each weight before it is multiplied"
    ]


def _profiled_span(report: TableReport) -> list[str]:
    """How much of the profiled time the device was busy, and whether operators count their kernels again."""
    facts = []
    if report.busy_at_most is not None:
        facts.append(
            f"busy at most {percent(report.busy_at_most)} of the profiled span of {seconds(report.span_s)}; that is "
            "no verdict, as the profiler slows the host"
        )
    if report.repeated is not None and report.repeated > 1.01:
        facts.append(
            f"all rows' own times add up to {percent(report.repeated)} of the total: operators repeat their kernels, "
            "and annotations span the gaps"
        )
    return facts


def _allocations(report: TableReport) -> list[str]:
    """The operators that allocated most memory on the device."""
    return [
        f"{code(row.name)} allocated {gib(row.device_memory_bytes)} in {row.calls:,} calls"
        for row in report.allocations
    ]


def _left_out(report: TableReport, by_size: str) -> str:
    """The categories, and what is known of the rows that are not there."""
    share = report.table.not_listed_share
    if share is None:
        return f" of the rows listed: {by_size}; what the table leaves out is not known"
    return f": {by_size}, not in the table {percent(report.phase.not_listed_s / report.phase.kernel_s)}"
