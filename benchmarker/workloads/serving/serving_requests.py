"""Requests of a load: prompts as token ids and the number of new tokens, equal for every variant.

Prompts are random ids, with or without a shared prefix, or the conversations of a JSONL file.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from benchmarker.core.errors import ModelError, SpecError
from benchmarker.workloads.serving.spec import ServingPoint

LINE_FORMAT = '{"messages": [{"role": "user", "content": "..."}]} or {"prompt": "..."}'
REMEDY = f"give a file with lines {LINE_FORMAT}, or leave --dataset out for prompts of random token ids"


class Request(NamedTuple):
    prompt: list[int]
    new_tokens: int


class Message(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True)

    role: str
    content: str


class Conversation(BaseModel):
    """One line of a dataset. Other keys of the line are ignored."""

    model_config = ConfigDict(frozen=True, strict=True)

    messages: list[Message] = Field(default_factory=list)
    prompt: str | None = None

    @property
    def turns(self) -> list[dict[str, str]]:
        """Messages up to the last one that is not an answer of the model."""
        if self.prompt is not None:
            return [{"role": "user", "content": self.prompt}]
        last = max((place for place, each in enumerate(self.messages) if each.role != "assistant"), default=-1)
        return [message.model_dump() for message in self.messages[: last + 1]]


class Dataset:
    """JSONL file of conversations. Raises SpecError for a file that cannot be read, with the number of a bad line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            content = path.read_bytes()
            lines = content.decode().split("\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise SpecError(f"--dataset {path}: cannot be read: {reason}; {REMEDY}") from None
        self.sha256 = hashlib.sha256(content).hexdigest()
        # The start of the hash distinguishes files of one name.
        self.label = f"{path.name} ({self.sha256[:6]})"
        self.conversations = {
            number: self._parsed(number, line) for number, line in enumerate(lines, start=1) if line.strip()
        }
        if not self.conversations:
            raise SpecError(f"--dataset {path}: is empty; {REMEDY}")

    def _parsed(self, number: int, line: str) -> Conversation:
        try:
            conversation = Conversation.model_validate(json.loads(line))
        except (ValueError, RecursionError) as error:
            is_form = isinstance(error, ValidationError)
            raise self._bad(number, f"must be {LINE_FORMAT}" if is_form else f"is no JSON: {error}") from None
        if bool(conversation.messages) == (conversation.prompt is not None) or not conversation.turns:
            raise self._bad(number, f"must be {LINE_FORMAT}")
        return conversation

    def _bad(self, number: int, problem: str) -> SpecError:
        return SpecError(f"--dataset {self.path}: line {number} {problem}")

    def prompts(self, tokenizer: Any | None) -> list[list[int]]:
        if tokenizer is None:
            raise ModelError("--dataset: the checkpoint has no tokenizer; leave it out for prompts of random token ids")
        return [self._ids(number, each, tokenizer) for number, each in self.conversations.items()]

    def _ids(self, number: int, conversation: Conversation, tokenizer: Any) -> list[int]:
        has_template = bool(getattr(tokenizer, "chat_template", None))
        turns = conversation.turns
        text = "\n".join(turn["content"] for turn in turns)
        if has_template:
            from jinja2 import TemplateError

            try:
                text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
            except (TemplateError, ValueError, TypeError) as error:
                raise self._bad(number, f"does not fit the model's chat template: {error}") from None
        ids: list[int] = tokenizer.encode(text, add_special_tokens=not has_template)
        if not ids:
            raise self._bad(number, "has no token")
        return ids


def read_dataset(path: str | None) -> Dataset | None:
    return Dataset(Path(path).expanduser()) if path else None


def make_requests(
    point: ServingPoint, count: int, *, vocabulary: int, seed: int, is_timed: bool, prompts: Sequence[list[int]] = ()
) -> list[Request]:
    """Return requests of exact lengths.

    Args:
        is_timed: False for a warm-up, whose requests differ from the timed ones except for the shared prefix.
        prompts: Token ids of a dataset; empty for random ids.
    """
    shape = point._replace(dataset="")
    generator = random.Random(f"{seed}{'' if is_timed else ' warm-up'} {tuple(shape)}")
    prefix = _random_ids(random.Random(f"{seed} prefix"), point.shared_prefix, vocabulary)
    # Loads of all sizes begin with the same conversations; those of a short file are repeated.
    order = random.Random(f"{seed} {is_timed}").sample(prompts, len(prompts))
    sources = islice(cycle(order), count) if order else (None for _ in range(count))
    requests = []
    for prompt in sources:
        if prompt is None:
            length = generator.randint(*length_range(point.prompt_tokens, point.length_spread, least=1))
            prompt = prefix + _random_ids(generator, length, vocabulary)
        new_tokens = generator.randint(*length_range(point.new_tokens, point.length_spread, least=2))
        requests.append(Request(prompt, new_tokens))
    return requests


def _random_ids(generator: random.Random, length: int, vocabulary: int) -> list[int]:
    return [generator.randrange(vocabulary) for _ in range(length)]


def length_range(mean: int, spread: float, *, least: int) -> tuple[int, int]:
    """Return the smallest and largest length. The epsilon absorbs rounding errors of the products."""
    return max(least, math.ceil(mean * (1 - spread) - 1e-9)), math.floor(mean * (1 + spread) + 1e-9)


def longest_request(points: Sequence[ServingPoint], prompts: Sequence[list[int]]) -> tuple[int, int]:
    """Return the tokens of the longest prompt and the most new tokens, over all points."""
    ranges = [length_range(point.prompt_tokens, point.length_spread, least=0)[1] for point in points]
    lengths = [point.shared_prefix + most for point, most in zip(points, ranges, strict=True)]
    new_tokens = [length_range(point.new_tokens, point.length_spread, least=2)[1] for point in points]
    return max([*lengths, *map(len, prompts)]), max(new_tokens)
