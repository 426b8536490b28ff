"""Several printed profiler tables of one log against each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from benchmarker.core.formatting import MISSING, seconds
from benchmarker.core.tables import Block, Column, Sheet, Text, bold, bullets, escaped
from benchmarker.logs.explain_table import TableReport
from benchmarker.profiling.categories import Category

MOST_CATEGORIES = 3
"""Categories that a sentence names."""
WORTH_NAMING = 0.02
"""Part of the larger table's time: smaller differences are left out."""


def tables_contrasted(reports: Sequence[TableReport]) -> list[Block]:
    """A sentence for each table against the first; nothing for a single one, or one whose total is not known."""
    first, names = reports[0], _names(reports)
    sentences = [
        f"{name} {_difference(first, report)}"
        for name, report in zip(names[1:], reports[1:], strict=True)
        if report.phase.by == first.phase.by and first.table.known_total_s and report.table.known_total_s
    ]
    return [bold(f"Against {names[0]}"), bullets(sentences)] if sentences else []


def _names(reports: Sequence[TableReport]) -> list[str]:
    """The tables' titles in the text; the numbers of their lines where a title is missing or repeated."""
    titles = [report.table.title for report in reports]
    if None not in titles and len(set(titles)) == len(titles):
        return [escaped(title) for title in titles if title]
    return [f"line {report.table.line}" for report in reports]


def _difference(first: TableReport, report: TableReport) -> str:
    """`takes 8.56x less kernel time (587.35 ms for 5.0250 s): -2.2536 s matmul, -844.08 ms attention`."""
    before_s, after_s = first.phase.kernel_s, report.phase.kernel_s
    what = "kernel" if report.phase.by == "device" else "operator"
    times = max(before_s, after_s) / min(before_s, after_s)
    than = f"{times:.2f}x {'less' if after_s < before_s else 'more'} {what} time"
    before, after = _times(first), _times(report)
    changes = {name: after.get(name, 0.0) - before.get(name, 0.0) for name in before | after}
    largest = sorted(changes.items(), key=lambda change: -abs(change[1]))
    phrases = [
        f"{'+' if change >= 0 else '-'}{seconds(abs(change))} {name}"
        for name, change in largest[:MOST_CATEGORIES]
        if abs(change) >= WORTH_NAMING * max(before_s, after_s)
    ]
    parts = f": {', '.join(phrases)}" if phrases else ""
    return f"takes {than} ({seconds(after_s)} for {seconds(before_s)}){parts}"


def _times(report: TableReport) -> dict[str, float]:
    """Seconds by category of kernel, and of the rows that the table leaves out."""
    return {
        **{str(name): own_s for name, own_s in report.phase.categories.items()},
        "not in the table": report.phase.not_listed_s,
    }


def tables_side_by_side(reports: Sequence[TableReport]) -> list[Block]:
    """Kernel time by category, a column a table; the others against the first."""
    first = reports[0]
    names: list[Category] = [
        name for name in get_args(Category) if any(name in report.phase.categories for report in reports)
    ]
    lines = [(str(name), *(_compared(report, first, name) for report in reports)) for name in names]
    lines.append(("not in the table", *map(_not_listed, reports)))
    what = "kernel" if all(report.phase.by == "device" for report in reports) else "operator"
    lines.append((Text(bold(f"all {what}s")), *(Text(bold(_at_least(report))) for report in reports)))
    columns = [Column[tuple[str, ...]](f"{what} time", lambda line: line[0], "left")]
    columns += [_column(index, name) for index, name in enumerate(_names(reports), 1)]
    return [Sheet("Each against the first", columns, lines)]


def _column(index: int, name: str) -> Column[tuple[str, ...]]:
    return Column(name, lambda line: line[index])


def _compared(report: TableReport, first: TableReport, name: Category) -> str:
    """`587.35 ms (-2.2536 s)`: a category's time in a table, and its difference to the first table."""
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
    """The time of all kernels; where the table leaves out an unknown part, `at least` that of its rows."""
    is_known = report.table.not_listed_share is not None
    return f"{'' if is_known else 'at least '}{seconds(report.phase.kernel_s)}"
