"""Differences between the profiler tables of one log: profiles of one process, or processes of one run."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from benchmarker.core.formatting import MISSING, seconds
from benchmarker.core.tables import Block, Column, Sheet, Text, bold, bullets, plain_line
from benchmarker.logs.table_report import TableReport
from benchmarker.profiling.categories import CATEGORIES, Category

MOST_CATEGORIES = 3
"""Categories that a sentence on a difference names."""
WORTH_NAMING = 0.02
"""Part of the larger table's time from which on a difference is named."""
EQUAL = 1.005
"""Ratio of two times that are printed as equal."""


def tables_contrasted(reports: Sequence[TableReport]) -> list[Block]:
    """Compare the tables of one process with its first, and the processes of one run with each other."""
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
    """The first table of each process, and the categories in which they differ."""
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
    """`takes 8.56x less kernel time (587.35 ms for 5.0250 s): -2.2536 s matmul, -844.08 ms attention`."""
    before_s, after_s = first.phase.kernel_s, report.phase.kernel_s
    ratio = max(before_s, after_s) / min(before_s, after_s)
    than = f"{ratio:.2f}x {'less' if after_s < before_s else 'more'}" if ratio > EQUAL else "the same"
    before, after = _times(first), _times(report)
    changes = {name: after.get(name, 0.0) - before.get(name, 0.0) for name in before | after}
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


def _times(report: TableReport) -> dict[str, float]:
    return {
        **{str(name): own_s for name, own_s in report.phase.categories.items()},
        "not in the table": report.phase.not_listed_s,
    }


def tables_side_by_side(reports: Sequence[TableReport]) -> list[Block]:
    """Render time by category, with a column for each table and the difference to the first."""
    first = reports[0]
    unit = "kernel" if all(report.phase.by == "device" for report in reports) else "operator"
    lines = [
        (name, *(_cell(report, first, name) for report in reports))
        for name in CATEGORIES
        if any(name in report.phase.categories for report in reports)
    ]
    is_known = [report.table.not_listed_share is not None for report in reports]
    rest = (
        seconds(report.phase.not_listed_s) if known else MISSING
        for report, known in zip(reports, is_known, strict=True)
    )
    totals = (
        Text(bold(f"{'' if known else 'at least '}{seconds(report.phase.kernel_s)}"))
        for report, known in zip(reports, is_known, strict=True)
    )
    lines += [("not in the table", *rest), (Text(bold(f"all {unit}s")), *totals)]
    columns = [Column[tuple[str, ...]](f"{unit} time", itemgetter(0), "left")]
    columns += [Column(name, itemgetter(index)) for index, name in enumerate(_names(reports), 1)]
    return [Sheet("Each against the first", columns, lines)]


def _cell(report: TableReport, first: TableReport, name: Category) -> str:
    """`587.35 ms (-2.2536 s)`: a category's time in a table, and its difference to the first table."""
    own_s, before_s = report.phase.categories.get(name), first.phase.categories.get(name)
    if own_s is None:
        return MISSING
    return seconds(own_s) + ("" if report is first or before_s is None else f" ({_signed(own_s - before_s)})")
