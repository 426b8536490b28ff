"""Windows of a text; the first 256 tokens of each are context, the others are scored (as in llama.cpp).

Windows do not overlap. Every scored token is one step of the engine, so `quick` scores few tokens of many windows:
another token of the same window adds less information than the first of another window.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarker.core.errors import ModelError, SpecError
from benchmarker.quality.evaluation_text import Text
from benchmarker.schema.quality import WINDOW_TOKENS, QualitySize

SCORED_FROM = 256
QUICK_WINDOWS = 64
"""Number of windows of `quick`: 2,048 scored tokens. On the small model this gives bnb4's divergence to 3.5 %, against
3.2 % from 32 windows of 255 tokens; its perplexity to 11 % in both cases, and the ratio to the baseline's to 0.5 %
instead of 0.3 %.
"""


@dataclass(frozen=True)
class Windows:
    ids: NDArray[np.int64]
    """[windows, tokens]"""
    text_tokens: int
    begins_with: int | None
    """Token that replaces the text's own at the beginning of each window."""

    @property
    def targets(self) -> NDArray[np.int64]:
        return self.ids[:, SCORED_FROM + 1 :]

    def spread(self, count: int) -> NDArray[np.int64]:
        """Return the numbers of up to `count` windows, spread evenly over the text."""
        total = len(self.ids)
        return np.arange(min(count, total)) * total // min(count, total)

    @property
    def tokens(self) -> int:
        return self.ids.shape[1]

    @property
    def scored(self) -> int:
        return self.targets.shape[1]


def cut(text: Text, tokenizer: Any, *, size: QualitySize) -> Windows:
    """Cut a text into windows: all, or for `quick` 64 spread evenly over it. Raises SpecError for a short text."""
    tokens: list[int] = tokenizer(text.content, add_special_tokens=False, verbose=False)["input_ids"]
    length = WINDOW_TOKENS[size]
    count = len(tokens) // length
    if not count:
        raise SpecError(
            f"{text.name}: {len(tokens)} tokens, fewer than one window of {length}; give a longer --eval-text"
        )
    ids = np.array(tokens[: count * length], dtype=np.int64).reshape(count, length)
    if size == "quick" and count > QUICK_WINDOWS:
        ids = ids[np.arange(QUICK_WINDOWS) * count // QUICK_WINDOWS]
    first = _first_token(tokenizer)
    if first is not None:
        ids[:, 0] = first
    return Windows(ids, len(tokens), first)


def check_positions(config: dict[str, Any], model_id: str, *, size: QualitySize) -> None:
    positions = config.get("max_position_embeddings")
    if positions is not None and positions < WINDOW_TOKENS[size]:
        raise ModelError(
            f"{model_id}: has {positions} positions, and quality is measured in windows of {WINDOW_TOKENS[size]}; "
            "leave --quality out"
        )


def check_tokens(windows: Windows, config: dict[str, Any], model_id: str) -> None:
    largest, vocabulary = int(windows.ids.max()), int(config["vocab_size"])
    if largest >= vocabulary:
        raise ModelError(
            f"{model_id}: its tokenizer gives token {largest}, and vocab_size in its config.json is {vocabulary}, so "
            "that the model has no such token; put the tokenizer of this model into its folder"
        )


def _first_token(tokenizer: Any) -> int | None:
    """Return the BOS token if the tokenizer puts one before a text."""
    bos = tokenizer.bos_token_id
    if bos is None:
        return None
    begun = tokenizer("a", verbose=False)["input_ids"]
    return int(bos) if begun[:1] == [bos] else None
