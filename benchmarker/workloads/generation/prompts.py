"""Prompts of an exact length, with the same token ids for every variant.

A prompt is text if the model has a tokenizer: zeros would draw less power and so raise the clocks. Without a tokenizer
the ids come from a seeded generator, and the record contains this. The sequences of a batch have different prompts:
with equal ones all sequences would use the same experts of a MoE layer, and engines could share prefixes.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from itertools import count, cycle, islice
from math import gcd
from typing import Any

from benchmarker.core.errors import ModelError, SpecError
from benchmarker.workloads.generation.spec import Point

Window = tuple[int, ...]
TRIES = 16
"""Windows that are compared for each different one. A prompt of one token has few."""


@dataclass(frozen=True)
class Prompts:
    """Token ids of a batch."""

    ids: tuple[Window, ...]
    """Prompt of each sequence; all are equally long."""
    source: str
    """See `GenerationCell.prompt_source`."""
    context: tuple[Window, ...]
    """Tokens of the depth, before each prompt; empty without depth."""

    @property
    def tokens(self) -> int:
        """Length of each prompt."""
        return len(self.ids[0])

    @property
    def distinct(self) -> int:
        """Number of different sequences, depth included."""
        return len(set(self._sequences))

    @property
    def sha256(self) -> str:
        """Hash of all sequences; of a single one if they are equal."""
        rows = self._sequences if self.distinct > 1 else self._sequences[:1]
        return hashlib.sha256(";".join(",".join(map(str, row)) for row in rows).encode()).hexdigest()

    @property
    def _sequences(self) -> list[Window]:
        contexts = self.context or ((),) * len(self.ids)
        return [(*context, *ids) for context, ids in zip(contexts, self.ids, strict=True)]


def make_prompts(point: Point, *, tokenizer: Any | None, vocabulary: int, chat_template: bool) -> Prompts:
    """Return the prompts of one cell, with the tokens of its depth.

    Args:
        tokenizer: The model's own, or None.
        vocabulary: Number of token ids.
        chat_template: Wrap a text prompt in the model's template.

    Raises:
        ModelError: There is no tokenizer or template for a text.
        SpecError: The text has no token.
    """
    window = _random_window(vocabulary) if tokenizer is None else _text_window(tokenizer)
    source = "random ids (no tokenizer)" if tokenizer is None else "shipped text"
    numbers = [0] * point.batch_size
    if point.has_distinct_prompts:
        numbers = _different(window, point.prompt_tokens or point.depth, point.batch_size)
    contexts = tuple(window(number, point.depth) for number in numbers) if point.depth else ()
    if point.prompt is not None:
        ids, source = _text_prompt(point.prompt, tokenizer, chat_template)
        return Prompts((ids,) * point.batch_size, source, contexts)
    assert point.prompt_tokens is not None
    return Prompts(tuple(window(number, point.prompt_tokens) for number in numbers), source, contexts)


def _random_window(vocabulary: int) -> Callable[[int, int], Window]:
    """Return a function from number and length of a window to its ids."""

    def window(number: int, length: int) -> Window:
        generator = random.Random(number)
        return tuple(generator.randrange(vocabulary) for _ in range(length))

    return window


def _text_window(tokenizer: Any) -> Callable[[int, int], Window]:
    """Return a function from number and length of a window of the shipped text to its ids. Window 0 starts with the
    text, and the following ones far from each other."""
    text = (files("benchmarker") / "text" / "prompts.txt").read_text(encoding="utf-8")
    ids = tokenizer.encode(text, add_special_tokens=False)
    # Multiples of a number without a common divisor visit every start once before they return to the first.
    step = next(number for number in count(int(0.618 * len(ids)) + 1) if gcd(number, len(ids)) == 1)

    def window(number: int, length: int) -> Window:
        start = number * step % len(ids)
        repeats = -(-(start + length) // len(ids))
        return tuple((ids * repeats)[start : start + length])

    return window


def _different(window: Callable[[int, int], Window], length: int, wanted: int) -> list[int]:
    """Return the numbers of different windows; they repeat if there are fewer than wanted."""
    numbers: dict[Window, int] = {}
    for number in range(TRIES * wanted):
        numbers.setdefault(window(number, length), number)
        if len(numbers) == wanted:
            break
    return list(islice(cycle(numbers.values()), wanted))


def _text_prompt(text: str, tokenizer: Any | None, chat_template: bool) -> tuple[Window, str]:
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
    return ids, "given text in the chat template" if chat_template else "given text"


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
