"""Counts, lists and durations in words."""

from __future__ import annotations

from collections.abc import Sequence


def plural(number: int, singular: str, many: str) -> str:
    """`1 process`, `5 processes`."""
    return f"{number} {singular if number == 1 else many}"


def abridged(texts: Sequence[str], most: int, *, separator: str = ", ") -> str:
    """The first texts, and how many are left out: `a, b and 2 more`."""
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return separator.join(texts[:most]) + more


def duration_words(duration_s: float) -> str:
    """`less than a minute`, `about 12 min`, `about 2 h 40 min`."""
    minutes = round(duration_s / 60)
    if minutes < 1:
        return "less than a minute"
    if minutes < 90:
        return f"about {minutes} min"
    return f"about {minutes // 60} h {minutes % 60:02} min"
