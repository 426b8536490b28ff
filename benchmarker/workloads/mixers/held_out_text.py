"""Shipped text as bytes: nine tenths for training, the last tenth held out. Imports no torch."""

from __future__ import annotations

from functools import cache

from benchmarker.checkpoints.shipped_models import shipped_text

TRAINING_SHARE = 0.9


@cache
def shipped_bytes() -> bytes:
    return shipped_text("evaluation.txt").encode()


def training_bytes() -> int:
    """Return how many bytes, from the start, models are trained on."""
    return int(TRAINING_SHARE * len(shipped_bytes()))


def held_out_bytes() -> int:
    """Return how many bytes, at the end, models are judged by."""
    return len(shipped_bytes()) - training_bytes()
