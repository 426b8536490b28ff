"""Accuracy on tasks, question by question against the baseline's.

Two accuracies on the same questions are correlated, so that their difference is more certain than either. Flips are
questions that only one of the two answered rightly; McNemar's exact test compares the two directions.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from benchmarker.core.formatting import MISSING, percent
from benchmarker.core.tables import Column, plain_line
from benchmarker.schema.quality import TaskResult
from benchmarker.workloads.generation.reading.generation_rows import GenerationRow


class Answers(NamedTuple):
    """Answers of one variant in one task."""

    variant: str
    result: TaskResult
    baseline: TaskResult | None
    """The baseline's result on the same questions; None for the baseline itself, or if its questions differ."""


class Paired(NamedTuple):
    """Difference of two variants' answers to the same questions."""

    change: float
    """Accuracy minus the baseline's, between -1 and 1."""
    error: float
    """Standard error of the change."""
    flips: float
    """Share of questions that only one of the two answered rightly."""
    p: float
    """Two-sided p of McNemar's exact test."""


def answers(rows: Sequence[GenerationRow]) -> list[Answers]:
    """Return the answers of all variants, task by task.

    Args:
        rows: Rows of one cell.
    """
    by_task = {result.task: result for row in rows if row.is_baseline for result in row.tasks}
    pairs = [
        Answers(row.variant, result, None if row.is_baseline else _comparable(result, by_task.get(result.task)))
        for row in rows
        for result in row.tasks
    ]
    return sorted(pairs, key=lambda answer: answer.result.task)


def paired(variant: TaskResult, baseline: TaskResult) -> Paired:
    """Compare a variant's answers with the baseline's to the same questions."""
    changes = [int(after) - int(before) for after, before in zip(variant.right, baseline.right, strict=True)]
    gained, lost = changes.count(1), changes.count(-1)
    spread = statistics.stdev(changes) if len(changes) > 1 else 0.0
    return Paired(
        change=statistics.fmean(changes),
        error=spread / math.sqrt(len(changes)),
        flips=(gained + lost) / len(changes),
        p=_mcnemar(gained, lost),
    )


def _mcnemar(gained: int, lost: int) -> float:
    flips = gained + lost
    tail = sum(math.comb(flips, fewer) for fewer in range(min(gained, lost) + 1))
    return min(1.0, 2 * tail / (1 << flips))


def task_columns(rows: Sequence[Answers]) -> list[Column[Answers]]:
    """Return the columns of the table of tasks; none without tasks."""
    if not rows:
        return []
    return [
        Column[Answers]("task", lambda row: row.result.task, "left"),
        Column[Answers]("variant", lambda row: row.variant, "left"),
        Column[Answers]("questions", lambda row: str(len(row.result.right)), sort=lambda row: len(row.result.right)),
        Column[Answers](
            "accuracy",
            lambda row: percent(row.result.accuracy, places=1),
            sort=lambda row: row.result.accuracy,
            is_more_better=True,
        ),
        Column[Answers]("change", _change, sort=lambda row: _pair(row).change if row.baseline else None),
        Column[Answers](
            "flips",
            lambda row: percent(_pair(row).flips, places=1) if row.baseline else MISSING,
            sort=lambda row: _pair(row).flips if row.baseline else None,
        ),
        Column[Answers](
            "p",
            lambda row: f"{_pair(row).p:.3f}" if row.baseline else MISSING,
            sort=lambda row: _pair(row).p if row.baseline else None,
        ),
    ]


def task_caption(rows: Sequence[Answers]) -> str:
    """Return how to read the table of tasks; empty without tasks."""
    if not rows:
        return ""
    metrics = " or ".join(sorted({plain_line(row.result.metric) for row in rows}))
    return (
        f"Tasks by lm-evaluation-harness {plain_line(rows[0].result.harness)}, {metrics}. Change is relative to the "
        "baseline on the same questions, ± its standard error; flips are questions that only one of the two answered "
        "rightly; p is McNemar's exact test, not corrected for the number of rows."
    )


def _change(row: Answers) -> str:
    if row.baseline is None:
        return MISSING
    difference = _pair(row)
    return f"{100 * difference.change:+.1f} ± {100 * difference.error:.1f} pp"


def _pair(row: Answers) -> Paired:
    assert row.baseline is not None
    return paired(row.result, row.baseline)


def _comparable(result: TaskResult, baseline: TaskResult | None) -> TaskResult | None:
    return baseline if baseline and _procedure(baseline) == _procedure(result) else None


def _procedure(result: TaskResult) -> tuple[object, ...]:
    return result.version, result.harness, result.metric, result.few_shots, len(result.right)
