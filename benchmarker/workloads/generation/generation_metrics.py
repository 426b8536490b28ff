"""Axes and metrics of text generation."""

from __future__ import annotations

from benchmarker.measure.clock import GenerationSample
from benchmarker.schema.registry import Axis, Metric
from benchmarker.workloads.generation.record import GenerationCell
from benchmarker.workloads.generation.spec import Point

METRICS = (
    Metric(
        name="latency",
        heading="latency s",
        unit="s",
        scale=1.0,
        better="lower",
        formula="seconds from the call to the last token, with the device drained at both ends",
        of_sample=lambda cell, sample: sample.latency_s,
    ),
    Metric(
        name="ttft",
        heading="TTFT ms",
        unit="s",
        scale=1e3,
        better="lower",
        formula="seconds from the call until the first new token is known",
        of_sample=lambda cell, sample: sample.ttft_s,
    ),
    Metric(
        name="tpot",
        heading="TPOT ms",
        unit="s",
        scale=1e3,
        better="lower",
        formula="seconds from the first new token to the last, divided by the tokens after the first",
        of_sample=lambda cell, sample: sample.tpot_s,
    ),
    Metric(
        name="decode",
        heading="decode tok/s",
        unit="1/s",
        scale=1.0,
        better="higher",
        formula="new tokens of all sequences after the first, divided by the seconds from the first to the last",
        of_latency=lambda cell, tpot_s: cell.batch_size / tpot_s,
        time=lambda cell, sample: sample.tpot_s,
    ),
    Metric(
        name="tok/s",
        heading="tok/s",
        unit="1/s",
        scale=1.0,
        better="higher",
        formula="new tokens of all sequences, divided by the latency",
        of_latency=lambda cell, latency_s: cell.new_tokens * cell.batch_size / latency_s,
    ),
)
HEADLINE = "tok/s"
RANKED_BY = ("decode", "tok/s")
"""Metrics that rank. TTFT depends on the host and repeats badly; a cell of one new token has no decode rate."""


AXES = (
    Axis(
        "prompt_tokens",
        "prompt",
        str,
        size=lambda point: point.prompt_tokens or len(point.prompt or ""),
    ),
    Axis("new_tokens", "new", lambda tokens: f"{tokens} new tokens"),
    Axis("batch_size", "batch", lambda sequences: f"batch of {sequences}" if sequences > 1 else ""),
    Axis("depth", "depth", lambda tokens: f"after {tokens} in the cache" if tokens else ""),
)


def point_words(point: Point) -> str:
    """Return `26 x 100`, `26 x 100, batch 4`, or the beginning of a text prompt."""
    prompt = str(point.prompt_tokens) if point.prompt is None else repr(point.prompt[:24])
    batch = f", batch {point.batch_size}" if point.batch_size > 1 else ""
    batch += ", same prompt" if point.batch_size > 1 and not point.has_distinct_prompts else ""
    depth = f", depth {point.depth}" if point.depth else ""
    return f"{prompt} x {point.new_tokens}{batch}{depth}"


def point_arguments(point: Point) -> list[str]:
    if point.prompt_tokens is not None:
        arguments = ["--prompt-tokens", str(point.prompt_tokens)]
    else:
        arguments = ["--prompt", point.prompt or ""]
    arguments += ["--new-tokens", str(point.new_tokens), "--batch-size", str(point.batch_size)]
    arguments += ["--depth", str(point.depth)] if point.depth else []
    return arguments + (["--same-prompt"] if point.batch_size > 1 and not point.has_distinct_prompts else [])


def sample_words(cell: GenerationCell, sample: GenerationSample) -> str:
    """Return `100 tokens, 34.10 tok/s`."""
    tokens = cell.batch_size * sample.new_tokens
    return f"{tokens} tokens, {tokens / sample.latency_s:.2f} tok/s"
