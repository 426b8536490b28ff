"""Sentences and tables in a terminal: no line wider than the terminal and no number broken in two.

Texts that do not fit break between words. If even that is too wide, the last columns become another table that repeats
the names of the rows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text as RichText

from benchmarker.core.tables import Block, Sheet, cell, spans, unmarked
from benchmarker.core.terminal_text import clean

GAP = 2
"""Spaces between two columns."""
_UNBROKEN = re.compile(r"\S*\[[^\]]*\]\S*|\S+")
"""A word, or an interval with its two ends."""


@dataclass(frozen=True)
class _Fitted:
    """A column with its texts: the heading, then one per row."""

    texts: tuple[RichText, ...]
    is_left: bool

    @property
    def wide(self) -> int:
        return max(text.cell_len for text in self.texts)

    @property
    def narrow(self) -> int:
        """Width of the longest piece that is not broken. Headings break, and so do texts aligned left."""
        breaking = self.texts if self.is_left else self.texts[:1]
        pieces = [piece for text in breaking for piece in _UNBROKEN.findall(text.plain)]
        whole = [] if self.is_left else [text.plain for text in self.texts[1:]]
        return max(map(cell_len, [*pieces, *whole]), default=1)


def show_blocks(console: Console, blocks: Sequence[Block], width: int) -> None:
    """Print paragraphs and tables with an empty line between two of them."""
    printable = [block for block in blocks if isinstance(block, Sheet) or block.strip()]
    for index, block in enumerate(printable):
        if index:
            console.print()
        if isinstance(block, Sheet):
            _show_sheet(console, block, width)
        else:
            _show_text(console, block.strip("\n"), width)


def rich_text(text: str) -> RichText:
    """Render a sentence for a terminal: bold spans in bold, code between backticks."""
    line = RichText()
    for part, style in spans(text):
        line.append(f"`{clean(part)}`" if style == "code" else clean(part), style="bold" if style == "bold" else None)
    return line


def _print(console: Console, line: RichText) -> None:
    line.rstrip()
    console.print(line, soft_wrap=True, highlight=False)


def _show_text(console: Console, text: str, width: int) -> None:
    for line in text.split("\n"):
        is_command = unmarked(line).endswith("`")
        if is_command:  # A command is copied and stays on one line.
            _print(console, rich_text(line))
            continue
        opening = re.match(r" *- ", line)
        indent = len(opening.group()) if opening else 0
        for index, part in enumerate(_broken(rich_text(line[indent:]), width - indent)):
            _print(console, RichText(line[:indent] if index == 0 else " " * indent) + part)


def _broken(text: RichText, width: int) -> list[RichText]:
    """Break a text between words; an interval stays whole."""
    lines: list[list[int]] = []
    for piece in _UNBROKEN.finditer(text.plain):
        if lines and cell_len(text.plain[lines[-1][0] : piece.end()]) <= width:
            lines[-1][1] = piece.end()
        else:
            lines.append([piece.start(), piece.end()])
    return [text[start:end] for start, end in lines] or [RichText()]


def _show_sheet(console: Console, sheet: Sheet, width: int) -> None:
    if sheet.title:
        _print(console, RichText(clean(sheet.title), style="bold"))
    columns = [_fitted(column, sheet.rows) for column in sheet.columns]
    for index, part in enumerate(_parts(columns, width)):
        if index:
            console.print()
        _show_part(console, part, [sheet.is_bold(row) for row in sheet.rows], width)
    if sheet.notes:
        _show_text(console, " ".join(sheet.notes), width)


def _fitted(column: Any, rows: Sequence[Any]) -> _Fitted:
    texts = (column.heading, *(column.text(row) for row in rows))
    return _Fitted(tuple(rich_text(cell(text)) for text in texts), column.align == "left")


def _show_part(console: Console, part: Sequence[_Fitted], is_bold: Sequence[bool], width: int) -> None:
    """Print some columns of a table: the heading underlined and at the bottom of its cell, texts at the top."""
    widths = _widths(part, width)
    for index, bold in enumerate((False, *is_bold)):
        cells = [
            _broken(fitted.texts[index], letters) if fitted.is_left or index == 0 else [fitted.texts[index]]
            for fitted, letters in zip(part, widths, strict=True)
        ]
        tallest = max(map(len, cells))
        for height in range(tallest):
            line = RichText(style="bold" if bold else "")
            for fitted, letters, lines in zip(part, widths, cells, strict=True):
                at = height - (tallest - len(lines) if index == 0 else 0)
                text = lines[at].copy() if 0 <= at < len(lines) else RichText()
                if index == 0:
                    text.stylize("underline")
                gap = " " * (letters - text.cell_len)
                line.append_text(text + gap if fitted.is_left else RichText(gap) + text)
                line.append(" " * GAP)
            _print(console, line)


def _parts(columns: Sequence[_Fitted], width: int) -> list[list[_Fitted]]:
    """Distribute the columns over tables, each with at least one column beside the names of the rows."""
    first = next((index for index, fitted in enumerate(columns) if fitted.is_left), None)
    # The names are all columns through the first ones that are aligned left.
    rest = range(first or 0, len(columns))
    keys = 0 if first is None else next((index for index in rest if not columns[index].is_left), len(columns))
    parts: list[list[_Fitted]] = []
    part = list(columns[:keys])
    for fitted in columns[keys:]:
        if len(part) > keys and sum(one.narrow + GAP for one in [*part, fitted]) - GAP > width:
            parts.append(part)
            part = list(columns[:keys])
        part.append(fitted)
    return [*parts, part]


def _widths(columns: Sequence[_Fitted], width: int) -> list[int]:
    """Return the width of each column: its longest text, or less for the widest ones if there is no room."""
    widths = [fitted.wide for fitted in columns]
    while sum(widths) + GAP * (len(widths) - 1) > width:
        shrinkable = [index for index, fitted in enumerate(columns) if widths[index] > fitted.narrow]
        if not shrinkable:
            break
        widths[max(shrinkable, key=lambda index: widths[index] - columns[index].narrow)] -= 1
    return widths
