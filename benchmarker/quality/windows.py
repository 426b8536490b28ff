"""The text in windows, of which the first 256 tokens are only read and the others are scored.

A token at the beginning of a window is predicted from next to nothing, which says little about a model that is used
with context (llama.cpp does the same). Windows do not overlap. Every scored token is one step of the engine, so `quick`
scores few tokens of many windows: tokens of one window share their subject, and the next one tells less than the first
of another window.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarker.core.errors import ModelError, SpecError
from benchmarker.quality.text import Text
from benchmarker.schema.quality import WINDOW_TOKENS, QualitySize

SCORED_FROM = 256
QUICK_WINDOWS = 64
"""2,048 scored tokens. On the small model bnb4's divergence is known to 3.5 %, from 32 windows of 255 to 3.2 %; its
perplexity to 11 % both ways, and the ratio to the baseline's to 0.5 % instead of 0.3 %."""


@dataclass(frozen=True)
class Windows:
    """Token ids that are fed to the model."""

    ids: NDArray[np.int64]
    """[windows, tokens]"""
    text_tokens: int
    """Tokens in the whole text."""
    begins_with: int | None
    """Token that stands at the beginning of each window in place of the text's own."""

    @property
    def targets(self) -> NDArray[np.int64]:
        """The tokens that are scored, [windows, scored]."""
        return self.ids[:, SCORED_FROM + 1 :]

    def spread(self, count: int) -> NDArray[np.int64]:
        """Numbers of so many windows, or of all where there are fewer, spread evenly over the text."""
        whole = len(self.ids)
        return np.arange(min(count, whole)) * whole // min(count, whole)

    @property
    def tokens(self) -> int:
        """Of one window."""
        return self.ids.shape[1]

    @property
    def scored(self) -> int:
        """Tokens of one window that are scored."""
        return self.targets.shape[1]


def cut(text: Text, tokenizer: Any, *, size: QualitySize) -> Windows:
    """The text in windows: all of them, or for `quick` 64 that are spread evenly over it.

    Raises:
        SpecError: The text does not fill one window.
    """
    tokens: list[int] = tokenizer(text.content, add_special_tokens=False, verbose=False)["input_ids"]
    length = WINDOW_TOKENS[size]
    whole = len(tokens) // length
    if not whole:
        raise SpecError(
            f"{text.name}: {len(tokens)} tokens, fewer than one window of {length}; give a longer --eval-text"
        )
    ids = np.array(tokens[: whole * length], dtype=np.int64).reshape(whole, length)
    if size == "quick" and whole > QUICK_WINDOWS:
        ids = ids[np.arange(QUICK_WINDOWS) * whole // QUICK_WINDOWS]
    first = _first_token(tokenizer)
    if first is not None:
        ids[:, 0] = first
    return Windows(ids, len(tokens), first)


def check_positions(config: dict[str, Any], model_id: str, *, size: QualitySize) -> None:
    """Refuse a model that cannot see a whole window.

    Raises:
        ModelError: With the number of positions that it has.
    """
    positions = config.get("max_position_embeddings")
    if positions is not None and positions < WINDOW_TOKENS[size]:
        raise ModelError(
            f"{model_id}: sees {positions} positions, and quality is measured in windows of {WINDOW_TOKENS[size]}; "
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
