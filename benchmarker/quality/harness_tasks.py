"""Accuracy on benchmark tasks, by lm-evaluation-harness on the loaded model.

The harness makes the questions and grades the answers. This module also keeps which questions were answered correctly,
so that two variants are compared on the same questions: equal accuracies can hide many changed answers (Dutta et al.,
"Accuracy is not all you need", 2024).
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarker.checkpoints.base import Progress
from benchmarker.core.errors import QualityError, SpecError, did_you_mean
from benchmarker.quantization.base import require
from benchmarker.schema.quality import TaskResult

if TYPE_CHECKING:
    from transformers import PreTrainedModel

METRICS = ("acc_norm", "acc", "exact_match")
NO_FILTER = "none"
BATCH_SIZE = 8


def check_tasks(names: Sequence[str]) -> None:
    require("tasks", "lm_eval")
    from lm_eval.tasks import TaskManager

    task_names: set[str] = set(TaskManager().all_tasks)
    for name in names:
        if name.endswith(".yaml") and not Path(name).is_file():
            raise SpecError(f"--tasks {name}: no such file")
        if not name.endswith(".yaml") and name not in task_names:
            raise SpecError(f"--tasks: no task '{name}'{did_you_mean(name, task_names)}")


def run_tasks(
    model: PreTrainedModel, tokenizer: Any, names: Sequence[str], *, limit: int | None, progress: Progress
) -> tuple[TaskResult, ...]:
    """Run tasks of the harness, or of YAML files, with at most `limit` questions each. Raises QualityError."""
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM

    progress.note(f"tasks: {', '.join(names)}")
    harness: Any = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=BATCH_SIZE)
    tasks: list[Any] = [str(Path(name).absolute()) if name.endswith(".yaml") else name for name in names]
    try:
        # No bootstrap of the harness, because the reported standard errors are computed from paired answers.
        evaluation: Any = simple_evaluate(harness, tasks=tasks, limit=limit, bootstrap_iters=0, log_samples=True)
    except (OSError, ConnectionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise QualityError(f"--tasks: the questions cannot be read: {reason}") from error
    shared = {"harness": version("lm_eval"), "asked": tuple(names), "limit": limit}
    return tuple(_result(name, evaluation, **shared) for name in sorted(evaluation["samples"]))


def _result(name: str, evaluation: Any, **shared: Any) -> TaskResult:
    every = evaluation["samples"][name]
    # The harness repeats each question for each filter.
    answer_filter = every[0].get("filter", NO_FILTER) if every else NO_FILTER
    samples = sorted(
        (sample for sample in every if sample.get("filter", NO_FILTER) == answer_filter),
        key=lambda sample: int(sample["doc_id"]),
    )
    metric = next((metric_name for metric_name in METRICS if samples and metric_name in samples[0]), None)
    if metric is None:
        raise QualityError(f"--tasks {name}: has no accuracy ({', '.join(METRICS)}); choose another task")
    return TaskResult(
        task=name,
        version=str(evaluation["versions"].get(name)),
        **shared,
        metric=metric if answer_filter == NO_FILTER else f"{metric} ({answer_filter})",
        few_shots=int(evaluation["n-shot"].get(name, 0)),
        right=tuple(bool(sample[metric]) for sample in samples),
    )
