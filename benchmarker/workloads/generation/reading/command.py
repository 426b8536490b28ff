"""The command that writes text with what was measured."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from benchmarker.core.tables import plain_line
from benchmarker.schema.base import Scalar
from benchmarker.workloads.generation.forms import chosen_engine_options, chosen_options, runs_here
from benchmarker.workloads.generation.record import GenerationRecord

DTYPE = "float16"
"""Of `benchmarker generate` if nothing is said."""
QUESTION = "Why is the sky blue?"
TEXTS = {"qwen3-small": "The function returns"}
"""For models that only continue what they were trained on."""


def generate_command(records: Sequence[GenerationRecord]) -> str:
    """`benchmarker generate --model Qwen/Qwen3-4B --quant int8 --engine native "Why is the sky blue?"`.

    Empty for an engine that is a program of its own, for several GPUs and for a record of an old log.
    """
    first = records[0]
    if not runs_here(first.variant.engine) or first.variant.gpus > 1 or first.imported:
        return ""
    words = ["--model", first.model.id]
    words += ["--revision", first.model.revision] if first.model.revision else []
    words += ["--dtype", first.model.dtype] if first.model.dtype != DTYPE else []
    words += ["--quant", first.variant.quant]
    words += _pairs("--option", chosen_options(first.variant.quant, first.variant.options))
    words += ["--engine", first.variant.engine]
    words += _pairs("--engine-option", chosen_engine_options(first.variant.engine, first.variant.engine_options))
    text = TEXTS.get(first.model.id, QUESTION)
    return plain_line(f'benchmarker generate {shlex.join(words)} "{text}"'.replace("`", ""), longest=500)


def _pairs(flag: str, options: Mapping[str, Scalar]) -> list[str]:
    """Each option as the words `flag key=value`."""
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    return [word for name, text in texts.items() for word in (flag, f"{name}={text}")]
