"""What of a command line makes no sense together, said before a byte is downloaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarker.core.errors import SpecError, UnsupportedError
from benchmarker.engines.registry import ENGINES
from benchmarker.workloads.generation.forms import form_of
from benchmarker.workloads.generation.spec import GenerationJob

IDLE = {
    "--eval-text": "subject.quality.text",
    "--quality-topk": "subject.quality.top_k",
    "--quality-baseline": "subject.quality.baseline",
}
"""Options that say how quality is measured, by the places that they fill."""


def over(typed: Mapping[str, Any]) -> dict[str, Any]:
    """What was typed. Lengths take the place of a config's texts, which would win over its own lengths.

    Raises:
        SpecError: Both were typed.
    """
    if typed.get("grid.prompt_tokens") is None:
        return dict(typed)
    if typed.get("grid.prompts"):
        raise SpecError("--prompt and --prompt-tokens: a text has its own length; give one of them")
    return {**typed, "grid.prompts": ()}


def check_split(job: GenerationJob) -> None:
    """Refuse several GPUs where the form, the engine or what else is asked for has one.

    Raises:
        UnsupportedError: The engine, or the quantization's library, cannot share the model so.
        SpecError: With what to leave out.
    """
    if job.variant.gpus == 1:
        return
    engine = ENGINES[job.variant.engine]
    if reason := engine.splits(form_of(job.variant, job.model.dtype)):
        raise UnsupportedError(f"--gpus {job.variant.gpus}: {engine.name}: {reason}")
    if job.quality.is_asked and job.variant.split == "tensors":
        raise SpecError(
            "--quality, --tasks: dividing a model changes nothing but rounding; judge the form on one GPU, "
            "or leave them out"
        )
    if job.procedure.energy:
        raise SpecError("--energy: counts one GPU, and the model is on several; leave it out")


def check_typed(job: GenerationJob, typed: Mapping[str, Any]) -> None:
    """Refuse options that would do nothing, and to judge random weights.

    Raises:
        SpecError: With what to leave out.
    """
    quality = job.quality
    idle = [flag for flag, place in IDLE.items() if typed.get(place) is not None]
    if quality.size == "off" and typed.get("subject.quality.size") is None and idle:
        raise SpecError(f"{idle[0]}: does nothing without --quality; add --quality quick or --quality full")
    if typed.get("subject.quality.task_limit") is not None and not quality.tasks:
        raise SpecError("--task-limit: does nothing without --tasks; add --tasks hellaswag, or leave it out")
    if quality.is_asked and job.model.load_format == "dummy":
        raise SpecError(
            "--quality, --tasks: random weights (load_format dummy) have no quality to lose; measure real weights, "
            "or leave them out"
        )
    if typed.get("subject.model.chat_template") and not job.grid.prompts:
        raise SpecError("--chat-template: wraps a text, and there is none; add --prompt TEXT, or leave it out")
