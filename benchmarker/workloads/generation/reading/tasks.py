"""Accuracy on tasks, question by question against the baseline's.

Two accuracies on the same questions share their luck, so that their difference is surer than either. Flips are the
questions that are right for one and wrong for the other, either way round; McNemar's exact test asks whether more of
them went one way than chance allows.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from benchmarker.core.numbers import percent
from benchmarker.core.tables import Column, escaped
from benchmarker.core.units import MISSING
from benchmarker.schema.quality import TaskResult
from benchmarker.workloads.generation.reading.rows import GenerationRow


class Answers(NamedTuple):
    """One variant in one task."""

    variant: str
    result: TaskResult
    baseline: TaskResult | None
    """The baseline's on the same questions; None for the baseline itself, and where it was asked others."""


class Paired(NamedTuple):
    """Two variants on the same questions."""

    change: float
    """Of the accuracy, from the baseline's."""
    error: float
    """Its standard error."""
    flips: float
    """Share of the questions that only one of the two answered rightly."""
    p: float
    """Of McNemar's exact test: how often chance alone would be as one-sided."""


def answers(rows: Sequence[GenerationRow]) -> list[Answers]:
    """Of all variants, task by task.

    Args:
        rows: Of one cell, so that every variant is there once.
    """
    base = {one.task: one for row in rows if row.is_baseline for one in row.tasks}
    found = [
        Answers(
            row.variant, one, base.get(one.task) if not row.is_baseline and _same(one, base.get(one.task)) else None
        )
        for row in rows
        for one in row.tasks
    ]
    return sorted(found, key=lambda one: one.result.task)


def paired(one: TaskResult, baseline: TaskResult) -> Paired:
    """Compare the answers."""
    changes = [int(ours) - int(theirs) for ours, theirs in zip(one.right, baseline.right, strict=True)]
    gained, lost = changes.count(1), changes.count(-1)
    spread = statistics.stdev(changes) if len(changes) > 1 else 0.0
    return Paired(
        change=statistics.fmean(changes),
        error=spread / math.sqrt(len(changes)),
        flips=(gained + lost) / len(changes),
        p=_mcnemar(gained, lost),
    )


def _mcnemar(gained: int, lost: int) -> float:
    """Each flip goes either way with probability 1/2: the two-sided binomial test, in exact integers."""
    flips = gained + lost
    tail = sum(math.comb(flips, fewer) for fewer in range(min(gained, lost) + 1))
    return min(1.0, 2 * tail / (1 << flips))


def task_columns(found: Sequence[Answers]) -> list[Column[Answers]]:
    """None where no task was run."""
    if not found:
        return []
    return [
        Column[Answers]("task", lambda one: one.result.task, "left", is_foreign=True),
        Column[Answers]("variant", lambda one: one.variant, "left", is_foreign=True),
        Column[Answers]("questions", lambda one: str(len(one.result.right)), sort=lambda one: len(one.result.right)),
        Column[Answers](
            "accuracy",
            lambda one: percent(one.result.accuracy, places=1),
            sort=lambda one: one.result.accuracy,
            is_more_better=True,
        ),
        Column[Answers]("change", _change, sort=lambda one: _pair(one).change if one.baseline else None),
        Column[Answers](
            "flips",
            lambda one: percent(_pair(one).flips, places=1) if one.baseline else MISSING,
            sort=lambda one: _pair(one).flips if one.baseline else None,
        ),
        Column[Answers](
            "p",
            lambda one: f"{_pair(one).p:.3f}" if one.baseline else MISSING,
            sort=lambda one: _pair(one).p if one.baseline else None,
        ),
    ]


def task_caption(found: Sequence[Answers]) -> str:
    """How to read the columns."""
    if not found:
        return ""
    metrics = " or ".join(sorted({escaped(one.result.metric) for one in found}))
    return (
        f"Tasks by lm-evaluation-harness {escaped(found[0].result.harness)}, {metrics}. Change is against the baseline "
        "on the same questions, ± its standard error; flips are questions that only one of the two answered rightly; "
        "p is McNemar's exact test, not corrected for the number of rows."
    )


def _change(one: Answers) -> str:
    if one.baseline is None:
        return MISSING
    found = _pair(one)
    return f"{100 * found.change:+.1f} ± {100 * found.error:.1f} pp"


def _pair(one: Answers) -> Paired:
    assert one.baseline is not None
    return paired(one.result, one.baseline)


def _same(one: TaskResult, other: TaskResult | None) -> bool:
    """Whether the questions are the same and were asked in the same way."""
    return other is not None and (
        (one.version, one.harness, one.metric, one.few_shots, len(one.right))
        == (other.version, other.harness, other.metric, other.few_shots, len(other.right))
    )
