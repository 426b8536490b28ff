"""Output at the end of one run: its cells, the reasons for their speed, and the path of the record."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarker.core.console import Terminal
from benchmarker.core.formatting import MISSING, significant
from benchmarker.core.tables import Column, Sheet
from benchmarker.schema.metric import Axis, Metric
from benchmarker.schema.record import CellBase, RunRecord, status_words

if TYPE_CHECKING:
    from benchmarker.workloads.base import Workload


def print_result(record: RunRecord, path: Path, terminal: Terminal, workload: Workload) -> None:
    """Print the tables of one run and the path of its record."""
    if workload.explains_runs:
        _print_explained(record, terminal)
    else:
        terminal.table([_cell_table(record, workload)])
    terminal.line(f"record: {path}")


def _cell_table(record: RunRecord, workload: Workload) -> Sheet:
    columns = [
        *(_axis_column(axis) for axis in workload.axes),
        *(_metric_column(metric) for metric in workload.metrics if not metric.of_cell),
        Column[CellBase]("status", lambda cell: status_words(cell.status), "left"),
    ]
    return Sheet("", columns, record.cells)


def _axis_column(axis: Axis) -> Column[CellBase]:
    return Column(axis.heading, lambda cell: str(getattr(cell, axis.name)))


def _metric_column(metric: Metric) -> Column[CellBase]:
    return Column(metric.heading, lambda cell: _median_text(metric, cell))


def _median_text(metric: Metric, cell: CellBase) -> str:
    values = [value for sample in cell.samples if (value := metric.of_repeat(cell, sample)) is not None]
    return significant(metric.scale * statistics.median(values)) if values else MISSING


def _print_explained(record: Any, terminal: Terminal) -> None:
    """Print the tables of a generation and the reasons for its speed."""
    from benchmarker.comparison.ranking import ranking_of
    from benchmarker.explain.explain import explain
    from benchmarker.explain.values import bounds_of
    from benchmarker.report.answer import answer
    from benchmarker.report.compare import compare_records
    from benchmarker.report.explanations import reasons
    from benchmarker.report.markdown import summary_blocks

    explained = explain(record.variant.name, [record])
    terminal.show(summary_blocks(record, bounds=bounds_of([explained])))
    for reason in reasons([explained]):
        terminal.table([reason], detail=True)
    comparison = compare_records([record])
    terminal.show(["\n".join(answer(comparison, ranking_of(comparison)))])
