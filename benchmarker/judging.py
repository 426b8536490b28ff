"""Quality in a run: planned before any weight is read, judged after everything that is timed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarker.device import Device
from benchmarker.errors import BenchmarkerError
from benchmarker.job import Job
from benchmarker.loaders.base import Checkpoint
from benchmarker.quality.judge import judge
from benchmarker.quality.plan import Plan, make_plan
from benchmarker.report.quality import quality_line
from benchmarker.terminal import Terminal

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def plan_quality(job: Job, checkpoint: Checkpoint, tokenizer: Any | None, terminal: Terminal) -> Plan | None:
    """What is to be judged; None where nothing is.

    Raises:
        BenchmarkerError: It cannot be.
    """
    if not job.is_judged:
        return None
    return make_plan(job.quality, job.model, job.variant, checkpoint=checkpoint, tokenizer=tokenizer, progress=terminal)


def judge_or_say(plan: Plan, models: list[PreTrainedModel], device: Device, terminal: Terminal) -> dict[str, Any]:
    """Fields of the record: the quality, or why there is none.

    Args:
        models: The variant alone; it is taken out.
    """
    try:
        quality = judge(plan, models, device, terminal)
    except BenchmarkerError as error:
        # What was timed is saved: quality that cannot be had must not undo that.
        terminal.line(f"no quality: {error}")
        return {"no_quality": str(error)}
    terminal.line(quality_line(quality))
    return {"quality": quality}
