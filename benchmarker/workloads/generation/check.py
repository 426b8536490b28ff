"""What of a command line makes no sense together, said before a byte is downloaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarker.core.errors import SpecError
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
