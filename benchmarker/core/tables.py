"""Tables and sentences as typed values, and their rendering in markdown and in a terminal.

A sentence is a string in which `bold` and `code` mark spans by private-use characters. A table cell is a plain string,
or a `Text` if it contains marked spans. Only a renderer escapes text: the markdown and
terminal renderers below, and HTML in `report.html.page`.

Names come from files that someone else may have written. Every renderer makes them inert: a pipe would shift later
columns, a newline would end the table, an escape code would move the cursor, and a bidirectional control would reverse
the line. In a terminal no line is wider than the terminal, and no number is broken in two: texts break between words,
and columns that still do not fit move to a further table, which repeats the row names.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any, Generic, Literal, TypeVar

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text as RichText

_ESCAPE_CODES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|[^\n])?")
"""Escape codes of ECMA-48: control sequences (colours, cursor moves), window titles, and two-character codes."""


def without_escape_codes(text: str) -> str:
    return _ESCAPE_CODES.sub("", text)


def lines_of(text: str) -> list[str]:
    """Return the lines that a terminal would show: no escape codes, and only the last text of a redrawn line."""
    return [line.rstrip("\r").rpartition("\r")[2] for line in without_escape_codes(text).split("\n")]


def clean(text: str) -> str:
    """Return the text without characters that control a terminal or change its direction; tabs and line ends stay."""
    unsafe = {letter for letter in set(text) - {"\n", "\t"} if unicodedata.category(letter) in ("Cc", "Cf", "Cs")}
    return text.translate(dict.fromkeys(map(ord, unsafe), "\N{REPLACEMENT CHARACTER}"))


RowT = TypeVar("RowT", contravariant=True)
Style = Literal["", "bold", "code"]
_MARKS: dict[Style, tuple[str, str]] = {"bold": ("\ue000", "\ue001"), "code": ("\ue002", "\ue003")}
"""Private-use characters at the start and end of a span. `plain_line` removes them from names."""
_SPAN = re.compile("|".join(f"{start}(?P<{style}>[^{end}]*){end}" for style, (start, end) in _MARKS.items()))
# An underscore inside a word, as in exllama_v2, is no markup. Nor is a closing bracket unless a link target follows.
_MARKUP = re.compile(r"[\\`*<>|~&$]|\](?=[(\[:])|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


class Text(str):
    """Table cell with marked spans. `plain_line` has been applied to the names in it."""

    __slots__ = ()


def bold(text: str) -> str:
    return text.join(_MARKS["bold"])


def code(text: str) -> str:
    return text.join(_MARKS["code"])


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
    """Returns the number by which a row is sorted, or None. A column without this function is sorted by its text."""
    is_more_better: bool = False
    help: str = ""


@dataclass(frozen=True)
class Sheet:
    title: str
    columns: Sequence[Column[Any]]
    rows: Sequence[Any]
    notes: tuple[str, ...] = ()
    is_bold: Callable[[Any], bool] = lambda row: False


Block = str | Sheet


def cell(text: str) -> str:
    return text if isinstance(text, Text) else plain_line(text)


def table(columns: Sequence[Column[RowT]], rows: Sequence[RowT]) -> str:
    texts = [[markdown(cell(text)) for text in (column.heading, *map(column.text, rows))] for column in columns]
    aligned = [_aligned(column_texts, column.align) for column_texts, column in zip(texts, columns, strict=True)]
    return "\n".join(f"| {' | '.join(line)} |" for line in zip(*aligned, strict=True))


def to_markdown(blocks: Iterable[Block]) -> str:
    texts: list[str] = []
    for block in blocks:
        if isinstance(block, Sheet):
            texts += [f"**{markdown(block.title)}**" if block.title else "", table(block.columns, block.rows)]
        texts.append(markdown(" ".join(block.notes) if isinstance(block, Sheet) else block.strip("\n")))
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


def plain_line(text: str, *, longest: int = 80) -> str:
    """Return the text without escape codes, controls and line breaks, cut to `longest` characters."""
    spaced = " ".join(without_escape_codes(text).split())
    printable = "".join(letter for letter in spaced if unicodedata.category(letter)[0] != "C")
    return printable if len(printable) <= longest else f"{printable[: longest - 1]}…"


GAP = 2
_UNBROKEN = re.compile(r"\S*\[[^\]]*\]\S*|\S+")  # Pieces that stay on one line: a word, or `[1.79, 1.87]`.
# The same, and a span of code: a command longer than the terminal has a line of its own, so that it can be copied.
_SPANS_UNBROKEN = re.compile(rf"[^\s`]*`[^`]*`\S*|{_UNBROKEN.pattern}")
COMMANDS_UNBROKEN = re.compile(r"[(\[]?(`[^`]*`|'[^']*')\S*|(pip install|benchmarker [a-z-]+) [^;,]*\S*|\S+")


@dataclass(frozen=True)
class _Fitted:
    texts: tuple[RichText, ...]
    is_left: bool

    @property
    def wide(self) -> int:
        return max(text.cell_len for text in self.texts)

    @property
    def narrow(self) -> int:
        """Minimum width. Headings and left-aligned texts can be broken between words, other texts cannot."""
        breaking = self.texts if self.is_left else self.texts[:1]
        pieces = [piece for text in breaking for piece in _UNBROKEN.findall(text.plain)]
        whole = [] if self.is_left else [text.plain for text in self.texts[1:]]
        return max(map(cell_len, [*pieces, *whole]), default=1)


def show_blocks(console: Console, blocks: Sequence[Block], width: int) -> None:
    printable = [block for block in blocks if isinstance(block, Sheet) or block.strip()]
    for index, block in enumerate(printable):
        if index:
            console.print()
        if isinstance(block, Sheet):
            _show_sheet(console, block, width)
        else:
            _show_text(console, block.strip("\n"), width)


def to_text(blocks: Sequence[Block], width: int) -> str:
    """Return the text that `show_blocks` prints to a file."""
    file = StringIO()
    show_blocks(Console(file=file, markup=False, emoji=False, highlight=False), blocks, width)
    return file.getvalue().rstrip("\n")


def rich_text(text: str) -> RichText:
    line = RichText()
    for part, style in spans(text):
        line.append(f"`{clean(part)}`" if style == "code" else clean(part), style="bold" if style == "bold" else None)
    return line


def _print(console: Console, line: RichText) -> None:
    line.rstrip()
    console.print(line, soft_wrap=True, highlight=False)


def _show_text(console: Console, text: str, width: int) -> None:
    for line in text.split("\n"):
        opening = re.match(r" *- ", line)
        indent = len(opening.group()) if opening else 0
        for index, part in enumerate(broken(rich_text(line[indent:]), width - indent, _SPANS_UNBROKEN)):
            _print(console, RichText(line[:indent] if index == 0 else " " * indent) + part)


def broken(text: RichText, width: int, pieces: re.Pattern[str] = _UNBROKEN) -> list[RichText]:
    """Return lines of at most `width` columns; a longer match of `pieces` is a line of its own."""
    lines: list[list[int]] = []
    for piece in pieces.finditer(text.plain):
        if lines and cell_len(text.plain[lines[-1][0] : piece.end()]) <= width:
            lines[-1][1] = piece.end()
        else:
            lines.append([piece.start(), piece.end()])
    return [text[start:end] for start, end in lines] or [RichText()]


def _show_sheet(console: Console, sheet: Sheet, width: int) -> None:
    if sheet.title:
        for line in broken(RichText(clean(sheet.title), style="bold"), width):
            _print(console, line)
    columns = []
    for column in sheet.columns:
        texts = tuple(rich_text(cell(text)) for text in (column.heading, *map(column.text, sheet.rows)))
        columns.append(_Fitted(texts, column.align == "left"))
    for index, part in enumerate(_parts(columns, width)):
        if index:
            console.print()
        _show_part(console, part, [sheet.is_bold(row) for row in sheet.rows], width)
    if sheet.notes:
        _show_text(console, " ".join(sheet.notes), width)


def _show_part(console: Console, part: Sequence[_Fitted], is_bold: Sequence[bool], width: int) -> None:
    """Print some columns of a table, with underlined headings aligned to the bottom and texts to the top."""
    widths = _widths(part, width)
    for index, bold in enumerate((False, *is_bold)):
        cells = [
            broken(fitted.texts[index], letters) if fitted.is_left or index == 0 else [fitted.texts[index]]
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
    """Distribute the columns over tables that fit the width. Each has the row names and at least one more column."""
    first = next((index for index, fitted in enumerate(columns) if fitted.is_left), None)
    # The row names are all columns up to the end of the first run of left-aligned columns.
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
    """Return the width of each column. In a table that is too wide, headings are broken first, and then texts."""
    widths, narrow = [fitted.wide for fitted in columns], [fitted.narrow for fitted in columns]
    texts = [max(fitted.narrow, *(text.cell_len for text in fitted.texts[1:]), 0) for fitted in columns]
    for least in (texts, narrow):
        while sum(widths) + GAP * (len(widths) - 1) > width:
            index = max(range(len(widths)), key=lambda index: widths[index] - least[index])
            if widths[index] <= least[index]:
                break
            widths[index] -= 1
    return widths
