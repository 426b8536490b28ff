"""The tables of a comparison: what is printed and what the report shows are these, column by column."""

from __future__ import annotations

from benchmarker.comparison.rows import Results, headline_rows
from benchmarker.comparison.words import cell_words
from benchmarker.core.tables import Sheet, bold, escaped
from benchmarker.report.columns import against_named, bound, speed_up, whole_call
from benchmarker.schema.registry import workload_of


def sheets(results: Results) -> list[Sheet]:
    """The answer at the largest cell first; then every cell, and what else the workload has."""
    rows, chosen = results.rows, headline_rows(results.rows)
    workload = workload_of(results.workload)
    cell = chosen[0].cell if chosen else None
    columns = [
        *workload.name_columns(rows),
        *workload.timing_columns(chosen),
        *speed_up(chosen),
        *against_named(chosen, results.named),
        *whole_call(chosen, results.baseline),
        *bound(chosen),
        *workload.cost_columns(chosen),
    ]
    tables = [Sheet(f"At {cell_words(cell)}" if cell else "", columns, chosen)]
    if len({row.cell for row in rows}) > 1:
        columns = [
            *workload.cell_columns(rows),
            *workload.name_columns(rows),
            *workload.timing_columns(rows),
            *speed_up(rows),
            *against_named(rows, results.named),
            *whole_call(rows, results.baseline),
            *workload.cost_columns(rows, whole=True),
        ]
        tables.append(Sheet("Every cell", columns, rows))
    return [*tables, *workload.detail_sheets(chosen)]


def where(results: Results) -> str:
    """Model, device and how often, in a line or two."""
    lines = workload_of(results.workload).header(results.records)
    chosen = [line for line in lines if not line.startswith("versions:")]
    return ". ".join(line.split(": ", 1)[1] for line in chosen) + "."


def forced(results: Results) -> list[str]:
    """What differs although it should not, and was compared all the same."""
    if not results.differences:
        return []
    differences = (escaped(difference, longest=300) for difference in results.differences)
    return [f"{bold('not comparable, forced:')} {'; '.join(differences)}"]


def left_out(results: Results) -> list[str]:
    """The files that could not be read."""
    return [f"left out: {escaped(problem, longest=300)}" for problem in results.problems]
