"""Statuses of a cell in words."""

from __future__ import annotations

from benchmarker.core.tables import escaped

STATUSES = {
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
    """`out of GPU memory`."""
    return STATUSES.get(status, escaped(status))
