"""Every chart that the records can fill, in the order of the page."""

from __future__ import annotations

from benchmarker.comparison.compare import Comparison
from benchmarker.report.charts.board import board_chart
from benchmarker.report.charts.curves import batch_chart, depth_chart
from benchmarker.report.charts.kernels import kernels_chart
from benchmarker.report.charts.rounds import rounds_chart
from benchmarker.report.charts.speed import cells_chart, speed_chart
from benchmarker.report.charts.style import Chart, series_of
from benchmarker.report.charts.tradeoff import memory_chart, quality_chart
from benchmarker.report.charts.waterfall import waterfall_chart
from benchmarker.report.sheets import headline


def charts_of(results: Comparison) -> list[Chart]:
    """None is empty: what no record knows has no chart."""
    rows, members = results.rows, results.members
    cell = headline(rows)
    chosen = [row for row in rows if row.cell == cell]
    looks = series_of({row.variant: row.quant for row in rows})
    found = (
        speed_chart(chosen, looks),
        memory_chart(chosen, looks),
        quality_chart(chosen, looks),
        waterfall_chart(results.explained),
        depth_chart(rows, cell, looks),
        batch_chart(rows, cell, looks),
        cells_chart(rows, looks),
        kernels_chart(members),
        rounds_chart(members, cell, looks),
        board_chart(members, looks),
    )
    return [chart for chart in found if chart]
