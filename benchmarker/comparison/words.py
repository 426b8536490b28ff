"""Statuses, cells and counts in words."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarker.comparison.rows import CellKey
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
    return STATUSES.get(status, escaped(status))


def cell_words(key: CellKey | None) -> str:
    """`prompt 26, 100 new tokens, batch 1`."""
    return "every cell" if key is None else key.words


def listed(names: Iterable[str]) -> str:
    """`fp16`, `fp16 and int8`, `fp16, int8 and bnb4`; each name once, escaped for a table's page."""
    *others, last = dict.fromkeys(map(escaped, names))
    return f"{', '.join(others)} and {last}" if others else last


def plural(number: int, one: str, many: str) -> str:
    """`1 process`, `5 processes`."""
    return f"{number} {one if number == 1 else many}"


def duration_words(duration_s: float) -> str:
    """`less than a minute`, `about 12 min`, `about 2 h 40 min`."""
    minutes = round(duration_s / 60)
    if minutes < 1:
        return "less than a minute"
    if minutes < 90:
        return f"about {minutes} min"
    return f"about {minutes // 60} h {minutes % 60:02} min"
