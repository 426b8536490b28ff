"""What a workload may say of how its rows are shown, beyond its axes and metrics. All of it has a default.

A workload that declares none is shown with a column for each axis that varies and for each metric, its speed-ups, its
memory, its floor, the caveats that hold for every measurement, and a curve over each axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarker.comparison.rows import Results, Row, headline_rows
from benchmarker.core.numbers import decimal, percent, with_spread
from benchmarker.core.tables import Column, Sheet, escaped, plain_line
from benchmarker.core.units import MISSING, seconds
from benchmarker.report.captions import caption
from benchmarker.report.caveats import plain_caveats
from benchmarker.report.columns import axis_columns, fact_columns, metric_columns, names, number_columns, plain_costs
from benchmarker.report.header import plain_header
from benchmarker.schema.profile import Profile
from benchmarker.schema.record import RunRecord
from benchmarker.schema.registry import workload_of
from benchmarker.schema.workload import imported

if TYPE_CHECKING:
    from benchmarker.report.charts.style import Chart

Shown = Callable[[Any], Sequence[Column[Any]]]


LIMITS_TITLE = "Against the limits of the device"


def floors(rows: Sequence[Row]) -> Sheet | None:
    """Latencies beside the least that the device allows; None where no floor is known."""
    known = [row for row in rows if row.floor_s is not None and row.latency]
    if not known:
        return None
    columns: list[Column[Row]] = [
        *(axis_columns(known) if len({row.cell for row in known}) > 1 else []),
        *names(known),
        Column(
            "latency ms",
            lambda row: with_spread(row.latency, scale=1e3),
            sort=lambda row: row.latency.value if row.latency else None,
        ),
        Column("floor", lambda row: seconds(row.floor_s), sort=lambda row: row.floor_s),
        Column(
            "floor / latency",
            _of_floor,
            sort=lambda row: row.floor_s / row.latency.value if row.floor_s is not None and row.latency else None,
            is_more_better=True,
        ),
    ]
    note = (
        "Floor: the least time that a call can take, from the bytes that it must move and the memory bandwidth that "
        "was measured in the same process, or from its arithmetic, where that takes longer."
    )
    return Sheet(LIMITS_TITLE, columns, known, (note,))


def _of_floor(row: Row) -> str:
    return percent(row.floor_s / row.latency.value, places=0) if row.floor_s is not None and row.latency else MISSING


def variant_line(record: RunRecord) -> str:
    """`variant: flash`."""
    return f"variant: {escaped(record.variant.name)}"


def plain_title(results: Results) -> str:
    """`attention on NVIDIA H100 80GB HBM3`."""
    devices = dict.fromkeys(plain_line(record.environment.device.name) for record in results.records)
    return f"{plain_line(results.workload)} on {', '.join(devices)}"


def profiled_words(profile: Profile) -> str:  # noqa: ARG001
    """What a profile is of."""
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
    """How rows of a workload are shown. Each takes rows, unless said."""

    names: Shown = names
    cell: Callable[..., Sequence[Column[Any]]] = axis_columns
    """Columns of the axes; with `always`, those too that do not vary."""
    timing: Shown = metric_columns
    costs: Shown = plain_costs
    """What a variant costs, for the first table."""
    brief: Shown = brief_columns
    """Beside the metric that ranks, in the first table."""
    quality: Shown = quality_columns
    """What a variant costs in exactness, in the first table."""
    quality_words: Callable[[Any], str] = quality_words
    """The same of one row, for a sentence. Empty where the workload has none."""
    plain: str = "baseline"
    """What the others are held against: `unquantized form`."""
    surroundings: str = "table"
    """What a row has in common with the one that it is held against: `engine`."""
    command: Callable[[Any], str] = lambda records: ""
    """Of one variant's records: the command that runs it for use. Empty where nothing does."""
    every_cell: Shown = nothing
    """Further columns of the table of every cell."""
    details: Callable[[Any], Sequence[Sheet]] = nothing
    """Further tables, of the first table's rows."""
    limits: Callable[[Any], Sheet | None] = floors
    beside_limits: Callable[[Any], Sequence[Any]] = headline_rows
    """Which of all rows stand beside their limits."""
    header: Callable[[Any], Sequence[str]] = plain_header
    """Lines above the tables, of the records."""
    variant_lines: Callable[[Any], Sequence[str]] = lambda record: (variant_line(record),)
    """First lines above the table of one run, of its record."""
    loaded_lines: Callable[[Any], Sequence[str]] = nothing
    """Last lines above it."""
    caption: Callable[[Results], str] = caption
    remarks: Callable[[Any, str | None], Sequence[str]] = nothing
    """What the rows say together, of all rows and the baseline."""
    caveats: Callable[[Any, Any], Sequence[str]] = plain_caveats
    """Of records and rows."""
    closing: Callable[[Any, str | None], Sequence[str]] = nothing
    """Said after the caveats, of the first table's rows and the baseline."""
    charts: Callable[[Any], list[Chart]] | None = None
    """Of a comparison. None for those that any workload has."""
    title: Callable[[Results], str] = plain_title
    badge: Callable[[Any], str] = lambda rows: ""
    """Above a page whose numbers are not all what they seem."""
    remark: Callable[[Any], str] = lambda rows: ""
    """The same beside a chart's title."""
    profiled: Callable[[Any], str] = profiled_words
    """What a profile is of."""
    speed: str = ""
    """The headline metric in words, for the axis of a chart. As in its column by default."""
    made: str = "reached"
    """What a variant does with the headline metric, for a sentence."""
    ceilings: Callable[[Any], Sequence[str]] = nothing
    """What was predicted beside what was reached, of a comparison."""
    break_evens: Callable[[Any], Sequence[str]] = nothing
    """When a variant has paid for what it costs to begin with, of a comparison."""


def presentation_of(name: str) -> Presentation:
    """How that workload is shown."""
    where = workload_of(name).presentation
    presentation: Presentation = imported(where) if where else Presentation()
    return presentation
