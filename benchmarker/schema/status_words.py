"""Statuses of a cell, and the reasons for them, as a reader wants them."""

from __future__ import annotations

from benchmarker.core.errors import BenchmarkerError
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
OWN_ERRORS = tuple(kind.__name__ for kind in BenchmarkerError.__subclasses__())


def status_words(status: str) -> str:
    """`out of GPU memory`."""
    return STATUSES.get(status, escaped(status))


def reason_words(reason: str) -> str:
    """A reason as its reader wants it: our own errors are sentences, and what we call them is no news to anyone."""
    kind, _, sentence = reason.partition(": ")
    return sentence if kind in OWN_ERRORS and sentence else reason
