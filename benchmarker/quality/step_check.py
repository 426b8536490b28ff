"""Comparison of the timed decode step with the model's forward.

A step that is captured, compiled or given other kernels may be fast because it is wrong, and greedy tokens hardly show
the error: logits 1.5 times too large give the same tokens. So the step runs over a text token by token, and its
distributions are compared with those of the same model's forward over the whole text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy
from numpy.typing import NDArray

from benchmarker.core.errors import QualityError
from benchmarker.engines.base import Scores, TokenIds, TokenSource
from benchmarker.schema.quality import StepDivergence

STEPS = 256
LEAST_STEPS = 32
LIMIT_S = 30.0


def texts_for(ids: Callable[[int], TokenIds], *, longest: int, step_s: float) -> list[TokenIds]:
    """Return texts of equal length for about 256 steps in total, fewer if they would take more than 30 s."""
    steps = max(LEAST_STEPS, min(STEPS, int(LIMIT_S / step_s)))
    length = max(2, min(longest, steps + 1))
    count = -(-steps // (length - 1))
    tokens = ids(count * length)
    return [tokens[begin : begin + length] for begin in range(0, count * length, length)]


def step_divergence(source: TokenSource, texts: Sequence[TokenIds]) -> StepDivergence | None:
    """Compare the decode step with the forward over texts of equal length; None if the engine gives no predictions."""
    steps, rounding = [], []
    # A quantized KV cache packs a prompt at once but new tokens late, so half of the text is the prompt.
    prompt_tokens = 1 if source.kv_value_bytes is None else len(texts[0]) // 2
    for text in texts:
        forward, step = source.forward_scores(text), source.step_scores(text, prompt_tokens=prompt_tokens)
        if forward is None or step is None:
            return None
        steps.append(_compared(forward, step))
        if perturbed := source.perturbed_scores(text):
            rounding.append(_compared(forward, perturbed)[0])
    kl, same_top = (numpy.concatenate(column) for column in zip(*steps, strict=True))
    if not numpy.isfinite(kl).all():
        raise QualityError("the step or the forward gives predictions that are not finite")
    return StepDivergence(
        steps=len(kl),
        text_tokens=len(texts[0]),
        kl_mean=float(kl.mean()),
        kl_max=float(kl.max()),
        same_top=float(same_top.mean()),
        rounding_kl_mean=float(numpy.concatenate(rounding).mean()) if rounding else None,
        of_engine=source.is_elsewhere,
        of_cache=source.kv_value_bytes is not None,
    )


def _compared(forward: Scores, step: Scores) -> tuple[NDArray[numpy.float64], NDArray[numpy.bool_]]:
    """Return for each step the KL divergence, and True if the most likely tokens agree; skip the prompt's row."""
    expected = forward.log_probabilities[1 - len(step.log_probabilities) :].astype(numpy.float64)
    actual = step.log_probabilities[1:].astype(numpy.float64)
    kl = (numpy.exp(expected) * (expected - actual)).sum(axis=1)
    # Rounding can make the sum negative if the distributions are equal.
    return numpy.maximum(kl, 0.0), expected.argmax(axis=1) == actual.argmax(axis=1)
