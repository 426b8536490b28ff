"""The tables of a comparison: what is printed and what the report shows are these, column by column."""

from __future__ import annotations

from benchmarker.comparison.rows import Results, headline_rows
from benchmarker.comparison.words import cell_words
from benchmarker.core.tables import Sheet, escaped
from benchmarker.report.columns import bound, memory, speed_up
from benchmarker.report.presentation import presentation_of


def sheets(results: Results) -> list[Sheet]:
    """The answer at the largest cell first; then every cell, and what else the workload has."""
    rows, chosen = results.rows, headline_rows(results.rows)
    shown = presentation_of(results.workload)
    cell = chosen[0].cell if chosen else None
    first = [*shown.names(rows), *shown.timing(chosen), *speed_up(results), *bound(chosen), *shown.costs(chosen)]
    tables = [Sheet(f"At {cell_words(cell)}" if cell else "", first, chosen)]
    if len({row.cell for row in rows}) > 1:
        columns = [*shown.cell(rows), *shown.names(rows), *shown.timing(rows), *speed_up(results), *memory(rows)]
        tables.append(Sheet("Every cell", [*columns, *shown.every_cell(rows)], rows))
    return [*tables, *shown.details(chosen)]


def forced(results: Results) -> list[str]:
    """What differs although it should not, and was compared all the same."""
    if not results.differences:
        return []
    return [f"**not comparable, forced:** {'; '.join(escaped(one, longest=300) for one in results.differences)}"]


def left_out(results: Results) -> list[str]:
    """The files that could not be read."""
    return [f"left out: {escaped(problem, longest=300)}" for problem in results.problems]
