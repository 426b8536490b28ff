"""The tables that a person reads, as markdown: first the answer at the largest cell, then every cell.

A column appears where some row knows its value or, for what is mostly the same, where it varies. A failed cell says
so in words; what was not measured is a dash.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarker.comparison.aggregate import make_row
from benchmarker.comparison.comparing import keys_of
from benchmarker.comparison.rows import CellKey, Context, Results, headline_rows, with_bound
from benchmarker.core.tables import bullets, table
from benchmarker.report.columns import bound, memory
from benchmarker.report.presentation import Sheet, presentation_of
from benchmarker.report.sheets import forced, left_out, sheets
from benchmarker.schema.record import RunRecord


def to_markdown(results: Results) -> str:
    """A whole comparison: what was measured, the tables, how to read them, and the caveats."""
    rows, chosen, shown = results.rows, headline_rows(results.rows), presentation_of(results.workload)
    first, *others = sheets(results)
    parts = [bullets([*forced(results), *shown.header(results.records)]), *_shown(first)]
    limits = shown.limits(shown.beside_limits(rows))
    if limits:
        parts += ["**Against the limits of the device**", table(limits.columns, limits.rows)]
    for sheet in others:
        parts += _shown(sheet)
    parts += [shown.caption(results), limits.caption if limits else "", *shown.paragraphs(chosen)]
    parts.append(bullets(shown.remarks(rows, results.baseline)))
    if results.reasons:
        parts += ["**Why**", bullets(results.reasons)]
    closing = shown.closing(chosen, results.baseline)
    parts.append(bullets([*shown.caveats(results.records, rows), *closing, *left_out(results)]))
    return "\n\n".join(filter(None, parts)) + "\n"


def _shown(sheet: Sheet) -> list[str]:
    return [*([f"**{sheet.title}**"] if sheet.title else []), table(sheet.columns, sheet.rows)]


def summary(record: RunRecord, *, bounds: Mapping[tuple[str, Context], str] | None = None) -> str:
    """What is printed at the end of one run: a row per cell.

    Args:
        bounds: As of `with_bound`.
    """
    cells = sorted(keys_of(record))
    keys: list[CellKey | None] = [*cells] or [None]
    rows = tuple(with_bound(make_row(record.variant.name, key, [record]), bounds or {}) for key in keys)
    results, shown = Results(rows=rows, records=(record,)), presentation_of(record.workload)
    columns = [*shown.cell(rows, always=True), *shown.timing(rows), *memory(rows), *bound(rows)]
    limits = shown.limits(rows)
    parts = [
        bullets([*shown.variant_lines(record), *shown.header([record]), *shown.loaded_lines(record)]),
        table(columns, rows) if cells else "",
        table(limits.columns, limits.rows) if limits else "",
        shown.caption(results),
        limits.caption if limits else "",
        bullets(shown.caveats([record], rows)),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"
