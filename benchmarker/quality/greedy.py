"""What an engine makes of eight fixed prompts, so that the texts of two engines can be compared token by token.

Two engines part where rounding decides between two tokens that are about equally likely, and greedy text never comes
back from there. So each token is kept with the gap between the two likeliest at its place.
"""

from __future__ import annotations

import numpy
from numpy.typing import NDArray

from benchmarker.core.errors import UnsupportedError
from benchmarker.engines.base import Scorer, TokenIds
from benchmarker.quality.windows import Windows
from benchmarker.schema.quality import GreedyText

PROMPTS = 8
PROMPT_TOKENS = 32
NEW_TOKENS = 32


def greedy_texts(scorer: Scorer, windows: Windows) -> tuple[GreedyText, ...]:
    """What follows the beginnings of eight windows that are spread evenly over the text; fewer where it has fewer.

    Returns:
        Nothing where the engine cannot run this.
    """
    count = min(PROMPTS, len(windows.ids))
    chosen = windows.ids[numpy.arange(count) * len(windows.ids) // count, :PROMPT_TOKENS]
    try:
        return tuple(_text(scorer, prompt) for prompt in chosen.tolist())
    except UnsupportedError:
        return ()


def _text(scorer: Scorer, prompt: TokenIds) -> GreedyText:
    tokens = scorer.greedy_tokens(prompt, NEW_TOKENS)
    logs = _log_probabilities(scorer, [*prompt, *tokens[:-1]], prompt_tokens=len(prompt))
    if logs is None:
        return GreedyText(tokens=tokens)
    likeliest = numpy.partition(logs, -2, axis=1)[:, -2:]
    return GreedyText(tokens=tokens, gaps=tuple((likeliest[:, 1] - likeliest[:, 0]).astype(float).tolist()))


def _log_probabilities(scorer: Scorer, ids: TokenIds, *, prompt_tokens: int) -> NDArray[numpy.floating] | None:
    """Of each token after the prompt: by the decode step, or by the prefill where the engine tells no other."""
    scores = scorer.step_scores(ids, prompt_tokens=prompt_tokens)
    if scores is not None:
        return scores.log_probabilities
    prefill = scorer.prefill_scores(ids)
    return None if prefill is None else prefill.log_probabilities[prompt_tokens - 1 :]
