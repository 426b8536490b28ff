"""What a printed profiler table says, for a program: plain values in base units, null for what is not known."""

from __future__ import annotations

from typing import Any

from benchmarker.logs.explain_table import TableReport


def table_to_row(report: TableReport) -> dict[str, Any]:
    """One object a table."""
    table, phase = report.table, report.phase
    return {
        "table_line": table.line,
        "title": table.title,
        "rank": table.rank,
        "is_whole": table.is_whole,
        "by": phase.by,
        "bound_by": report.bound,
        "kernel_s": phase.kernel_s if table.known_total_s is not None else None,
        "categories_s": dict(phase.categories),
        "not_listed_s": phase.not_listed_s if table.not_listed_share is not None else None,
        "profiled_span_s": report.span_s,
        "busy_at_most_of_profiled_span": report.busy_at_most,
    }
