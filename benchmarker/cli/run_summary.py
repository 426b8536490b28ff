"""What is printed at the end of one run: its cells, why they are as they are, and where the record lies."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarker.core.console import Terminal
from benchmarker.core.formatting import MISSING, significant
from benchmarker.core.tables import Column, Sheet
from benchmarker.schema.metric import Axis, Metric
from benchmarker.schema.record import CellBase, RunRecord
from benchmarker.schema.status_words import status_words

if TYPE_CHECKING:
    from benchmarker.workloads.base import Workload


def say_result(record: RunRecord, path: Path, terminal: Terminal, workload: Workload) -> None:
    """Print the tables of one run, in the workload's own way or else a row a cell, and where its record lies."""
    if workload.explains_runs:
        say_explained(record, terminal)
    else:
        terminal.table([cell_table(record, workload)])
    terminal.line(f"record: {path}")


def cell_table(record: RunRecord, workload: Workload) -> Sheet:
    """A row a cell: its axes, and each metric that is measured in every repeat, by its median."""
    columns = [
        *(axis_column(axis) for axis in workload.axes),
        *(metric_column(metric) for metric in workload.metrics if not metric.of_cell),
        Column[CellBase]("status", lambda cell: status_words(cell.status), "left"),
    ]
    return Sheet("", columns, record.cells)


def axis_column(axis: Axis) -> Column[CellBase]:
    """Where a cell lies on an axis."""
    return Column(axis.heading, lambda cell: str(getattr(cell, axis.name)))


def metric_column(metric: Metric) -> Column[CellBase]:
    """A cell's median of a metric."""
    return Column(metric.heading, lambda cell: median_text(metric, cell))


def median_text(metric: Metric, cell: CellBase) -> str:
    """The median over a cell's repeats as shown, or a dash."""
    values = [value for sample in cell.samples if (value := metric.of_repeat(cell, sample)) is not None]
    return significant(metric.scale * statistics.median(values)) if values else MISSING


def say_explained(record: Any, terminal: Terminal) -> None:
    """The tables of a generation, and why it is as fast as it is."""
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
