"""Blocks of a comparison: the short form with the answer, and the long form of `--all`.

A failed cell contains its status in words, and a missing measurement is a dash.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarker.comparison.ranking import ranking_of
from benchmarker.comparison.recommend import Recommendation
from benchmarker.comparison.results import make_row
from benchmarker.comparison.rows import CellKey, Context, Results, cell_words, headline_rows, keys_of, with_bound
from benchmarker.core import tables
from benchmarker.core.formatting import plural
from benchmarker.core.tables import Block, Sheet, bold, bullets, code, plain_line
from benchmarker.report.answer import answer, budget_lines, recommendation_lines
from benchmarker.report.captions import caption
from benchmarker.report.columns import against_named, bound, memory, names, speed_up, whole_call
from benchmarker.report.first_table import first_table, other_cells
from benchmarker.schema.record import RunRecord
from benchmarker.schema.registry import workload_of


def to_markdown(results: Results) -> str:
    """Return a whole comparison as markdown."""
    return tables.to_markdown(whole(results))


def whole(results: Results) -> list[Block]:
    """Return the blocks of a whole comparison."""
    rows, workload = results.rows, workload_of(results.workload)
    first, *others = sheets(results)
    limits = workload.limit_sheet(rows, whole=True)
    blocks: list[Block] = [
        bullets([*forced(results), *workload.header(results.records)]),
        first,
        *([limits] if limits else []),
        *others,
    ]
    blocks += [caption(results), bullets(workload.remarks(rows, results.baseline))]
    if results.reasons:
        blocks += [bold("Why"), bullets(results.reasons)]
    return [*blocks, bullets([*workload.caveats(results.records, rows, baseline=results.baseline), *left_out(results)])]


def summary(record: RunRecord, *, bounds: Mapping[tuple[str, Context], str] | None = None) -> str:
    """Return one run as markdown, a row per cell.

    Args:
        bounds: Bound of each variant, for `comparison.rows.with_bound`.
    """
    return tables.to_markdown(summary_blocks(record, bounds=bounds))


def summary_blocks(record: RunRecord, *, bounds: Mapping[tuple[str, Context], str] | None = None) -> list[Block]:
    """Return the blocks at the end of one run. Otherwise as `summary`."""
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
        caption(results),
        bullets(workload.caveats([record], rows)),
    ]


def sheets(results: Results) -> list[Sheet]:
    """Return the tables: the first table's cell with all columns, every cell, and those of the workload."""
    rows, chosen = results.rows, headline_rows(results.rows)
    workload = workload_of(results.workload)
    cell = chosen[0].cell if chosen else None
    columns = [
        *names(rows),
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
            *names(rows),
            *workload.timing_columns(rows),
            *speed_up(rows),
            *against_named(rows, results.named),
            *whole_call(rows, results.baseline),
            *workload.cost_columns(rows, whole=True),
        ]
        tables.append(Sheet("Every cell", columns, rows))
    return [*tables, *workload.detail_sheets(chosen)]


def where(results: Results) -> str:
    """Return model, device and number of processes in a line or two."""
    lines = workload_of(results.workload).header(results.records)
    chosen = [line for line in lines if not line.startswith("versions:")]
    return ". ".join(line.split(": ", 1)[1] for line in chosen) + "."


def forced(results: Results) -> list[str]:
    """Return the differences between records that `--force` compared."""
    if not results.differences:
        return []
    differences = (plain_line(difference, longest=300) for difference in results.differences)
    return [f"{bold('not comparable, forced:')} {'; '.join(differences)}"]


def left_out(results: Results) -> list[str]:
    """Return the files that could not be read."""
    return [f"left out: {plain_line(problem, longest=300)}" for problem in results.problems]


MOST_CAVEATS = 4
"""Number of printed caveats, the most important ones. The others are counted."""


def brief(results: Results, recommendation: Recommendation | None = None, *, sheet: Sheet | None = None) -> list[Block]:
    """Return the answer, the first table, and a hint at the rest.

    Args:
        recommendation: Answer to a budget, which replaces the general one.
        sheet: Table that replaces the first one.
    """
    ranking = ranking_of(results)
    lines = recommendation_lines(results, recommendation) if recommendation else answer(results, ranking)
    elsewhere = other_cells(results, ranking.cell) if sheet is None and recommendation is None else None
    blocks: list[Block] = [
        "\n".join([*forced(results), *lines]),
        where(results),
        sheet or first_table(ranking),
        *([elsewhere] if elsewhere else []),
    ]
    if recommendation:
        blocks.append(bullets(budget_lines(recommendation)))
    workload = workload_of(results.workload)
    blocks.append(bullets(workload.remarks(results.rows, results.baseline, brief=True)))
    caveats = workload.caveats(results.records, results.rows)
    hidden = max(0, len(caveats) - MOST_CAVEATS)
    return [*blocks, bullets([*caveats[:MOST_CAVEATS], *left_out(results)]), _rest(results, hidden)]


def _rest(results: Results, hidden: int) -> str:
    """Return the parts that `--all` adds.

    Args:
        hidden: Number of caveats that were not printed.
    """
    cells = len({row.cell for row in results.rows}) - 1
    parts = [
        *([plural(cells, "more cell", "more cells")] if cells > 0 else []),
        *([plural(hidden, "more caveat", "more caveats")] if hidden else []),
        *(["reasons"] if results.reasons else []),
        "all columns",
    ]
    return f"--all: {', '.join(parts)}; --columns, --sort, --format; {code('benchmarker report')} draws."
