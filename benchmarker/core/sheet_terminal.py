"""A table for a terminal: columns without bars, no line wider than the room, and no number cut in two.

What does not fit breaks between words. Where even that is too wide, the last columns go into a further table that
repeats the names of the rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarker.core.table_wrapping import prose
from benchmarker.core.tables import Block, Column, RowT, Sheet, plain_line
from benchmarker.core.terminal_text import clean

GAP = 2
"""Blanks between two columns."""
_BOLD = re.compile(r"\*\*((?:\\.|[^*\\])+)\*\*")
_ESCAPE = re.compile(r"\\([\\`*\[\]<>|~&$_])")
_UNBROKEN = re.compile(r"\[[^\]]*\](?!\S)|\S+")
"""A word, or an interval: its two ends stay together."""


@dataclass(frozen=True)
class _Fitted:
    """One column with its texts."""

    column: Column[object]
    texts: tuple[str, ...]
    """The heading, then one a row."""

    @property
    def wide(self) -> int:
        """Letters of its longest text."""
        return max(map(cell_len, self.texts))

    @property
    def narrow(self) -> int:
        """Letters of the longest piece that is not broken: numbers are not, words and headings are."""
        heading, *texts = self.texts
        can_break = [heading, *texts] if self.column.align == "left" else [heading]
        pieces = [piece for text in can_break for piece in _UNBROKEN.findall(text)]
        return max(map(cell_len, [*pieces, *([] if self.column.align == "left" else texts)]), default=1)


def show_blocks(console: Console, blocks: Sequence[Block], width: int) -> None:
    """Print paragraphs and tables, an empty line between two of them."""
    printable = [block for block in blocks if isinstance(block, Sheet) or block.strip()]
    for index, block in enumerate(printable):
        if index:
            console.print()
        if isinstance(block, Sheet):
            _show_sheet(console, block, width)
        else:
            _show_text(console, block.strip("\n"), width)


def _show_text(console: Console, markdown: str, width: int) -> None:
    for line in markdown.split("\n"):
        # A command is copied: it stays on its line, however long.
        for part in [line] if line.endswith("`") else prose(line, width):
            console.print(plain(part), soft_wrap=True, highlight=False)


def plain(markdown: str) -> Text:
    """A line of markdown of ours: bold stays, where there are colours, and other escapes go."""
    text, place = Text(), 0
    for match in _BOLD.finditer(markdown):
        text.append(_bare(markdown[place : match.start()]))
        text.append(_bare(match[1]), style="bold")
        place = match.end()
    return text.append(_bare(markdown[place:]))


def _bare(markdown: str) -> str:
    return clean(_ESCAPE.sub(r"\1", markdown))


def _show_sheet(console: Console, sheet: Sheet, width: int) -> None:
    if sheet.title:
        console.print(Text(sheet.title, style="bold"), soft_wrap=True, highlight=False)
    for index, part in enumerate(_parts([_fitted(column, sheet.rows) for column in sheet.columns], width)):
        if index:
            console.print()
        for line in _lines(console, part, [sheet.is_bold(row) for row in sheet.rows], width):
            console.print(line, soft_wrap=True, highlight=False)
    if sheet.notes:
        _show_text(console, " ".join(sheet.notes), width)


def _lines(console: Console, part: Sequence[_Fitted], is_bold: Sequence[bool], width: int) -> Iterator[Text]:
    """The lines of one table, without blanks at their ends."""
    widths = _widths(part, width)
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="underline")
    headings = [_wrapped(fitted.texts[0], letters) for fitted, letters in zip(part, widths, strict=True)]
    tallest = max(heading.count("\n") for heading in headings)
    for fitted, heading, letters in zip(part, headings, widths, strict=True):
        lowered = Text("\n" * (tallest - heading.count("\n")) + heading)
        is_left = fitted.column.align == "left"
        table.add_column(lowered, justify="left" if is_left else "right", min_width=letters, max_width=letters)
    for index, bold in enumerate(is_bold, 1):
        row = [_cell(fitted, fitted.texts[index], letters) for fitted, letters in zip(part, widths, strict=True)]
        table.add_row(*row, style="bold" if bold else None)
    options = console.options.update(width=max(width, sum(widths) + GAP * len(widths)))
    for segments in console.render_lines(table, options, pad=False):
        line = Text()
        for segment in segments:
            line.append(segment.text, style=segment.style or "")
        line.rstrip()
        yield line


def _cell(fitted: _Fitted, text: str, letters: int) -> Text:
    return Text(_wrapped(text, letters) if fitted.column.align == "left" else text)


def _wrapped(text: str, letters: int) -> str:
    """Broken so that an interval stays whole."""
    lines: list[str] = []
    for piece in _UNBROKEN.findall(text):
        if lines and cell_len(lines[-1]) + 1 + cell_len(piece) <= letters:
            lines[-1] += f" {piece}"
        else:
            lines.append(piece)
    return "\n".join(lines)


def _fitted(column: Column[RowT], rows: Sequence[RowT]) -> _Fitted:
    return _Fitted(column, (column.heading, *(plain_line(column.text(row)) for row in rows)))  # type: ignore[arg-type]


def _parts(columns: Sequence[_Fitted], width: int) -> list[list[_Fitted]]:
    """As many columns in each as there is room for, at least one beside the names of the rows."""
    first = next((index for index, fitted in enumerate(columns) if fitted.column.align == "left"), None)
    keys = 0 if first is None else _end_of_names(columns, first)
    parts: list[list[_Fitted]] = []
    part = list(columns[:keys])
    for fitted in columns[keys:]:
        if len(part) > keys and _least([*part, fitted]) > width:
            parts.append(part)
            part = list(columns[:keys])
        part.append(fitted)
    return [*parts, part]


def _end_of_names(columns: Sequence[_Fitted], first: int) -> int:
    """How many columns name the row: through the first ones that are aligned left."""
    later = (index for index in range(first, len(columns)) if columns[index].column.align != "left")
    return next(later, len(columns))


def _least(columns: Sequence[_Fitted]) -> int:
    return sum(fitted.narrow for fitted in columns) + GAP * (len(columns) - 1)


def _widths(columns: Sequence[_Fitted], width: int) -> list[int]:
    """Letters of each column: its longest text, or less where there is no room, the widest one first."""
    widths = [fitted.wide for fitted in columns]
    while sum(widths) + GAP * (len(widths) - 1) > width:
        able = [index for index, fitted in enumerate(columns) if widths[index] > fitted.narrow]
        if not able:
            break
        widths[max(able, key=lambda index: widths[index] - columns[index].narrow)] -= 1
    return widths
