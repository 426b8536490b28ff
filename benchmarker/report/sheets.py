"""The tables of a comparison: what is printed and what the report shows are these, column by column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from benchmarker.comparison.rows import CellKey, Results, Row
from benchmarker.comparison.words import cell_words
from benchmarker.core.tables import Column, escaped
from benchmarker.report.columns import Columns, bound, cell_columns, costs, energy, memory, names, speed_up, timing
from benchmarker.report.quality import quality_columns
from benchmarker.report.tasks import answers, task_columns


class Sheet(NamedTuple):
    """One table."""

    title: str
    """Empty where it is the only one, of no cell."""
    columns: Sequence[Column[Any]]
    rows: Sequence[Any]


def sheets(results: Results) -> list[Sheet]:
    """The answer at the largest cell first; then every cell, quality and tasks, where there are any."""
    rows, chosen = results.rows, headline_rows(results.rows)
    cell = chosen[0].cell if chosen else None
    first: Columns = [*names(rows), *timing(chosen), *speed_up(results), *bound(chosen), *costs(chosen)]
    found = [Sheet(f"At {cell_words(cell)}" if cell else "", first, chosen)]
    if len({row.cell for row in rows}) > 1:
        found.append(Sheet("Every cell", _every_cell(results), rows))
    if quality := quality_columns(chosen):
        found.append(Sheet("Quality", quality, chosen))
    asked = answers(chosen)
    if tasks := task_columns(asked):
        found.append(Sheet("Tasks", tasks, asked))
    return found


def headline_rows(rows: Sequence[Row]) -> list[Row]:
    """Those that the first table shows."""
    cell = headline(rows)
    return [row for row in rows if row.cell == cell]


def limit_rows(rows: Sequence[Row]) -> list[Row]:
    """Those that are shown beside their limits: the first table's, at every batch size and depth.

    A decode step is limited by these two; how long its prompt was and how many tokens follow hardly matter to it.
    """
    cell = headline(rows)
    return [row for row in rows if cell and row.cell and _one_sequence(row.cell) == _one_sequence(cell)]


def _one_sequence(cell: CellKey) -> CellKey:
    return replace(cell, batch_size=1, depth=0)


def headline(rows: Sequence[Row]) -> CellKey | None:
    """The cell that the first table shows: the largest of those that most variants could do."""
    able: dict[CellKey, int] = {}
    for row in rows:
        if row.cell:
            able[row.cell] = able.get(row.cell, 0) + (row.status == "ok")
    return max(
        able,
        key=lambda key: (able[key], key.batch_size * (key.depth + key.prompt_tokens + key.new_tokens), key),
        default=None,
    )


def forced(results: Results) -> list[str]:
    """What differs although it should not, and was compared all the same."""
    if not results.differences:
        return []
    return [f"**not comparable, forced:** {'; '.join(escaped(one, longest=300) for one in results.differences)}"]


def left_out(results: Results) -> list[str]:
    """The files that could not be read."""
    return [f"left out: {escaped(problem, longest=300)}" for problem in results.problems]


def _every_cell(results: Results) -> Columns:
    rows = results.rows
    columns: Columns = [*cell_columns(rows), *names(rows), *timing(rows), *speed_up(results), *memory(rows)]
    if any(row.energy and row.cell != headline(rows) for row in rows):
        # Counted at the largest cell that a variant could do, which is not always the first table's.
        columns += energy(rows)
    return columns
