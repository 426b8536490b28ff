"""What the rows of several lengths tell together: where a variant begins to win, and how its time grows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarker.comparison.rows import CellKey, Row
from benchmarker.comparison.words import listed
from benchmarker.core.tables import escaped
from benchmarker.workloads.attention.metrics import crossings, growth, local_exponents
from benchmarker.workloads.attention.words import (
    always_in_words,
    crossing_in_words,
    exponents_in_words,
    growth_in_words,
)


@dataclass(frozen=True)
class Line:
    """Cells that differ in their length alone: all of one batch size, or all of as many tokens."""

    words: str
    keys: tuple[CellKey, ...]
    is_of_one_batch: bool


def joined(mode: str) -> str:
    """`forward + backward`."""
    return mode.replace("_", " + ")


def lines_of(keys: Sequence[CellKey], *, mode_words: Callable[[str], str] = joined) -> list[Line]:
    """Lines of two lengths or more. Those of as many tokens only where a cell is in none of one batch size."""
    lines = []
    for mode in sorted({key["mode"] for key in keys}):
        able, words = [key for key in keys if key["mode"] == mode], mode_words(mode)
        batches: dict[int, list[CellKey]] = {}
        totals: dict[int, list[CellKey]] = {}
        for key in sorted(set(able)):
            batches.setdefault(key["batch_size"], []).append(key)
            totals.setdefault(key["batch_size"] * key["seq_len"], []).append(key)
        by_batch = [
            Line(f"{words}, batch of {size}", tuple(line), is_of_one_batch=True)
            for size, line in batches.items()
            if len(line) > 1
        ]
        covered = {key for line in by_batch for key in line.keys}
        lines += by_batch
        lines += [
            Line(f"{words}, {total:,} tokens", tuple(line), is_of_one_batch=False)
            for total, line in totals.items()
            if len(line) > 1 and not covered.issuperset(line)
        ]
    return lines


def over_lengths(rows: Sequence[Row], baseline: str | None) -> list[str]:
    """Where variants win, line by line; and how time grows with the length, which a batch that shrinks would hide."""
    lines = lines_of([row.cell for row in rows if row.cell and row.latency])
    won = [sentence for line in lines for sentence in _won(line, rows, baseline)]
    grown = [sentence for line in lines if line.is_of_one_batch for sentence in _grown(line, rows)]
    return [f"{sentence}." for sentence in (*won, *grown)]


def _on(line: Line, rows: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    """Each variant with its measured rows of the line, by length."""
    for name in dict.fromkeys(row.variant for row in rows):
        able = [row for row in rows if row.variant == name and row.cell in line.keys and row.latency]
        if len(able) > 1:
            yield name, sorted(able, key=_length)


def _length(row: Row) -> int:
    return int(row.cell["seq_len"]) if row.cell else 0


def _won(line: Line, rows: Sequence[Row], baseline: str | None) -> Iterator[str]:
    if baseline is None:
        return
    always: dict[str, list[str]] = {}
    for name, able in _on(line, rows):
        ratios = [(_length(row), row.ratio) for row in able if row.ratio and name != baseline]
        for crossing in crossings(ratios):
            yield f"{line.words}: {crossing_in_words(escaped(name), escaped(baseline), crossing)}"
        if words := always_in_words(escaped(baseline), ratios):
            always.setdefault(words, []).append(name)
    for words, names in always.items():
        yield f"{line.words}: {listed(names)} {'are' if len(names) > 1 else 'is'} {words}"


def _grown(line: Line, rows: Sequence[Row]) -> Iterator[str]:
    for name, able in _on(line, rows):
        times = [(_length(row), row.latency.value) for row in able if row.latency]
        fit = growth(times)
        fitted = f"; {growth_in_words(fit)}" if fit else ""
        yield f"{line.words}: {escaped(name)}'s {exponents_in_words(local_exponents(times))}{fitted}"
