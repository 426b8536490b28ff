"""The tables that a person reads, as markdown: first the answer at the largest cell, then every cell.

A column appears where some row knows its value or, for what is mostly the same, where it varies. A failed cell says
so in words; what was not measured is a dash.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarker.comparison.aggregate import keys_of, make_row
from benchmarker.comparison.rows import CellKey, Context, Results, with_bound
from benchmarker.core.tables import bullets, escaped, table
from benchmarker.report.captions import caption
from benchmarker.report.caveats import caveats
from benchmarker.report.columns import Columns, bound, cell_columns, memory, timing
from benchmarker.report.header import header, load_words
from benchmarker.report.limits import batch_words, limit_caption, limit_table
from benchmarker.report.quality import quality_caption, text_line
from benchmarker.report.sheets import Sheet, forced, headline_rows, left_out, limit_rows, sheets
from benchmarker.report.tasks import answers, task_caption
from benchmarker.workloads.generation.record import GenerationRecord


def to_markdown(results: Results) -> str:
    """A whole comparison: what was measured, the tables, how to read them, and the caveats."""
    rows, chosen = results.rows, headline_rows(results.rows)
    first, *others = sheets(results)
    parts = [bullets([*forced(results), *header(results.records)]), *_shown(first)]
    beside_limits = limit_rows(rows)
    if limits := limit_table(beside_limits):
        parts += ["**Against the limits of the device**", limits]
    for sheet in others:
        parts += _shown(sheet)
    parts += [caption(results), limit_caption(beside_limits), quality_caption(chosen), task_caption(answers(chosen))]
    parts.append(bullets(batch_words(rows, results.baseline)))
    if results.reasons:
        parts += ["**Why**", bullets(results.reasons)]
    parts.append(bullets([*caveats(results.records, rows), *text_line(chosen, results.baseline), *left_out(results)]))
    return "\n\n".join(filter(None, parts)) + "\n"


def _shown(sheet: Sheet) -> list[str]:
    return [*([f"**{sheet.title}**"] if sheet.title else []), table(sheet.columns, sheet.rows)]


def summary(record: GenerationRecord, *, bounds: Mapping[tuple[str, Context], str] | None = None) -> str:
    """What is printed at the end of one run: a row per cell.

    Args:
        bounds: As of `with_bound`.
    """
    known = sorted(keys_of(record))
    keys: list[CellKey | None] = [*known] or [None]
    rows = tuple(with_bound(make_row(record.variant.name, key, [record]), bounds or {}) for key in keys)
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
