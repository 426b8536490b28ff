"""What is asked of a model's quality: perplexity and divergence on a text, answers to benchmark questions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from benchmarker.schema.base import Plain
from benchmarker.schema.experiment import Positive


class QualitySpec(Plain):
    """Whether and how perplexity and divergence from the unquantized model are measured."""

    size: Literal["off", "quick", "full"] = "off"
    """`quick` scores 2,048 tokens in 64 windows spread over the text, `full` all of it."""
    text: str | None = None
    """A file, or a data set as NAME, NAME:CONFIG or NAME:CONFIG:SPLIT; the text that ships with benchmarker if not
    said."""
    top_k: Annotated[int, Field(gt=0)] | None = None
    """Keep only so many of the likeliest tokens: a small file, and divergences that are lower bounds."""
    baseline: Annotated[str, Field(min_length=1)] | None = None
    """Hub id or folder of the unquantized model, where the checkpoint itself is quantized."""

    tasks: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Tasks of lm-evaluation-harness whose questions are asked, by name."""
    task_limit: Positive | None = None
    """Questions of each task; all of them if not said."""

    @property
    def is_asked(self) -> bool:
        """Whether anything is to be judged."""
        return self.size != "off" or bool(self.tasks)

    @field_validator("size", mode="before")
    @classmethod
    def _off_is_a_word(cls, size: Any) -> Any:
        # YAML 1.1 reads a bare `off` as false.
        return "off" if size is False else size
