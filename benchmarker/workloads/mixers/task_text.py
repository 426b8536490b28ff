"""The shipped text as bytes: nine tenths to train on, the last tenth to judge by."""

from __future__ import annotations

from functools import cache

from benchmarker.checkpoints.shipped_models import shipped_text

TRAINED_SHARE = 0.9


@cache
def shipped_bytes() -> bytes:
    """The shipped text for evaluation."""
    return shipped_text("evaluation.txt").encode()


def trained_bytes() -> int:
    """How many of them, from the beginning, models are trained on."""
    return int(TRAINED_SHARE * len(shipped_bytes()))


def judged_bytes() -> int:
    """How many of them, at the end, models are judged by."""
    return len(shipped_bytes()) - trained_bytes()
