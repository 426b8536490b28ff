"""Prompts of an exact length, with the same token ids for every variant.

A prompt is text if the model has a tokenizer: zeros would draw less power and so raise the clocks. Without a tokenizer
the ids come from a seeded generator, and the record contains this.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

from benchmarker.core.errors import ModelError, SpecError
from benchmarker.workloads.generation.spec import Point


@dataclass(frozen=True)
class Prompt:
    """One prompt as token ids."""

    ids: tuple[int, ...]
    source: str
    """See `GenerationCell.prompt_source`."""
    context: tuple[int, ...] = ()
    """Tokens of the depth, before the prompt."""

    @property
    def sha256(self) -> str:
        return hashlib.sha256(",".join(map(str, (*self.context, *self.ids))).encode()).hexdigest()


def make_prompt(point: Point, *, tokenizer: Any | None, vocabulary: int, chat_template: bool) -> Prompt:
    """Return the prompt of one cell, with the tokens of its depth.

    Args:
        tokenizer: The model's own, or None.
        vocabulary: Number of token ids.
        chat_template: Wrap a text prompt in the model's template.

    Raises:
        ModelError: There is no tokenizer or template for a text.
        SpecError: The text has no token.
    """
    context, _ = _exactly(point.depth, tokenizer, vocabulary)
    if point.prompt is not None:
        return replace(_text_prompt(point.prompt, tokenizer, chat_template), context=context)
    assert point.prompt_tokens is not None
    ids, source = _exactly(point.prompt_tokens, tokenizer, vocabulary)
    return Prompt(ids, source, context)


def _exactly(length: int, tokenizer: Any | None, vocabulary: int) -> tuple[tuple[int, ...], str]:
    if tokenizer is None:
        generator = random.Random(0)
        return tuple(generator.randrange(vocabulary) for _ in range(length)), "random ids (no tokenizer)"
    text = (files("benchmarker") / "text" / "prompts.txt").read_text(encoding="utf-8")
    text_ids = tokenizer.encode(text, add_special_tokens=False)
    repeats = -(-length // len(text_ids))
    return tuple((text_ids * repeats)[:length]), "shipped text"


def _text_prompt(text: str, tokenizer: Any | None, chat_template: bool) -> Prompt:
    if tokenizer is None:
        raise ModelError("a text prompt needs a tokenizer, and this model has none; give --prompt-tokens instead")
    if chat_template:
        if not getattr(tokenizer, "chat_template", None):
            raise ModelError("--chat-template: this model's tokenizer has no chat template")
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
        )
    ids = tuple(tokenizer.encode(text, add_special_tokens=not chat_template))
    if not ids:
        raise SpecError("--prompt: the text comes out as no token at all")
    return Prompt(ids, "given text in the chat template" if chat_template else "given text")


def check_fits(point: Point, prompt_tokens: int, *, positions: int | None, model: str) -> None:
    """Refuse a cell that exceeds the model's maximum length.

    Args:
        prompt_tokens: Length of the prompt; a text needs a tokenizer.

    Raises:
        SpecError: With the numbers and the longest generation that fits.
    """
    depth, new_tokens = point.depth, point.new_tokens
    if positions is not None and depth + prompt_tokens + new_tokens > positions:
        room = positions - prompt_tokens - depth
        remedy = f"generate at most {room}" if room > 0 else f"use a prompt under {positions - depth} tokens"
        if depth and prompt_tokens + new_tokens <= positions:
            remedy = f"use a depth of at most {positions - prompt_tokens - new_tokens}"
        deep = f"depth {depth} + " if depth else ""
        raise SpecError(
            f"{deep}prompt of {prompt_tokens} + {new_tokens} new tokens is past the {positions} positions of {model}; "
            f"{remedy}"
        )
