"""How a workload's rows are shown, beyond its axes and metrics. Every field has a default.

A workload that declares none is shown with a column for each axis that varies and for each metric, its speed-ups, its
memory, its floor, the caveats that hold for every measurement, and a curve over each axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarker.comparison.rows import Results, Row, headline_rows
from benchmarker.core.formatting import MISSING, decimal, percent, seconds, with_spread
from benchmarker.core.named_import import imported
from benchmarker.core.tables import Column, Sheet, escaped, plain_line
from benchmarker.report.captions import caption
from benchmarker.report.caveats import plain_caveats
from benchmarker.report.columns import axis_columns, fact_columns, metric_columns, names, number_columns, plain_costs
from benchmarker.report.header import plain_header
from benchmarker.schema.profile import Profile
from benchmarker.schema.record import RunRecord
from benchmarker.schema.registry import workload_of

if TYPE_CHECKING:
    from benchmarker.report.charts.style import Chart

ColumnsOf = Callable[[Any], Sequence[Column[Any]]]
"""Columns of a table, made of its rows."""


LIMITS_TITLE = "Against the limits of the device"


def floors(rows: Sequence[Row]) -> Sheet | None:
    """Latencies beside the least that the device allows; None where no floor is known."""
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
            "from the bytes that it must move and the memory bandwidth that was measured in the same process, or from "
            "its arithmetic, where that takes longer"
        )
    else:
        source = "from its arithmetic and the matmul rate that was measured in the same process"
    return Sheet(LIMITS_TITLE, columns, measured, (f"Floor: the least time that a {unit} can take, {source}.",))


def _floor_share(row: Row) -> str:
    """`83 %`: the floor over the latency."""
    return percent(row.floor_s / row.latency.value, places=0) if row.floor_s is not None and row.latency else MISSING


def variant_line(record: RunRecord) -> str:
    """`variant: flash`."""
    return f"variant: {escaped(record.variant.name)}"


def plain_title(results: Results) -> str:
    """`attention on NVIDIA H100 80GB HBM3`."""
    devices = dict.fromkeys(plain_line(record.environment.device.name) for record in results.records)
    return f"{plain_line(results.workload)} on {', '.join(devices)}"


def profiled_words(profile: Profile) -> str:  # noqa: ARG001
    """What a profile is of, in words: by default one call."""
    return "one call"


def brief_columns(rows: Sequence[Row]) -> list[Column[Row]]:
    """The latency, where it is not what ranks."""
    if any(row.ranking.of_sample for row in rows):
        return []
    return number_columns(
        rows,
        "ms",
        lambda row: row.latency.value * 1e3 if row.latency else None,
        lambda latency_ms: decimal(latency_ms),
    )


def quality_columns(rows: Sequence[Row]) -> list[Column[Row]]:
    """The declared facts that say how exact a variant is."""
    facts = [metric for metric in rows[0].described.metrics if metric.is_quality] if rows else []
    return [column for metric in facts for column in fact_columns(rows, metric)]


def quality_words(row: Row) -> str:
    """`error 2.1 ppm`."""
    facts = [metric for metric in row.described.metrics if metric.is_quality and metric.name in row.facts]
    return ", ".join(
        f"{metric.name} {decimal(row.facts[metric.name] * metric.scale, digits=2)} {metric.shown_unit}"
        for metric in facts
    )


def nothing(*_: Any) -> tuple[Any, ...]:
    """Nothing further."""
    return ()


@dataclass(frozen=True)
class Presentation:
    """How rows of a workload are shown: functions of its rows, unless said otherwise."""

    names: ColumnsOf = names
    """The columns that name a variant; the first is its name."""
    cell: Callable[..., Sequence[Column[Any]]] = axis_columns
    """The columns of the axes that vary; with `always=True`, of all axes."""
    timing: ColumnsOf = metric_columns
    """The columns of what was timed."""
    costs: ColumnsOf = plain_costs
    """The columns of what a variant costs, such as memory, in the table of the headline's cell."""
    brief: ColumnsOf = brief_columns
    """Columns beside the metric that ranks, in the first table."""
    quality: ColumnsOf = quality_columns
    """The columns of what a variant costs in exactness, in the first table."""
    quality_words: Callable[[Any], str] = quality_words
    """What one row costs in exactness, in a sentence. Empty where the workload has no such metric."""
    plain: str = "baseline"
    """What the other variants are held against, in words: `unquantized form`."""
    surroundings: str = "table"
    """What a row has in common with the one that it is held against, in a word: `engine`."""
    command: Callable[[Any], str] = lambda records: ""
    """The command that runs a variant for use, made of the variant's records. Empty where nothing runs it."""
    every_cell: ColumnsOf = nothing
    """Further columns of the table of every cell."""
    details: Callable[[Any], Sequence[Sheet]] = nothing
    """Further tables, made of the rows of the headline's cell."""
    limits: Callable[[Any], Sheet | None] = floors
    """The table of rows beside what the device allows; None where that is not known."""
    beside_limits: Callable[[Any], Sequence[Any]] = headline_rows
    """Those of all rows that stand in the table of limits."""
    header: Callable[[Any], Sequence[str]] = plain_header
    """The lines above the tables, made of the records."""
    variant_lines: Callable[[Any], Sequence[str]] = lambda record: (variant_line(record),)
    """The first lines above the table of one run, made of its record."""
    loaded_lines: Callable[[Any], Sequence[str]] = nothing
    """The last lines above the table of one run, made of its record."""
    caption: Callable[[Results], str] = caption
    """The paragraph under the tables that says how to read them."""
    remarks: Callable[[Any, str | None], Sequence[str]] = nothing
    """What the rows say together, made of all rows and the baseline's name."""
    first_remarks: Callable[[Any], Sequence[str]] = nothing
    """Those of them that answer the workload's question, made of all rows: they stand under the first table too."""
    caveats: Callable[[Any, Any], Sequence[str]] = plain_caveats
    """What must be known before believing a number, made of records and rows."""
    closing: Callable[[Any, str | None], Sequence[str]] = nothing
    """Lines after the caveats, made of the rows of the headline's cell and the baseline's name."""
    charts: Callable[[Any], list[Chart]] | None = None
    """The charts of a comparison. None for those that any workload has."""
    title: Callable[[Results], str] = plain_title
    """The title of the page."""
    badge: Callable[[Any], str] = lambda rows: ""
    """A warning above a page whose numbers are not what they seem, such as those of random weights."""
    remark: Callable[[Any], str] = lambda rows: ""
    """That warning in few words, beside a chart's title."""
    profiled: Callable[[Any], str] = profiled_words
    """What a profile is of, in words."""
    speed: str = ""
    """The headline metric in words, for the axis of a chart. Empty for the heading of its column."""
    ceilings: Callable[[Any], Sequence[str]] = nothing
    """Sentences on what was predicted and what was reached, made of a comparison."""
    break_evens: Callable[[Any], Sequence[str]] = nothing
    """Sentences on when a variant has paid for what it costs to begin with, made of a comparison."""


def presentation_of(name: str) -> Presentation:
    """The presentation that the workload of that name declares, or the default one."""
    where = workload_of(name).presentation
    presentation: Presentation = imported(where) if where else Presentation()
    return presentation
