"""The timed step beside the form's own forward, one row a variant: whether what was timed computes the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarker.comparison.words import listed
from benchmarker.core.formatting import MISSING, percent, significant
from benchmarker.core.tables import Column
from benchmarker.schema.quality import ENGINE_STEP_WRONG, STEP_FACTOR, STEP_ROUNDING, STEP_WRONG, StepDivergence
from benchmarker.workloads.generation.reading.rows import GenerationRow

VERDICTS = {
    "equal": "rounding",
    "differs": "more than rounding",
    "wrong": "another computation",
    "cache": "the quantized KV cache",
}


ELSEWHERE = (
    "An engine in a process of its own is held against its own prefill, whose kernels may round otherwise than its "
    f"step's: the limit is {ENGINE_STEP_WRONG} there."
)


def step_columns(rows: Sequence[GenerationRow]) -> list[Column[GenerationRow]]:
    """None where no step was checked."""
    if not any(row.step_divergence for row in rows):
        return []
    return [
        Column[GenerationRow]("variant", lambda row: row.variant, "left"),
        Column[GenerationRow]("KL step/eager", _of(lambda checked: significant(checked.kl_mean, 3))),
        Column[GenerationRow]("uncaptured", _of(_plain)),
        Column[GenerationRow]("max", _of(lambda checked: significant(checked.kl_max, 3))),
        Column[GenerationRow]("same top", _of(lambda checked: percent(checked.same_top, places=1))),
        Column[GenerationRow]("steps", _of(lambda checked: str(checked.steps))),
        Column[GenerationRow]("it is", _of(lambda checked: VERDICTS[checked.verdict]), "left"),
    ]


def step_caption(rows: Sequence[GenerationRow]) -> str:
    """How to read the table; empty where there is none."""
    checked = [row for row in rows if row.step_divergence]
    if not checked:
        return ""
    unchecked = list(dict.fromkeys(row.variant for row in rows if not row.step_divergence and row.status == "ok"))
    sentences = [
        "KL step/eager is how far the predictions of the decode step that was timed are from those of the same form's "
        "own forward, in nats a token, on a text that both are given; uncaptured is the same of the libraries' own "
        f"step. Rounding is up to {STEP_ROUNDING} or {STEP_FACTOR} times the uncaptured step's; above {STEP_WRONG} the "
        "row has no speed.",
        *([ELSEWHERE] if any(row.step_divergence and row.step_divergence.of_engine for row in checked) else []),
        *([f"Not checked: {listed(unchecked)}."] if unchecked else []),
    ]
    return " ".join(sentences)


def _plain(checked: StepDivergence) -> str:
    return MISSING if checked.plain_kl_mean is None else significant(checked.plain_kl_mean, 3)


def _of(text: Callable[[StepDivergence], str]) -> Callable[[GenerationRow], str]:
    return lambda row: text(row.step_divergence) if row.step_divergence else MISSING
