"""Prompts of an exact length, with the same token ids for every variant.

If the model has a tokenizer, prompts are real text: ids of zero would draw less power and raise the clocks. Otherwise a
seeded generator makes the ids, and the record contains their source. The sequences of a batch have different prompts:
with equal prompts, all sequences would use the same experts of an MoE layer, and engines could share prefixes.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count, cycle, islice
from math import gcd
from typing import Any

from benchmarker.checkpoints.files import shipped_text
from benchmarker.core.errors import ModelError, SpecError
from benchmarker.workloads.generation.record import NO_TOKENIZER
from benchmarker.workloads.generation.spec import Point

Window = tuple[int, ...]
TRIES = 16  # Windows of text that are tried per prompt to find one that no other sequence of the batch has.


@dataclass(frozen=True)
class Prompt:
    ids: Window
    source: str  # Value of `GenerationCell.prompt_source`.
    context: Window = ()  # Ids before the prompt, which are in the KV cache when the clock starts.


def distinct_count(prompts: Sequence[Prompt]) -> int:
    """Return the number of different (context, prompt) pairs."""
    return len(set(prompts))


def inputs_sha256(prompts: Sequence[Prompt]) -> str:
    """Return the hash of the prompts of a batch; if all are equal, the hash of one prompt."""
    rows = prompts if distinct_count(prompts) > 1 else prompts[:1]
    text = ";".join(",".join(map(str, (*prompt.context, *prompt.ids))) for prompt in rows)
    return hashlib.sha256(text.encode()).hexdigest()


def make_prompts(point: Point, *, tokenizer: Any | None, vocabulary: int, chat_template: bool) -> tuple[Prompt, ...]:
    """Return the prompt of each sequence of a cell, with its context.

    Args:
        tokenizer: The model's tokenizer, or None.
        vocabulary: Number of token ids.
        chat_template: Wrap a text prompt in the model's template.

    Raises:
        ModelError: A text prompt needs a tokenizer, or a chat template, that the model does not have.
        SpecError: A text prompt has no token.
    """
    window = _random_window(vocabulary) if tokenizer is None else _text_window(tokenizer)
    source = NO_TOKENIZER if tokenizer is None else "shipped text"
    numbers = [0] * point.batch_size
    if point.has_distinct_prompts:
        numbers = _different(window, point.prompt_tokens or point.depth, point.batch_size)
    text_ids: Window | None = None
    if point.prompt is not None:
        text_ids, source = _text_prompt(point.prompt, tokenizer, chat_template)
    return tuple(
        Prompt(text_ids or window(number, point.prompt_tokens or 0), source, window(number, point.depth))
        for number in numbers
    )


def _random_window(vocabulary: int) -> Callable[[int, int], Window]:
    def window(number: int, length: int) -> Window:
        generator = random.Random(number)
        return tuple(generator.randrange(vocabulary) for _ in range(length))

    return cache(window)


def _text_window(tokenizer: Any) -> Callable[[int, int], Window]:
    """Return a function (number, length) -> ids of a window of the shipped text; window 0 is its beginning."""
    ids = tokenizer.encode(shipped_text("prompts.txt"), add_special_tokens=False)
    # Windows start at multiples of `step` modulo the text's length. Without a common divisor, all starts differ.
    step = next(number for number in count(int(0.618 * len(ids)) + 1) if gcd(number, len(ids)) == 1)

    def window(number: int, length: int) -> Window:
        start = number * step % len(ids)
        repeats = -(-(start + length) // len(ids))
        return tuple((ids * repeats)[start : start + length])

    return cache(window)


def _different(window: Callable[[int, int], Window], length: int, wanted: int) -> list[int]:
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


def check_fits(point: Point, prompt_tokens: int, config: Mapping[str, Any], *, model: str) -> None:
    """Check that a cell does not exceed the maximum length in the model's config.

    Args:
        prompt_tokens: Length of the prompt in tokens, also for a text prompt.

    Raises:
        SpecError: With the lengths and the longest generation that fits.
    """
    depth, new_tokens, positions = point.depth, point.new_tokens, config.get("max_position_embeddings")
    if positions is not None and depth + prompt_tokens + new_tokens > positions:
        room, together = positions - prompt_tokens - depth, f"{positions - depth} prompt and new tokens together"
        remedy = f"generate at most {room}" if room > 0 else f"use at most {together}"
        if depth and prompt_tokens + new_tokens <= positions:
            remedy = f"use a depth of at most {positions - prompt_tokens - new_tokens}"
        deep = f"depth {depth} + " if depth else ""
        raise SpecError(
            f"{deep}prompt of {prompt_tokens} + {new_tokens} new tokens is past the {positions} positions of {model}; "
            f"{remedy}"
        )
