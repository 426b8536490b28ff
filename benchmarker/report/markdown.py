"""The tables that a person reads, as markdown: first the answer at the largest cell, then every cell.

A column appears where some row knows its value or, for what is mostly the same, where it varies. A failed cell says
so in words; what was not measured is a dash.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchmarker.record import RunRecord
from benchmarker.report.captions import caption
from benchmarker.report.caveats import caveats
from benchmarker.report.columns import Columns, bound, cell_columns, costs, energy, memory, names, speed_up, timing
from benchmarker.report.gather import keys_of, make_row
from benchmarker.report.header import header, load_words
from benchmarker.report.limits import batch_words, limit_caption, limit_table
from benchmarker.report.quality import quality_caption, quality_columns, text_line
from benchmarker.report.rows import CellKey, Results, Row
from benchmarker.report.tables import bullets, escaped, table
from benchmarker.report.tasks import answers, task_caption, task_columns
from benchmarker.report.words import cell_words


def to_markdown(results: Results) -> str:
    """A whole comparison: what was measured, the tables, how to read them, and the caveats."""
    rows = results.rows
    cell = headline(rows)
    chosen = [row for row in rows if row.cell == cell]
    parts = [bullets([*_forced(results.differences), *header(results.records)])]
    if cell:
        parts.append(f"**At {cell_words(cell)}**")
    parts.append(table([*names(rows), *timing(chosen), *speed_up(results), *costs(chosen)], chosen))
    if limits := limit_table(chosen):
        parts += ["**Against the limits of the device**", limits]
    if len({row.cell for row in rows}) > 1:
        parts += ["**Every cell**", _grid(results)]
    if quality := quality_columns(chosen):
        parts += ["**Quality**", table(quality, chosen)]
    asked = answers(chosen)
    if tasks := task_columns(asked):
        parts += ["**Tasks**", table(tasks, asked)]
    parts += [caption(results), limit_caption(chosen), quality_caption(chosen), task_caption(asked)]
    parts.append(bullets(batch_words(rows, results.baseline)))
    if results.reasons:
        parts += ["**Why**", bullets(results.reasons)]
    lines = [*caveats(results.records, rows), *text_line(chosen, results.baseline), *map(_left_out, results.problems)]
    parts.append(bullets(lines))
    return "\n\n".join(filter(None, parts)) + "\n"


def summary(record: RunRecord, *, bound_by: str | None = None) -> str:
    """What is printed at the end of one run: a row per cell.

    Args:
        bound_by: What the cells with the profiled prompt wait for.
    """
    known = sorted(keys_of(record))
    keys: list[CellKey | None] = [*known] or [None]
    rows = tuple(_bound(make_row(record.variant.name, key, [record]), record, bound_by) for key in keys)
    results = Results(rows=rows, records=(record,))
    columns: Columns = [*cell_columns(rows, always=True), *timing(rows), *memory(rows), *bound(rows)]
    parts = [
        bullets(
            [
                f"variant: {escaped(record.variant.name)}, runtime {escaped(record.variant.runtime)}",
                *header([record]),
                *load_words(record),
            ]
        ),
        table(columns, rows) if known else "",
        limit_table(rows),
        caption(results),
        limit_caption(rows),
        bullets(caveats([record], rows)),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _bound(row: Row, record: RunRecord, bound_by: str | None) -> Row:
    profile = record.profile
    context = (profile.batch_size, profile.prompt_tokens, profile.depth or 0) if profile else None
    is_profiled = row.cell is not None and row.cell.context == context and row.status == "ok"
    return replace(row, bound_by=bound_by) if is_profiled else row


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


def _grid(results: Results) -> str:
    rows = results.rows
    columns: Columns = [*cell_columns(rows), *names(rows), *timing(rows), *speed_up(results), *memory(rows)]
    if any(row.energy and row.cell != headline(rows) for row in rows):
        # Counted at the largest cell that a variant could do, which is not always the first table's.
        columns += energy(rows)
    return table(columns, rows)


def _forced(differences: Sequence[str]) -> list[str]:
    if not differences:
        return []
    return [f"**not comparable, forced:** {'; '.join(escaped(one, longest=300) for one in differences)}"]


def _left_out(problem: str) -> str:
    return f"left out: {escaped(problem, longest=300)}"
