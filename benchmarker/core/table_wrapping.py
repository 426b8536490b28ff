"""Markdown that fits a terminal: a table that is too wide becomes several, each with the names of its rows.

A terminal breaks a long line wherever it ends, and a table of broken lines cannot be read. Each of the parts is
markdown again. Into a file or a pipe a table goes as it is.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.cells import cell_len

_BETWEEN = re.compile(r"(?<!\\)\|")
_BULLET = re.compile(r"( *- )")


def folded(markdown: str, width: int) -> str:
    """The text with no line longer than `width` columns, as far as its words and names allow."""
    lines: list[str] = []
    for is_table, group in groupby(markdown.split("\n"), key=lambda line: line.startswith("|")):
        block = list(group)
        lines += _table(block, width) if is_table else [part for line in block for part in prose(line, width)]
    return "\n".join(lines)


def prose(line: str, width: int) -> list[str]:
    """A line broken between words; under a bullet, indented."""
    if cell_len(line) <= width:
        return [line]
    bullet = _BULLET.match(line)
    indent = " " * len(bullet.group()) if bullet else ""
    return textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _table(lines: Sequence[str], width: int) -> list[str]:
    """Several narrower tables, an empty line between them."""
    if max(map(cell_len, lines)) <= width:
        return list(lines)
    columns = list(zip(*(_cells(line) for line in lines), strict=False))
    keys = _keys(columns)
    parts = list(_parts(columns[keys:], width - _width(columns[:keys]) - 1))
    if keys == 0 or len(parts) < 2:
        return list(lines)
    tables = [_lines([*columns[:keys], *part]) for part in parts]
    return [line for table in tables for line in ("", *table)][1:]


def _cells(line: str) -> list[str]:
    """The texts between a row's bars."""
    return _BETWEEN.split(line)[1:-1]


def _keys(columns: Sequence[Sequence[str]]) -> int:
    """How many columns name the row: through the first ones that are aligned left."""
    is_left = [column[1].strip().startswith(":") for column in columns]
    if True not in is_left:
        return 0
    first = is_left.index(True)
    return next((index for index in range(first, len(is_left)) if not is_left[index]), len(is_left))


def _parts(columns: Sequence[Sequence[str]], room: int) -> Iterator[list[Sequence[str]]]:
    """As many columns in each as there is room for, at least one."""
    part: list[Sequence[str]] = []
    for column in columns:
        if part and _width([*part, column]) > room:
            yield part
            part = []
        part.append(column)
    if part:
        yield part


def _width(columns: Sequence[Sequence[str]]) -> int:
    """Columns of a terminal that these take, with a bar before each."""
    return sum(1 + max(map(cell_len, column)) for column in columns)


def _lines(columns: Sequence[Sequence[str]]) -> list[str]:
    return [f"|{'|'.join(line)}|" for line in zip(*columns, strict=True)]
