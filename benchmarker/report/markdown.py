"""The tables that a person reads, as markdown: first the answer at the largest cell, then every cell.

A column appears where some row knows its value or, for what is mostly the same, where it varies. A failed cell says
so in words; what was not measured is a dash.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarker.comparison.aggregate import make_row
from benchmarker.comparison.comparing import keys_of
from benchmarker.comparison.rows import CellKey, Context, Results, with_bound
from benchmarker.core import tables
from benchmarker.core.tables import Block, Sheet, bold, bullets
from benchmarker.report.columns import bound, memory
from benchmarker.report.sheets import forced, left_out, sheets
from benchmarker.schema.record import RunRecord
from benchmarker.schema.registry import workload_of


def to_markdown(results: Results) -> str:
    """A whole comparison: what was measured, the tables, how to read them, and the caveats."""
    return tables.to_markdown(whole(results))


def whole(results: Results) -> list[Block]:
    """What `to_markdown` prints of a comparison, as blocks that are not rendered yet."""
    rows, workload = results.rows, workload_of(results.workload)
    first, *others = sheets(results)
    limits = workload.limit_sheet(rows, whole=True)
    blocks: list[Block] = [
        bullets([*forced(results), *workload.header(results.records)]),
        first,
        *([limits] if limits else []),
        *others,
    ]
    blocks += [workload.caption(results), bullets(workload.remarks(rows, results.baseline))]
    if results.reasons:
        blocks += [bold("Why"), bullets(results.reasons)]
    return [*blocks, bullets([*workload.caveats(results.records, rows, baseline=results.baseline), *left_out(results)])]


def summary(record: RunRecord, *, bounds: Mapping[tuple[str, Context], str] | None = None) -> str:
    """What a notebook shows of one run: a row per cell.

    Args:
        bounds: What each variant is bound by, as `comparison.rows.with_bound` takes it.
    """
    return tables.to_markdown(summary_blocks(record, bounds=bounds))


def summary_blocks(record: RunRecord, *, bounds: Mapping[tuple[str, Context], str] | None = None) -> list[Block]:
    """What is printed at the end of one run, as blocks. Otherwise as `summary`."""
    cells = sorted(keys_of(record))
    keys: list[CellKey | None] = [*cells] or [None]
    rows = tuple(with_bound(make_row(record.variant.name, key, [record]), bounds or {}) for key in keys)
    results, workload = Results(rows=rows, records=(record,)), workload_of(record.workload)
    columns = [*workload.cell_columns(rows, always=True), *workload.timing_columns(rows), *memory(rows), *bound(rows)]
    limits = workload.limit_sheet(rows)
    return [
        bullets(workload.header([record], is_run=True)),
        *([Sheet("", columns, rows)] if cells else []),
        *([limits] if limits else []),
        workload.caption(results),
        bullets(workload.caveats([record], rows)),
    ]
