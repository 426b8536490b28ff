"""A table with chosen columns, and the rows as CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarker.comparison.ranking import ranking_of
from benchmarker.comparison.results import to_rows
from benchmarker.comparison.rows import Results, Row
from benchmarker.core.errors import SpecError, did_you_mean
from benchmarker.core.tables import Column, Sheet
from benchmarker.report.first_table import first_table
from benchmarker.report.markdown import sheets
from benchmarker.schema.registry import workload_of


def chosen_sheet(results: Results, names: str | None, sort: str | None) -> Sheet:
    """Return the first table with these columns in this order.

    Raises:
        SpecError: No such column, or several with this beginning.
    """
    first = first_table(ranking_of(results))
    choices = _columns_of(results, first)
    picked = [_column(name, choices, option="--columns") for name in (names or "").split(",") if name.strip()]
    variant = first.columns[0]
    columns = [variant, *(column for column in picked if column is not variant)] if picked else first.columns
    order = _column(sort, choices, option="--sort") if sort else None
    rows = _sorted(first.rows, order) if order else first.rows
    return Sheet(first.title, columns, rows, () if picked else first.notes, first.is_bold)


def column_names(results: Results) -> list[str]:
    """Return every heading that `chosen_sheet` accepts, in small letters."""
    return list(_columns_of(results, first_table(ranking_of(results))))


def to_csv(results: Results, sheet: Sheet | None) -> str:
    """Return the printed columns of a table; without a table, every key of every row in base units."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if sheet:
        writer.writerow(column.heading for column in sheet.columns)
        writer.writerows([column.text(row) for column in sheet.columns] for row in sheet.rows)
        return text.getvalue()
    rows = to_rows(results)
    keys = list(dict.fromkeys(key for row in rows for key in row))
    writer.writerow(keys)
    writer.writerows([_value(row.get(key)) for key in keys] for row in rows)
    return text.getvalue()


def _value(value: object) -> object:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else value


def _columns_of(results: Results, first: Sheet) -> dict[str, Column[Any]]:
    tables = [first, *(sheet for sheet in sheets(results) if all(isinstance(row, Row) for row in sheet.rows))]
    limits = workload_of(results.workload).limit_sheet(list(first.rows))
    tables += [limits] if limits else []
    columns: dict[str, Column[Any]] = {}
    for sheet in tables:
        for column in sheet.columns:
            columns.setdefault(column.heading.lower(), column)
    return columns


def _column(name: str, columns: Mapping[str, Column[Any]], *, option: str) -> Column[Any]:
    wanted = name.strip().lower()
    if wanted in columns:
        return columns[wanted]
    matches = [heading for heading in columns if heading.startswith(wanted)]
    matches = matches or [heading for heading in columns if wanted in heading]
    if len(matches) == 1:
        return columns[matches[0]]
    if matches:
        raise SpecError(f"{option} {name.strip()}: several columns have this beginning: {', '.join(matches)}")
    raise SpecError(f"{option} {name.strip()}: no such column{did_you_mean(wanted, columns)}")


def _sorted(rows: Sequence[Any], column: Column[Any]) -> list[Any]:
    number = column.sort
    if number is None:
        return sorted(rows, key=column.text)
    turn = -1 if column.is_more_better else 1
    return sorted(rows, key=lambda row: math.inf if (value := number(row)) is None else turn * value)
