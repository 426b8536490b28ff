"""Tables and sentences as typed values, and their markdown.

A sentence is a string in which `bold` and `code` mark spans by private-use characters. A table cell is a plain string,
or a `Text` if it contains marked spans. Nothing is escaped until a renderer knows its output: markdown here, a terminal
in `core.sheet_terminal`, HTML in `report.html.page`.

Names come from files that someone else may have written. Every renderer makes them inert: a pipe would shift later
columns, a newline would end the table, an escape code would move the cursor, and a bidirectional control would reverse
the line.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from rich.cells import cell_len

from benchmarker.core.terminal_text import without_escape_codes

NAME_LENGTH = 80
RowT = TypeVar("RowT", contravariant=True)
Style = Literal["", "bold", "code"]
_MARKS: dict[Style, tuple[str, str]] = {"bold": ("\ue000", "\ue001"), "code": ("\ue002", "\ue003")}
"""Private-use characters at the start and end of a span. `plain_line` removes them from foreign text."""
_SPAN = re.compile("|".join(f"{start}(?P<{style}>[^{end}]*){end}" for style, (start, end) in _MARKS.items()))
# An underscore inside a word, as in exllama_v2, starts no emphasis. A bracket is inert unless a link target follows.
_MARKUP = re.compile(r"[\\`*<>|~&$]|\](?=[(\[:])|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


class Text(str):
    """A table cell with marked spans. Names in it are inert already."""

    __slots__ = ()


def bold(text: str) -> str:
    start, end = _MARKS["bold"]
    return f"{start}{text}{end}"


def code(text: str) -> str:
    start, end = _MARKS["code"]
    return f"{start}{text}{end}"


def spans(text: str) -> Iterator[tuple[str, Style]]:
    position = 0
    for match in _SPAN.finditer(text):
        if match.start() > position:
            yield text[position : match.start()], ""
        style: Style = "bold" if match["bold"] is not None else "code"
        yield match[style], style
        position = match.end()
    if position < len(text):
        yield text[position:], ""


def unmarked(text: str) -> str:
    return "".join(f"`{part}`" if style == "code" else part for part, style in spans(text))


@dataclass(frozen=True)
class Column(Generic[RowT]):
    heading: str
    text: Callable[[RowT], str]
    align: str = "right"
    sort: Callable[[RowT], float | None] | None = None
    """Number by which rows are sorted; None for a row without one. A column without this function sorts by text."""
    is_more_better: bool = False
    """True if the best row has the largest number."""
    help: str = ""


@dataclass(frozen=True)
class Sheet:
    """One table, from which every output is rendered."""

    title: str
    columns: Sequence[Column[Any]]
    rows: Sequence[Any]
    notes: tuple[str, ...] = ()
    is_bold: Callable[[Any], bool] = lambda row: False


Block = str | Sheet
"""Paragraphs and bullets, or a table."""


def cell(text: str) -> str:
    return text if isinstance(text, Text) else plain_line(text)


def table(columns: Sequence[Column[RowT]], rows: Sequence[RowT]) -> str:
    texts = [[cell(column.heading), *(cell(column.text(row)) for row in rows)] for column in columns]
    escaped = [[markdown(text) for text in column_texts] for column_texts in texts]
    aligned = [_aligned(column_texts, column.align) for column_texts, column in zip(escaped, columns, strict=True)]
    return "\n".join(f"| {' | '.join(line)} |" for line in zip(*aligned, strict=True))


def sheet_to_markdown(sheet: Sheet) -> str:
    title = f"**{markdown(sheet.title)}**" if sheet.title else ""
    parts = (title, table(sheet.columns, sheet.rows), markdown(" ".join(sheet.notes)))
    return "\n\n".join(filter(None, parts))


def to_markdown(blocks: Iterable[Block]) -> str:
    texts = (sheet_to_markdown(block) if isinstance(block, Sheet) else markdown(block.strip("\n")) for block in blocks)
    return "\n\n".join(filter(None, texts)) + "\n"


def markdown(text: str) -> str:
    return "".join(map(_span_to_markdown, *zip(*spans(text), strict=True))) if text else ""


def _span_to_markdown(text: str, style: Style) -> str:
    if style == "code":
        fence = "``" if "`" in text else "`"
        inner = text.replace("|", "\\|")
        return f"{fence} {inner} {fence}" if fence == "``" else f"`{inner}`"
    inert_text = _MARKUP.sub(r"\\\g<0>", text)
    return f"**{inert_text}**" if style == "bold" else inert_text


def bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _aligned(texts: Sequence[str], align: str) -> list[str]:
    width = max(3, *map(cell_len, texts))
    gaps = [" " * (width - cell_len(text)) for text in texts]
    padded = [text + gap if align == "left" else gap + text for text, gap in zip(texts, gaps, strict=True)]
    rule = f":{'-' * (width - 1)}" if align == "left" else f"{'-' * (width - 1)}:"
    return [padded[0], rule, *padded[1:]]


def plain_line(text: str, *, longest: int = NAME_LENGTH) -> str:
    """Return the text without escape codes, controls and line breaks, cut to `longest` characters."""
    spaced = " ".join(without_escape_codes(text).split())
    printable = "".join(letter for letter in spaced if unicodedata.category(letter)[0] != "C")
    return printable if len(printable) <= longest else f"{printable[: longest - 1]}…"
