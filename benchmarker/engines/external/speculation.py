"""Speculative decoding: a step checks several drafted tokens at once, and keeps those that the model would have chosen.

    tokens of a step = 1 + accepted drafts

The rate is meaningful only beside this number, which depends on the text: random weights are refused.
"""

from __future__ import annotations

from typing import NamedTuple

from pydantic import field_validator

from benchmarker.quantization.base import Options

METHODS = ("ngram", "draft_model", "eagle3", "mtp")
WITH_DRAFT = ("draft_model", "eagle3")  # Methods that need a second model. That of `mtp` is usually in the checkpoint.


class Speculation(NamedTuple):
    method: str
    tokens: int  # Draft tokens of a step.
    draft: str | None  # Folder or hub id of the draft model.


def speculation_of(text: str) -> Speculation:
    """Parse `ngram:5` or `eagle3:3:FOLDER`. Raises ValueError."""
    method, _, rest = text.partition(":")
    tokens, _, draft = rest.partition(":")
    if method not in METHODS or not tokens.isdecimal() or not int(tokens):
        methods = ", ".join(METHODS)
        raise ValueError(f"'{text}' is not METHOD:TOKENS or METHOD:TOKENS:DRAFT; the methods are {methods}")
    if (method in WITH_DRAFT) != bool(draft) and method != "mtp":
        raise ValueError(f"'{text}': {method} {'has no' if draft else 'needs a'} draft model")
    return Speculation(method, int(tokens), draft or None)


class SpeculativeOptions(Options):
    """Options of an engine with speculative decoding."""

    speculative: str | None = None
    """Speculative decoding, `METHOD:TOKENS` or `METHOD:TOKENS:DRAFT`: `ngram:5` drafts from the sequence's own tokens;
    `draft_model`, `eagle3` and `mtp` draft with a model, whose folder or hub id is DRAFT."""

    @field_validator("speculative")
    @classmethod
    def _is_complete(cls, value: str | None) -> str | None:
        if value is not None:
            speculation_of(value)
        return value
