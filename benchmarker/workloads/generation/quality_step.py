"""Quality in a run: planned before any weight is read, judged after everything that is timed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarker.checkpoints.base import Checkpoint
from benchmarker.core.console import Terminal
from benchmarker.core.errors import BenchmarkerError, ModelError
from benchmarker.core.formatting import percent
from benchmarker.engines.registry import MODEL_ENGINES
from benchmarker.hardware.device import Device
from benchmarker.quality.harness_tasks import check_tasks, run_tasks
from benchmarker.quality.judge import Subject, judge
from benchmarker.quality.judging_plan import Plan, make_plan
from benchmarker.schema.quality_words import quality_line
from benchmarker.schema.record import Missing
from benchmarker.workloads.generation.spec import GenerationJob

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def plan_quality(job: GenerationJob, checkpoint: Checkpoint, tokenizer: Any | None, terminal: Terminal) -> Plan | None:
    """What is to be judged; None where nothing is.

    Raises:
        BenchmarkerError: The text, the tasks, the tokenizer or the baseline cannot be used.
    """
    if job.is_judged and job.quality.tasks:
        if tokenizer is None:
            raise ModelError(f"{job.model.id}: no tokenizer in its folder, and --tasks are questions in text")
        check_tasks(job.quality.tasks)
    if not job.is_judged or job.quality.size == "off":
        return None
    return make_plan(
        job.quality,
        job.model,
        job.variant,
        name=job.variant.name,
        checkpoint=checkpoint,
        tokenizer=tokenizer,
        progress=terminal,
        is_plain=job.variant.engine in MODEL_ENGINES,
    )


def judged(
    job: GenerationJob,
    plan: Plan | None,
    subject: Subject,
    tokenizer: Any | None,
    device: Device,
    terminal: Terminal,
) -> dict[str, Any]:
    """Fields of the record: answers and quality, or why they are missing. The subject is dropped."""
    fields: dict[str, Any] = {}
    assert subject.source is not None
    if job.quality.tasks:
        fields |= _answers(job, subject.source.model, tokenizer, terminal)
    if plan:
        fields |= _quality(plan, subject, device, terminal)
    return fields


def _answers(
    job: GenerationJob, model: PreTrainedModel | None, tokenizer: Any | None, terminal: Terminal
) -> dict[str, Any]:
    if model is None:
        reason = f"{job.variant.engine} has no model in this process that could be asked questions"
        terminal.line(f"no tasks: {reason}")
        return {"no_tasks": Missing(error_kind="unsupported", reason=reason)}
    try:
        results = run_tasks(model, tokenizer, job.quality.tasks, limit=job.quality.task_limit, progress=terminal)
    except BenchmarkerError as error:
        # What was timed is saved: what cannot be had here must not undo that.
        terminal.line(f"no tasks: {error}")
        return {"no_tasks": Missing(error_kind=error.kind, reason=str(error))}
    for result in results:
        terminal.line(
            f"{result.task}: {percent(result.accuracy, places=1)} of {len(result.right)} right ({result.metric})"
        )
    return {"tasks": results}


def _quality(plan: Plan, subject: Subject, device: Device, terminal: Terminal) -> dict[str, Any]:
    try:
        quality = judge(plan, subject, device, terminal)
    except BenchmarkerError as error:
        terminal.line(f"no quality: {error}")
        return {"no_quality": Missing(error_kind=error.kind, reason=str(error))}
    terminal.line(quality_line(quality))
    return {"quality": quality}
