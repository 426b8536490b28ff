"""Cells that differ only in length."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarker.comparison.rows import CellKey


@dataclass(frozen=True)
class LengthSeries:
    """Cells of several lengths with one batch size, or with one number of tokens."""

    label: str
    keys: tuple[CellKey, ...]
    has_one_batch_size: bool


def length_series(keys: Sequence[CellKey], *, mode_text: Callable[[str], str]) -> list[LengthSeries]:
    """Return the series of two lengths or more, by mode. A series of one number of tokens must add a cell."""
    series: list[LengthSeries] = []
    for mode in sorted({key["mode"] for key in keys}):
        by_batch: dict[int, list[CellKey]] = defaultdict(list)
        by_tokens: dict[int, list[CellKey]] = defaultdict(list)
        for key in sorted({key for key in keys if key["mode"] == mode}):
            by_batch[key["batch_size"]].append(key)
            by_tokens[key["batch_size"] * key["seq_len"]].append(key)
        label = mode_text(mode)
        of_batches = [
            LengthSeries(f"{label}, batch of {size}", tuple(members), has_one_batch_size=True)
            for size, members in by_batch.items()
            if len(members) > 1
        ]
        covered = {key for line in of_batches for key in line.keys}
        series += of_batches
        series += [
            LengthSeries(f"{label}, {tokens:,} tokens", tuple(members), has_one_batch_size=False)
            for tokens, members in by_tokens.items()
            if len(members) > 1 and not covered.issuperset(members)
        ]
    return series
