"""Selection of the charts that the records can fill, in the order of the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarker.comparison.rows import headline
from benchmarker.report.charts.curves import board_chart, curves, rounds_chart
from benchmarker.report.charts.speed import cells_chart, memory_chart, speed_chart
from benchmarker.report.charts.stacked import kernels_chart, waterfall_chart
from benchmarker.report.charts.style import Chart, series_of
from benchmarker.schema.registry import workload_of

if TYPE_CHECKING:
    from benchmarker.report.compare import Comparison


def charts_of(results: Comparison) -> list[Chart]:
    return workload_of(results.workload).charts(results)


def plain_charts(results: Comparison) -> list[Chart]:
    """Return the charts of any workload."""
    rows, members = results.rows, results.members
    cell = headline(rows)
    chosen = [row for row in rows if row.cell == cell]
    looks = series_of({row.variant: row.family for row in rows})
    charts = (
        speed_chart(chosen, looks),
        memory_chart(chosen, looks),
        waterfall_chart(results.explained),
        *curves(rows, cell, looks),
        cells_chart(rows, looks, shape=", ".join(axis.heading for axis in rows[0].described.axes)),
        kernels_chart(members),
        rounds_chart(members, cell, looks),
        board_chart(members, looks),
    )
    return [chart for chart in charts if chart]
