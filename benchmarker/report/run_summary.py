"""Summary of one run: its cells, the reasons for their speed, and the path of the record."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

from benchmarker.comparison.ranking import ranking_of
from benchmarker.comparison.results import results_of_records
from benchmarker.core.tables import Block, Sheet, bullets, to_markdown
from benchmarker.report.answer import answer
from benchmarker.report.caveats import caption
from benchmarker.report.columns import axis_columns, bound, memory, metric_columns
from benchmarker.report.compare import Comparison, explain_results
from benchmarker.schema import record_io
from benchmarker.schema.record import DISTURBING, RunRecord
from benchmarker.schema.registry import workload_of

if TYPE_CHECKING:
    from benchmarker.core.console import Terminal
    from benchmarker.workloads.base import Workload


def print_result(record: RunRecord, path: Path, terminal: Terminal, workload: Workload) -> None:
    if workload.explains_runs:
        comparison = explain_results(results_of_records([record]))
        terminal.show(run_blocks(comparison))
        for reason in comparison.reasons:
            terminal.detail([reason])
        terminal.show(["\n".join(answer(comparison, ranking_of(comparison)))])
    elif rows := [row for row in results_of_records([record]).rows if row.cell]:
        sheet = Sheet("", [*axis_columns(rows, always=True), *metric_columns(rows)], rows)
        terminal.show([sheet, bullets(workload.remarks(rows, None, brief=True))])
    cells = len(record.cells)
    if disturbed := sum(not DISTURBING.isdisjoint(cell.flags) for cell in record.cells):
        parts = "the run" if disturbed == cells else f"{disturbed} of {cells} cells"
        is_quiet = record.last_good is not None and DISTURBING.isdisjoint(record.cells[record.last_good].flags)
        why = "" if is_quiet else ": the speed is not explained"
        terminal.line(f"Other programs disturbed {parts}{why}. Measure again after they have ended.")
    terminal.line(f"record: {path}")


def run_blocks(comparison: Comparison) -> list[Block]:
    rows, records, workload = comparison.rows, comparison.records, workload_of(comparison.workload)
    columns = [*workload.cell_columns(rows, always=True), *workload.timing_columns(rows), *memory(rows), *bound(rows)]
    return [
        bullets(workload.header(records, is_run=True)),
        *([Sheet("", columns, rows)] if rows[0].cell else []),
        *workload.limit_sheets(rows),
        caption(comparison),
        bullets(workload.remarks(rows, comparison.baseline, brief=True)),
        bullets(workload.caveats(records, rows)),
    ]


class ShownRecord(RunRecord):
    """Record that a notebook shows as a summary of the run."""

    def _repr_markdown_(self) -> str:
        return to_markdown(run_blocks(explain_results(results_of_records([self]))))


def read_record(path: str | Path) -> ShownRecord:
    """Read one record, of a class derived from ShownRecord and the workload's record class. Raises ResultsError."""
    record = record_io.read_record(Path(path))
    # The workload's class is the first base, so that its fields come before those of RunRecord.
    kind = type(ShownRecord.__name__, (type(record), ShownRecord), {"__module__": __name__})
    return cast("type[ShownRecord]", kind).model_construct(**dict(record))
