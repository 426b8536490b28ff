"""How context parallel attention is shown: its scaling and exposed communication first, and what the rows say."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarker.comparison.rows import Row
from benchmarker.core.formatting import decimal
from benchmarker.core.tables import Column
from benchmarker.report.columns import fact_columns, number_columns
from benchmarker.report.presentation import Presentation, brief_columns
from benchmarker.workloads.context_parallel.reading.remarks import hiding, remarks

SHORT = ("exposed", "exposed_trace")


def brief(rows: Sequence[Row]) -> list[Column[Row]]:
    """Time, scaling, and exposed communication by both ways of measuring it."""
    scaling = number_columns(
        rows,
        "scaling %",
        lambda row: 100 * row.metrics["scaling"].value if "scaling" in row.metrics else None,
        lambda value: decimal(value, digits=3),
    )
    facts = [rows[0].described.metric(name) for name in SHORT] if rows else []
    return [*brief_columns(rows), *scaling, *(column for metric in facts for column in fact_columns(rows, metric))]


PRESENTATION = Presentation(
    brief=brief, remarks=remarks, first_remarks=hiding, plain="single rank", speed="TFLOP/s of all GPUs"
)
