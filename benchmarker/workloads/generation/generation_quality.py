"""Quality of text generation: its measurement, and the sharing of results among the variants of a sweep."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from benchmarker.checkpoints.base import Checkpoint
from benchmarker.core.console import Terminal
from benchmarker.core.errors import BenchmarkerError, ModelError, UnsupportedError
from benchmarker.core.formatting import percent
from benchmarker.engines.registry import MODEL_ENGINES
from benchmarker.quality.evaluation_text import check_text, is_text
from benchmarker.quality.harness_tasks import check_tasks, run_tasks
from benchmarker.quantization.base import require
from benchmarker.quantization.registry import loader_options
from benchmarker.schema.quality import WINDOW_TOKENS, QualitySize, baseline_name, quality_line
from benchmarker.schema.record import Missing
from benchmarker.workloads.generation.generation_job import engine_options
from benchmarker.workloads.generation.record import GenerationRecord
from benchmarker.workloads.generation.spec import GenerationJob
from benchmarker.workloads.session import Judging

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from benchmarker.hardware.device import Device
    from benchmarker.quality.judge import Plan, Subject

SCORED: dict[QualitySize, tuple[int, int]] = {"quick": (64, 32), "full": (32, 255)}
"""(windows of the shipped text, scored tokens per window). Eight greedy texts of 32 tokens follow, twice each."""


class GenerationJudging(Judging[GenerationJob, GenerationRecord]):
    """Perplexity and KL divergence on a text, and answers to benchmark questions."""

    name = "quality"

    def fields(self, job: GenerationJob) -> tuple[str, ...]:
        requested = {"quality": job.quality.size != "off", "tasks": bool(job.quality.tasks)}
        return tuple(name for name, is_requested in requested.items() if is_requested)

    def check(self, job: GenerationJob) -> None:
        """Raise SpecError for an unsuitable text, and MissingLibraryError for tasks if lm_eval is not installed."""
        if job.quality.size != "off":
            check_text(job.quality.text)
        if job.quality.tasks:
            require("tasks", "lm_eval")

    def form(self, job: GenerationJob) -> str | None:
        # Perplexity and divergence depend on the engine's decode step; answers to questions only on the weights.
        if not job.quality.is_asked:
            return None
        weights = f"{job.model!r} {job.variant.quant} {loader_options(job.variant)!r} {job.quality!r}"
        if job.quality.size == "off" and job.variant.engine in MODEL_ENGINES:
            return weights
        return f"{weights} {job.variant.engine} {engine_options(job.variant)!r}"

    def words(self, job: GenerationJob) -> str:
        return ", ".join([*([job.quality.size] if job.quality.size != "off" else []), *job.quality.tasks])

    def guess_s(self, job: GenerationJob, timed: GenerationRecord | None) -> float:
        """Return the estimated seconds of all scored steps and of forward passes (two per window, and 16 more)."""
        size = job.quality.size
        if size == "off":
            return super().guess_s(job, timed)
        windows, scored = SCORED[size]
        cell = next((cell for cell in timed.cells if cell.samples), None) if timed else None
        if cell:
            step_s = statistics.median(sample.tpot_s or sample.latency_s for sample in cell.samples)
            prompt_tokens = cell.batch_size * (cell.prompt_tokens or 1)
            first_s = statistics.median(sample.ttft_s or step_s for sample in cell.samples)
            forward_s = first_s * max(1.0, WINDOW_TOKENS[size] / prompt_tokens)
        else:
            step_s, forward_s = job.token_s, 2 * job.token_s
        return (windows * scored + 512) * step_s + (2 * windows + 16) * forward_s

    def is_done(self, record: GenerationRecord, job: GenerationJob) -> bool:
        spec, quality = job.quality, record.quality
        if spec.size != "off":
            baseline = baseline_name(spec.baseline or job.model.id, job.model.dtype)
            requested = spec.size, spec.top_k, baseline, WINDOW_TOKENS[spec.size]
            if quality is None or quality.path == "forward" or not is_text(spec.text, quality):
                return False
            if (quality.size, quality.top_k, quality.baseline, quality.window_tokens) != requested:
                return False
        answered = {(frozenset(result.asked), result.limit) for result in record.tasks}
        return not spec.tasks or answered == {(frozenset(spec.tasks), spec.task_limit)}


def plan_quality(job: GenerationJob, checkpoint: Checkpoint, tokenizer: Any | None, terminal: Terminal) -> Plan | None:
    """Return the plan of the quality measurement; None if quality was not requested.

    Raises:
        BenchmarkerError: The text, the tasks, the tokenizer or the baseline is not usable.
    """
    if job.is_judged and job.quality.tasks:
        if tokenizer is None:
            raise ModelError(f"{job.model.id}: no tokenizer in its folder, and --tasks are questions in text")
        check_tasks(job.quality.tasks)
    if not job.is_judged or job.quality.size == "off":
        return None
    from benchmarker.quality.judge import make_plan

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


def measure_tasks(
    job: GenerationJob, model: PreTrainedModel | None, tokenizer: Any | None, terminal: Terminal
) -> dict[str, Any]:
    """Return the record's field of answers to questions, or the reason why they are missing."""
    try:
        if model is None:
            raise UnsupportedError(f"{job.variant.engine} has no model in this process that could be asked questions")
        results = run_tasks(model, tokenizer, job.quality.tasks, limit=job.quality.task_limit, progress=terminal)
    except BenchmarkerError as error:
        # The error is recorded instead of raised, because the timed cells remain valid.
        terminal.line(f"no tasks: {error}")
        return {"no_tasks": Missing(error_kind=error.kind, reason=str(error))}
    for result in results:
        terminal.line(
            f"{result.task}: {percent(result.accuracy, places=1)} of {len(result.right)} right ({result.metric})"
        )
    return {"tasks": results}


def measure_quality(plan: Plan, subject: Subject, device: Device, terminal: Terminal) -> dict[str, Any]:
    """Return the record's field of quality, or the reason why it is missing. Releases `subject`."""
    from benchmarker.quality.judge import judge

    try:
        quality = judge(plan, subject, device, terminal)
    except BenchmarkerError as error:
        terminal.line(f"no quality: {error}")
        return {"no_quality": Missing(error_kind=error.kind, reason=str(error))}
    terminal.note(quality_line(quality))
    return {"quality": quality}
