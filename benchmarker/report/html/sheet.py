"""A table for the page: every text is escaped by the template, and each number carries what its column is sorted by."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarker.core.tables import Column, RowT, Sheet, plain_line
from benchmarker.report.html.sentences import Markup, sentence


@dataclass(frozen=True)
class Field:
    """One cell of a table."""

    text: str
    sort: float | None
    """What its column is sorted by; None where there is no number."""
    align: str


@dataclass(frozen=True)
class Heading:
    """The head of one column."""

    text: str
    align: str
    help: str
    first: str
    """Order of the first click: the best row comes first."""


@dataclass(frozen=True)
class Sortable:
    """One table that can be sorted."""

    title: str
    headings: tuple[Heading, ...]
    rows: tuple[tuple[Field, ...], ...]
    bold: tuple[bool, ...]
    """Whether a row stands out, row by row."""
    notes: tuple[Markup, ...]


def sortable(sheet: Sheet) -> Sortable:
    """The table as the page's template takes it."""
    return Sortable(
        title=sheet.title or "Variants",
        headings=tuple(
            Heading(column.heading, column.align, column.help, "descending" if column.is_more_better else "ascending")
            for column in sheet.columns
        ),
        rows=tuple(tuple(_field(column, row) for column in sheet.columns) for row in sheet.rows),
        bold=tuple(map(sheet.is_bold, sheet.rows)),
        notes=tuple(map(sentence, sheet.notes)),
    )


def _field(column: Column[RowT], row: RowT) -> Field:
    return Field(plain_line(column.text(row)), column.sort(row) if column.sort else None, column.align)
