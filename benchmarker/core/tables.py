"""A table as a value, and its markdown: it lines up in a terminal and renders on a forge, whatever the names in it.

Names come from files that someone else may have written. A pipe would shift every later column, a newline end the
table, an escape code move the reader's cursor, a bidirectional control turn the line around.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from rich.cells import cell_len

from benchmarker.core.terminal_text import without_escape_codes

NAME_LENGTH = 80
RowT = TypeVar("RowT", contravariant=True)

# An underscore inside a word, as in exllama_v2, starts no emphasis and reads better bare.
_MARKUP = re.compile(r"[\\`*\[\]<>|~&$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


@dataclass(frozen=True)
class Column(Generic[RowT]):
    """One column: its heading, and the finished text of a row's cell."""

    heading: str
    text: Callable[[RowT], str]
    align: str = "right"
    sort: Callable[[RowT], float | None] | None = None
    """What rows are sorted by; None where a row has no number. Without it a column is sorted by its text."""
    is_more_better: bool = False
    """Whether the best row is the one with the largest number."""
    help: str = ""
    """What the column holds, in a sentence."""
    is_foreign: bool = False
    """Whether the text is plain and may come from a file that somebody else wrote: every renderer makes it inert."""


@dataclass(frozen=True)
class Sheet:
    """One table: what markdown, a terminal and the page are rendered from."""

    title: str
    """Empty where it is the only one, of no cell."""
    columns: Sequence[Column[Any]]
    rows: Sequence[Any]
    notes: tuple[str, ...] = ()
    """How to read it, in markdown sentences."""
    is_bold: Callable[[Any], bool] = lambda row: False
    """Whether a row stands out."""


Block = str | Sheet
"""A part of what is printed: paragraphs in markdown, or a table."""


def table(columns: Sequence[Column[RowT]], rows: Sequence[RowT]) -> str:
    """A GitHub table. A text that is not foreign is markdown already."""
    texts = [[column.heading, *(_text(column, row) for row in rows)] for column in columns]
    aligned = [_aligned(column_texts, column.align) for column_texts, column in zip(texts, columns, strict=True)]
    return "\n".join(f"| {' | '.join(line)} |" for line in zip(*aligned, strict=True))


def _text(column: Column[RowT], row: RowT) -> str:
    text = column.text(row)
    return escaped(text) if column.is_foreign else text


def sheet_to_markdown(sheet: Sheet) -> str:
    """Its title, the table and its notes."""
    title = f"**{sheet.title}**" if sheet.title else ""
    return "\n\n".join(filter(None, (title, table(sheet.columns, sheet.rows), " ".join(sheet.notes))))


def to_markdown(blocks: Iterable[Block]) -> str:
    """Paragraphs and tables as one text."""
    texts = (sheet_to_markdown(block) if isinstance(block, Sheet) else block.strip("\n") for block in blocks)
    return "\n\n".join(filter(None, texts)) + "\n"


def bullets(lines: Iterable[str]) -> str:
    """A markdown list."""
    return "\n".join(f"- {line}" for line in lines)


def _aligned(texts: Sequence[str], align: str) -> list[str]:
    """The heading, the rule under it, and the cells of one column, all equally wide in a terminal."""
    width = max(3, *map(cell_len, texts))
    gaps = [" " * (width - cell_len(text)) for text in texts]
    padded = [text + gap if align == "left" else gap + text for text, gap in zip(texts, gaps, strict=True)]
    rule = f":{'-' * (width - 1)}" if align == "left" else f"{'-' * (width - 1)}:"
    return [padded[0], rule, *padded[1:]]


def escaped(text: str, *, longest: int = NAME_LENGTH) -> str:
    """One line of inert text: no markup, no control, no more than `longest` characters."""
    return _MARKUP.sub(r"\\\g<0>", plain_line(text, longest=longest))


def plain_line(text: str, *, longest: int = NAME_LENGTH) -> str:
    """The text without escape codes, controls and line breaks, cut to `longest` characters, for a terminal."""
    spaced = " ".join(without_escape_codes(text).split())
    printable = "".join(letter for letter in spaced if unicodedata.category(letter)[0] != "C")
    return printable if len(printable) <= longest else f"{printable[: longest - 1]}…"
