"""Columns of tables. A column appears only if a row has a value for it, or if its values vary."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from benchmarker.comparison.rows import CellKey, Row
from benchmarker.comparison.speed_up import SpeedUp
from benchmarker.core.formatting import GIB, MIB, MISSING, decimal, percent, seconds, times, with_spread
from benchmarker.core.stats import Ratio
from benchmarker.core.tables import Column, Sheet
from benchmarker.schema.metric import Metric
from benchmarker.schema.record import status_words
from benchmarker.schema.registry import workload_of

AnyRow = TypeVar("AnyRow", bound=Row)
Columns = list[Column[Row]]


class InCell(Protocol):
    """A row, a change, or another value that belongs to a cell."""

    @property
    def cell(self) -> CellKey | None: ...


def names(rows: Sequence[Row]) -> Columns:
    """Return the columns of the variant's name, and of its surroundings, such as the engine, if they vary."""
    columns = [Column[Row]("variant", lambda row: row.variant, "left")]
    if len({row.surroundings for row in rows}) > 1:
        heading = rows[0].described.surroundings_noun
        columns.append(Column(heading, lambda row: row.surroundings or MISSING, "left"))
    return columns


def axis_columns(rows: Sequence[InCell], *, always: bool = False) -> list[Column[InCell]]:
    """Return a column for each axis that varies; with `always`, for all axes."""
    keys = [row.cell for row in rows if row.cell]
    axes = workload_of(keys[0].workload).axes if keys else ()
    return [
        Column(axis.heading, axis_text(axis.name), sort=axis_value(axis.name))
        for axis in axes
        if always or len({key[axis.name] for key in keys}) > 1
    ]


def axis_text(name: str) -> Callable[[InCell], str]:
    return lambda row: str(row.cell[name]) if row.cell else MISSING


def axis_value(name: str) -> Callable[[InCell], float | None]:
    """Return the function for sorting by an axis; it returns None for values that are not numbers."""

    def number(row: InCell) -> float | None:
        value = row.cell[name] if row.cell else None
        return float(value) if isinstance(value, int | float) else None

    return number


def metric_columns(rows: Sequence[Row]) -> Columns:
    """Return a column for every metric of a repeat. In a row without numbers the first column gives the status."""
    if not rows:
        return []
    metrics = [metric for metric in rows[0].described.metrics if not metric.of_cell]
    measured = [metric for metric in metrics if any(metric.name in row.metrics for row in rows)] or metrics[:1]
    first, *others = (metric_column(metric) for metric in measured)
    return [replace(first, text=lambda row: first.text(row) if row.rate else status_words(row.status)), *others]


def metric_column(metric: Metric) -> Column[Row]:
    """Return the column of one metric with its spread."""
    return Column(
        metric.heading,
        lambda row: with_spread(row.metrics.get(metric.name), scale=metric.scale),
        sort=lambda row: metric.scale * row.metrics[metric.name].value if metric.name in row.metrics else None,
        is_more_better=metric.better == "higher",
        help=metric.formula,
    )


def speed_up(rows: Sequence[Row]) -> Columns:
    """Return the column of the speed-up with its verdict; none if no row has one."""
    if not any(row.speed_up for row in rows):
        return []
    return [
        Column(
            "speed-up",
            lambda row: "baseline" if row.is_reference and row.pace else speed_up_words(row.speed_up),
            "left",
            sort=lambda row: 1.0 if row.is_reference and row.pace else _number(row.speed_up),
            is_more_better=True,
            help=f"ratio of {rows[0].ranking.name} rates: the row's divided by its reference's",
        )
    ]


def against_named(rows: Sequence[Row], named: str | None, *, is_bare: bool = False) -> Columns:
    """Return the column of the speed-up relative to one named row; none if all rows have that reference already.

    Args:
        is_bare: Leave out interval and verdict.
    """
    if named is None or all(row.speed_up == row.against_named for row in rows):
        return []

    def text(row: Row) -> str:
        if row.variant == named:
            return "1" if row.pace else MISSING
        speed_up = row.against_named
        if is_bare and speed_up and not speed_up.outlier:
            return times(Ratio(speed_up.ratio.value, speed_up.ratio.rounds))
        return speed_up_words(speed_up)

    return [
        Column(
            f"vs {named}",
            text,
            sort=lambda row: _number(row.against_named),
            is_more_better=True,
            help=f"ratio of {rows[0].ranking.name} rates: the row's divided by that of {named}",
        )
    ]


def whole_call(rows: Sequence[Row], baseline: str | None) -> Columns:
    """Return the column of the ratio of whole calls; none if it is the speed-up of every row."""
    if all(row.call is None or _is_equal(row.call, row.speed_up) for row in rows):
        return []
    return [
        Column(
            f"whole call vs {baseline}",
            lambda row: "1" if row.is_baseline and row.latency else times(row.call.ratio) if row.call else MISSING,
            sort=lambda row: _number(row.call),
            is_more_better=True,
            help=f"latency of a whole call of {baseline} divided by the row's",
        )
    ]


def _is_equal(call: SpeedUp, speed_up: SpeedUp | None) -> bool:
    return (
        speed_up is not None
        and speed_up.reference == call.reference
        and math.isclose(speed_up.ratio.value, call.ratio.value, rel_tol=1e-9)
    )


def speed_up_words(speed_up: SpeedUp | None) -> str:
    """Return `1.41x [1.30, 1.53] faster`, the ratio alone if it was not tested, or the outlier round."""
    if speed_up is None:
        return MISSING
    if speed_up.outlier:
        return outlier_words(speed_up.outlier)
    return times(speed_up.ratio) if speed_up.ratio.low is None else f"{times(speed_up.ratio)} {speed_up.verdict}"


def outlier_words(number: int) -> str:
    """Return the text of a cell whose interval is too wide for a number."""
    return f"outlier round {number}"


def _number(speed_up: SpeedUp | None) -> float | None:
    return speed_up.ratio.value if speed_up and not speed_up.outlier else None


def memory(rows: Sequence[Row], unit: str | None = None) -> Columns:
    """Return the column of the peak memory during the measurement."""
    return byte_columns(rows, "peak", lambda row: row.peak_memory_bytes, unit)


def plain_costs(rows: Sequence[Row]) -> Columns:
    """Return the columns of memory and of every known metric of a process, with one unit of bytes."""
    facts = [metric for metric in rows[0].described.metrics if metric.of_cell] if rows else []
    shown = [metric for metric in facts if any(metric.name in row.facts for row in rows)]
    unit = next((metric.shown_unit for metric in shown if metric.shown_unit in ("MiB", "GiB")), None)
    return [*memory(rows, unit), *(column for metric in facts for column in fact_columns(rows, metric))]


def fact_columns(rows: Sequence[Row], metric: Metric) -> Columns:
    """Return the column of a metric of a process, if any row has it."""
    return number_columns(
        rows, metric.heading, lambda row: row.facts.get(metric.name), lambda value: decimal(value * metric.scale)
    )


def number_columns(
    rows: Sequence[AnyRow], heading: str, value_of: Callable[[AnyRow], float | None], form: Callable[[float], str]
) -> list[Column[AnyRow]]:
    """Return one column, or none if no row has its number.

    Args:
        value_of: Returns a row's number; None is printed as a dash.
        form: Returns the text of a number.
    """
    if all(value_of(row) is None for row in rows):
        return []
    return [Column(heading, lambda row: MISSING if (number := value_of(row)) is None else form(number), sort=value_of)]


def byte_columns(
    rows: Sequence[AnyRow], name: str, bytes_of: Callable[[AnyRow], int | None], unit: str | None = None
) -> list[Column[AnyRow]]:
    """Return a column of bytes.

    Args:
        unit: MiB or GiB. Default: GiB, or MiB if all values are below 51 MiB, as for a tiny model.
    """
    largest = max((size for row in rows if (size := bytes_of(row)) is not None), default=0)
    if unit == "MiB" or (unit is None and largest < GIB / 20):
        return number_columns(rows, f"{name} MiB", bytes_of, lambda size: f"{size / MIB:.1f}")
    return number_columns(rows, f"{name} GiB", bytes_of, lambda size: f"{size / GIB:.2f}")


def latency_columns(rows: Sequence[Row]) -> Columns:
    """Return the column of the latency, unless the latency ranks."""
    if any(row.ranking.of_sample for row in rows):
        return []
    return number_columns(rows, "ms", lambda row: row.latency.value * 1e3 if row.latency else None, decimal)


def quality_columns(rows: Sequence[Row]) -> Columns:
    """Return the declared facts that show how exact a variant is."""
    facts = [metric for metric in rows[0].described.metrics if metric.is_quality] if rows else []
    return [column for metric in facts for column in fact_columns(rows, metric)]


def bound(rows: Sequence[Row]) -> Columns:
    """Return the column of each row's bottleneck; none if no row was explained."""
    if not any(row.bound_by for row in rows):
        return []
    return [Column("bound by", lambda row: row.bound_by or MISSING, "left")]


LIMITS_TITLE = "Against the limits of the device"


def floors(rows: Sequence[Row]) -> Sheet | None:
    """Return the table of latencies and floors; None if no floor is known."""
    measured = [row for row in rows if row.floor_s is not None and row.latency]
    if not measured:
        return None
    columns: list[Column[Row]] = [
        *(axis_columns(measured) if len({row.cell for row in measured}) > 1 else []),
        *names(measured),
        Column(
            "latency ms",
            lambda row: with_spread(row.latency, scale=1e3),
            sort=lambda row: row.latency.value if row.latency else None,
        ),
        Column("floor", lambda row: seconds(row.floor_s), sort=lambda row: row.floor_s),
        Column(
            "floor / latency",
            _floor_share,
            sort=lambda row: row.floor_s / row.latency.value if row.floor_s is not None and row.latency else None,
            is_more_better=True,
        ),
    ]
    unit = measured[0].described.unit
    if any(row.demand and row.demand.bytes is not None for row in measured):
        source = (
            "from its bytes and the memory bandwidth measured in the same process, or from its arithmetic, if that "
            "takes longer"
        )
    else:
        source = "from its arithmetic and the matmul rate measured in the same process"
    return Sheet(LIMITS_TITLE, columns, measured, (f"Floor: the shortest possible time of a {unit}, {source}.",))


def _floor_share(row: Row) -> str:
    return percent(row.floor_s / row.latency.value, places=0) if row.floor_s is not None and row.latency else MISSING
