"""Quality in a run: planned before any weight is read, judged after everything that is timed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarker.core.console import Terminal
from benchmarker.core.errors import BenchmarkerError, ModelError
from benchmarker.execution.job import Job
from benchmarker.hardware.device import Device
from benchmarker.quality.judge import judge
from benchmarker.quality.plan import Plan, make_plan
from benchmarker.quality.tasks import check_tasks, run_tasks
from benchmarker.quantization.base import Checkpoint
from benchmarker.schema.record import Missing
from benchmarker.workloads.generation.reading.quality import quality_line

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def plan_quality(job: Job, checkpoint: Checkpoint, tokenizer: Any | None, terminal: Terminal) -> Plan | None:
    """What is to be judged; None where nothing is.

    Raises:
        BenchmarkerError: It cannot be.
    """
    if job.is_judged and job.quality.tasks:
        if tokenizer is None:
            raise ModelError(f"{job.model.id}: no tokenizer in its folder, and --tasks are questions in text")
        check_tasks(job.quality.tasks)
    if not job.is_judged or job.quality.size == "off":
        return None
    return make_plan(job.quality, job.model, job.variant, checkpoint=checkpoint, tokenizer=tokenizer, progress=terminal)


def judged(
    job: Job,
    plan: Plan | None,
    models: list[PreTrainedModel],
    tokenizer: Any | None,
    device: Device,
    terminal: Terminal,
) -> dict[str, Any]:
    """Fields of the record: answers and quality, or why they are missing.

    Args:
        models: The variant alone; it is taken out.
    """
    found: dict[str, Any] = {}
    if job.quality.tasks:
        found |= _answers(job, models[0], tokenizer, terminal)
    if plan:
        found |= _quality(plan, models, device, terminal)
    return found


def _answers(job: Job, model: PreTrainedModel, tokenizer: Any | None, terminal: Terminal) -> dict[str, Any]:
    try:
        found = run_tasks(model, tokenizer, job.quality.tasks, limit=job.quality.task_limit, progress=terminal)
    except BenchmarkerError as error:
        # What was timed is saved: what cannot be had here must not undo that.
        terminal.line(f"no tasks: {error}")
        return {"no_tasks": Missing(error_kind=error.kind, reason=str(error))}
    for one in found:
        terminal.line(f"{one.task}: {100 * one.accuracy:.1f} % of {len(one.right)} right ({one.metric})")
    return {"tasks": found}


def _quality(plan: Plan, models: list[PreTrainedModel], device: Device, terminal: Terminal) -> dict[str, Any]:
    try:
        quality = judge(plan, models, device, terminal)
    except BenchmarkerError as error:
        terminal.line(f"no quality: {error}")
        return {"no_quality": Missing(error_kind=error.kind, reason=str(error))}
    terminal.line(quality_line(quality))
    return {"quality": quality}
