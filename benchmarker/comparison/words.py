"""Cells and lists of names in words."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarker.comparison.rows import CellKey
from benchmarker.core.tables import escaped


def cell_words(key: CellKey | None) -> str:
    """`prompt 26, 100 new tokens, batch 1`."""
    return "every cell" if key is None else key.words


def listed(names: Iterable[str]) -> str:
    """`fp16`, `fp16 and int8`, `fp16, int8 and bnb4`; each name once, escaped for a table's page."""
    *others, last = dict.fromkeys(map(escaped, names))
    return f"{', '.join(others)} and {last}" if others else last
