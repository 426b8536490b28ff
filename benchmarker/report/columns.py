"""The columns that tables are made of: each appears only where some row knows its value, or where it varies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from benchmarker.comparison.rows import CellKey, Results, Row
from benchmarker.core.formatting import GIB, MIB, MISSING, decimal, times, with_spread
from benchmarker.core.tables import Column
from benchmarker.schema.registry import workload_of
from benchmarker.schema.status_words import status_words
from benchmarker.schema.workload import Metric

AnyRow = TypeVar("AnyRow", bound=Row)
Columns = list[Column[Row]]


class InCell(Protocol):
    """A row, a change or anything else that belongs to a cell of the grid."""

    @property
    def cell(self) -> CellKey | None: ...


def names(rows: Sequence[Row]) -> Columns:  # noqa: ARG001
    """The column of the variant's name."""
    return [Column[Row]("variant", lambda row: row.variant, "left", is_foreign=True)]


def axis_columns(rows: Sequence[InCell], *, always: bool = False) -> list[Column[InCell]]:
    """A column for each axis that varies; with `always`, for all axes."""
    keys = [row.cell for row in rows if row.cell]
    axes = workload_of(keys[0].workload).axes if keys else ()
    return [
        Column(axis.heading, axis_text(axis.name), sort=axis_value(axis.name), is_foreign=True)
        for axis in axes
        if always or len({key[axis.name] for key in keys}) > 1
    ]


def axis_text(name: str) -> Callable[[InCell], str]:
    """The text of an axis's value in a row."""
    return lambda row: str(row.cell[name]) if row.cell else MISSING


def axis_value(name: str) -> Callable[[InCell], float | None]:
    """The value of an axis in a row, to sort by; None where it is not a number."""

    def number(row: InCell) -> float | None:
        value = row.cell[name] if row.cell else None
        return float(value) if isinstance(value, int | float) else None

    return number


def metric_columns(rows: Sequence[Row]) -> Columns:
    """Every declared metric of a repeat that some row has. In a row without numbers, the first column says why."""
    if not rows:
        return []
    metrics = [metric for metric in rows[0].described.metrics if not metric.of_cell]
    measured = [metric for metric in metrics if any(metric.name in row.metrics for row in rows)] or metrics[:1]
    first, *others = (metric_column(metric) for metric in measured)
    return [replace(first, text=lambda row: first.text(row) if row.rate else status_words(row.status)), *others]


def metric_column(metric: Metric) -> Column[Row]:
    """A declared metric of a repeat, with its spread."""
    return Column(
        metric.heading,
        lambda row: with_spread(row.metrics.get(metric.name), scale=metric.scale),
        sort=lambda row: metric.scale * row.metrics[metric.name].value if metric.name in row.metrics else None,
        is_more_better=metric.better == "higher",
        help=metric.formula,
    )


def speed_up(results: Results) -> Columns:
    """The column of the speed-up with its verdict; none where there is no baseline or one variant alone."""
    if results.baseline is None or len({row.variant for row in results.rows}) < 2:
        return []
    is_tested = any(row.ratio and row.ratio.low is not None for row in results.rows)

    def text(row: Row) -> str:
        if row.is_baseline:
            return "baseline"
        if row.ratio is None:
            return MISSING
        return f"{times(row.ratio)} {row.verdict}" if is_tested else times(row.ratio)

    return [Column("speed-up", text, sort=lambda row: row.ratio.value if row.ratio else None, is_more_better=True)]


def memory(rows: Sequence[Row]) -> Columns:
    """The column of the peak memory while measuring."""
    return byte_columns(rows, "peak", lambda row: row.peak_memory_bytes)


def plain_costs(rows: Sequence[Row]) -> Columns:
    """Memory, and every declared fact of a process that is known."""
    facts = [metric for metric in rows[0].described.metrics if metric.of_cell] if rows else []
    return [*memory(rows), *(column for metric in facts for column in fact_columns(rows, metric))]


def fact_columns(rows: Sequence[Row], metric: Metric) -> Columns:
    """A declared fact of a process, if any row has it."""
    return number_columns(
        rows, metric.heading, lambda row: row.facts.get(metric.name), lambda value: decimal(value * metric.scale)
    )


def number_columns(
    rows: Sequence[AnyRow], heading: str, value_of: Callable[[AnyRow], float | None], form: Callable[[float], str]
) -> list[Column[AnyRow]]:
    """One column, or none where no row has its number.

    Args:
        value_of: A row's number; None, and a dash in the table, where it was not measured.
        form: The text of a number.
    """
    if all(value_of(row) is None for row in rows):
        return []
    return [Column(heading, lambda row: MISSING if (number := value_of(row)) is None else form(number), sort=value_of)]


def byte_columns(rows: Sequence[AnyRow], name: str, bytes_of: Callable[[AnyRow], int | None]) -> list[Column[AnyRow]]:
    """A column of bytes in GiB, or in MiB where all are under 51 MiB, as for a tiny model."""
    largest = max((size for row in rows if (size := bytes_of(row)) is not None), default=0)
    if largest < GIB / 20:
        return number_columns(rows, f"{name} MiB", bytes_of, lambda size: f"{size / MIB:.1f}")
    return number_columns(rows, f"{name} GiB", bytes_of, lambda size: f"{size / GIB:.2f}")


def bound(rows: Sequence[Row]) -> Columns:
    """The column of what each row waits for; none where no row was explained."""
    if not any(row.bound_by for row in rows):
        return []
    return [Column("bound by", lambda row: row.bound_by or MISSING, "left", is_foreign=True)]
