"""Columns of context parallel attention in the first table: scaling and exposed communication."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarker.comparison.rows import Row
from benchmarker.core.formatting import decimal
from benchmarker.core.tables import Column
from benchmarker.report.columns import fact_columns, latency_columns, number_columns

SHORT = ("exposed", "exposed_trace")


def brief_columns(rows: Sequence[Row]) -> list[Column[Row]]:
    """Time, scaling, and exposed communication by both ways of measuring it."""
    scaling = number_columns(
        rows,
        "scaling %",
        lambda row: 100 * row.metrics["scaling"].value if "scaling" in row.metrics else None,
        lambda value: decimal(value, digits=3),
    )
    facts = [rows[0].described.metric(name) for name in SHORT] if rows else []
    return [*latency_columns(rows), *scaling, *(column for metric in facts for column in fact_columns(rows, metric))]
