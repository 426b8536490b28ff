"""The text in windows: 512 tokens each, of which the second half is scored.

A token at the beginning of a window is predicted from next to nothing, which says little about a model that is used
with context. So the first half is only read (llama.cpp does the same). Windows do not overlap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from benchmarker.core.errors import ModelError, SpecError
from benchmarker.quality.text import Text

WINDOW_TOKENS = 512
SCORED_FROM = 256
SCORED = WINDOW_TOKENS - SCORED_FROM - 1
"""The last token has no next one to predict."""
QUICK_WINDOWS = 32
"""8,160 scored tokens: a 4-bit form's divergence is known to a few percent, its perplexity ratio to some 0.3 %."""


@dataclass(frozen=True)
class Windows:
    """Token ids that are fed to the model."""

    ids: NDArray[np.int64]
    """[windows, WINDOW_TOKENS]"""
    text_tokens: int
    """Tokens in the whole text."""
    begins_with: int | None
    """Token that stands at the beginning of each window in place of the text's own."""

    @property
    def targets(self) -> NDArray[np.int64]:
        """The tokens that are scored, [windows, SCORED]."""
        return self.ids[:, SCORED_FROM + 1 :]


def cut(text: Text, tokenizer: Any, *, size: Literal["quick", "full"]) -> Windows:
    """The text in windows: all of them, or for `quick` 32 that are spread evenly over it.

    Raises:
        SpecError: The text does not fill one window.
    """
    tokens: list[int] = tokenizer(text.content, add_special_tokens=False, verbose=False)["input_ids"]
    whole = len(tokens) // WINDOW_TOKENS
    if not whole:
        raise SpecError(
            f"{text.name}: {len(tokens)} tokens, fewer than one window of {WINDOW_TOKENS}; give a longer --eval-text"
        )
    ids = np.array(tokens[: whole * WINDOW_TOKENS], dtype=np.int64).reshape(whole, WINDOW_TOKENS)
    if size == "quick" and whole > QUICK_WINDOWS:
        ids = ids[np.arange(QUICK_WINDOWS) * whole // QUICK_WINDOWS]
    first = _first_token(tokenizer)
    if first is not None:
        ids[:, 0] = first
    return Windows(ids, len(tokens), first)


def check_positions(config: dict[str, Any], model_id: str) -> None:
    """Refuse a model that cannot see a whole window.

    Raises:
        ModelError: With the number of positions that it has.
    """
    positions = config.get("max_position_embeddings")
    if positions is not None and positions < WINDOW_TOKENS:
        raise ModelError(
            f"{model_id}: sees {positions} positions, and quality is measured in windows of {WINDOW_TOKENS}; "
            "leave --quality out"
        )


def check_tokens(windows: Windows, config: dict[str, Any], model_id: str) -> None:
    """Refuse a tokenizer that is not the model's.

    Raises:
        ModelError: It gives tokens that the model does not know.
    """
    largest, vocabulary = int(windows.ids.max()), int(config["vocab_size"])
    if largest >= vocabulary:
        raise ModelError(
            f"{model_id}: its tokenizer gives token {largest}, and vocab_size in its config.json is {vocabulary}, so "
            "that the model knows no such token; put the tokenizer of this model into its folder"
        )


def _first_token(tokenizer: Any) -> int | None:
    """The BOS token, where the tokenizer puts one before a text."""
    bos = tokenizer.bos_token_id
    if bos is None:
        return None
    begun = tokenizer("a", verbose=False)["input_ids"]
    return int(bos) if begun[:1] == [bos] else None
