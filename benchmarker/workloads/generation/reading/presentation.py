"""How text generation is shown: its own columns, tables, captions, caveats and charts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchmarker.comparison.rows import Results, headline
from benchmarker.core.tables import Sheet, plain_line
from benchmarker.report.header import plain_title
from benchmarker.workloads.generation.reading.first_difference import difference_caption, difference_columns
from benchmarker.workloads.generation.reading.quality import quality_caption, quality_columns
from benchmarker.workloads.generation.reading.rows import GenerationRow
from benchmarker.workloads.generation.reading.step import step_caption, step_columns
from benchmarker.workloads.generation.reading.tasks import answers, task_caption, task_columns

if TYPE_CHECKING:
    pass


def details(rows: Sequence[GenerationRow]) -> list[Sheet]:
    """The tables of the timed step, of quality, of greedy text and of tasks, as far as they were measured."""
    tables = []
    if step := step_columns(rows):
        tables.append(Sheet("Timed step", step, rows, (step_caption(rows),)))
    if quality := quality_columns(rows):
        tables.append(Sheet("Quality", quality, rows, (quality_caption(rows),)))
    if differences := difference_columns(rows):
        tables.append(Sheet("Greedy text", differences, rows, (difference_caption(rows),)))
    task_rows = answers(rows)
    if tasks := task_columns(task_rows):
        tables.append(Sheet("Tasks", tasks, task_rows, (task_caption(task_rows),)))
    return tables


def limit_rows(rows: Sequence[GenerationRow]) -> list[GenerationRow]:
    """The rows that stand in the table of limits: those of the headline's cell, at every batch size and depth.

    A decode step is limited by these two; how long its prompt was and how many tokens follow hardly matter to it.
    """
    cell = headline(rows)
    if cell is None:
        return []
    shape = cell.without("batch_size", "depth")
    return [row for row in rows if row.cell and row.cell.without("batch_size", "depth") == shape]


def title(results: Results) -> str:
    """`Qwen/Qwen3-4B on NVIDIA H100 80GB HBM3`."""
    models = dict.fromkeys(plain_line(record.model.id) for record in results.records)  # type: ignore[attr-defined]
    return plain_title(results).replace(plain_line(results.workload), ", ".join(models), 1)
