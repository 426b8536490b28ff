"""Statuses of a cell, and the status of each kind of error."""

from __future__ import annotations

from typing import Literal

from benchmarker.core.errors import ErrorKind
from benchmarker.core.tables import plain_line

CellStatus = Literal["ok", "invalid", "oom_gpu", "oom_host", "timeout", "crash", "unsupported", "error"]

STATUSES: dict[ErrorKind, CellStatus] = {
    "oom_gpu": "oom_gpu",
    "oom_host": "oom_host",
    "timeout": "timeout",
    "crash": "crash",
    "unsupported": "unsupported",
    "missing_library": "unsupported",
    "device": "unsupported",
    "wrong_token_count": "invalid",
    "wrong_result": "invalid",
    "incomplete_graph": "invalid",
    "throttled": "invalid",
    "shared_device": "invalid",
    "disturbed": "invalid",
    "unwatched": "invalid",
}
"""Status of a cell without a number, by kind of error; `error` for other kinds."""


def status_of(kind: ErrorKind) -> CellStatus:
    """Return the status of a cell that failed with this kind of error."""
    return STATUSES.get(kind, "error")


STATUS_TEXTS = {
    "invalid": "invalid",
    "oom_gpu": "out of GPU memory",
    "oom_host": "out of memory",
    "timeout": "timed out",
    "crash": "crashed",
    "unsupported": "not supported",
    "error": "error",
    "failed": "failed",
    "not measured": "not measured",
}


def status_words(status: str) -> str:
    """Return a status in words: `out of GPU memory`."""
    return STATUS_TEXTS.get(status, plain_line(status))
