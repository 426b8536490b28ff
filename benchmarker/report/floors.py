"""The table of measured latencies beside the least times that the device allows."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarker.comparison.rows import Row
from benchmarker.core.formatting import MISSING, percent, seconds, with_spread
from benchmarker.core.tables import Column, Sheet
from benchmarker.report.columns import axis_columns, names

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
