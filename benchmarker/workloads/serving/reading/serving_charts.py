"""Charts of serving: throughput against interactivity, and TTFT p99 against the rate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from matplotlib.figure import Figure

from benchmarker.comparison.rows import headline, shown_value
from benchmarker.report.charts.curves import board_chart, curve_chart
from benchmarker.report.charts.speed import speed_chart
from benchmarker.report.charts.style import Chart, Ink, Series, figure, label, legend_in, plot, series_of
from benchmarker.report.compare import Comparison
from benchmarker.workloads.serving.reading.serving_reading import ServingRow
from benchmarker.workloads.serving.reading.serving_reading import series_of as rows_by_shape


def charts_of(results: Comparison) -> list[Chart]:
    rows, cell = cast("tuple[ServingRow, ...]", results.rows), headline(results.rows)
    looks = series_of({row.variant: row.family for row in rows})
    rate = curve_chart(
        [row for row in rows if row.cell and row.cell.rate],
        cell,
        looks,
        axis="rate",
        title="TTFT p99 over the rate",
        horizontal="requests per second (Poisson)",
        value_of=lambda row: shown_value(row.metrics.get("ttft_p99"), scale=1e3),
        vertical="TTFT p99, ms, lower is better",
        name="ttft-rate",
    )
    charts = (
        interactivity_chart(rows, looks),
        rate,
        speed_chart([row for row in rows if row.cell == cell], looks),
        board_chart(results.members, looks),
    )
    return [chart for chart in charts if chart]


def interactivity_chart(rows: Sequence[ServingRow], looks: dict[str, Series]) -> Chart | None:
    """Return output tok/s against tok/s per user, a point per concurrency; None if no variant has two points."""
    shapes = rows_by_shape(rows, "concurrency")
    if not shapes:
        return None
    shape, variants = max(shapes.items(), key=lambda item: sum(map(len, item[1].values())))
    lines = {name: points for name, members in variants.items() if (points := _points(members))}
    if not any(len(points) > 1 for points in lines.values()):
        return None
    slo = rows[0].slo
    tpot_s = dict(slo.limits_s).get("tpot")

    def draw(ink: Ink) -> Figure:
        drawn, (axes,) = figure(2.9 + legend_in(lines))
        for name, points in lines.items():
            plot(axes, points, looks[name], ink, markersize=5, linewidth=1.4, clip_on=False, label=label(name))
        if tpot_s:
            axes.axvline(1 / tpot_s, color=ink.text, linewidth=1, linestyle="--")
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("tokens per second of one user (1 / TPOT)")
        axes.set_ylabel("output tokens per second")
        drawn.legend(loc="outside lower left", ncols=2, columnspacing=1)
        return drawn

    limit = f" To the right of the dashed line the median TPOT is within {1e3 * tpot_s:g} ms." if tpot_s else ""
    note = f"One mark a concurrency, rising from right to left; up and to the right is better.{limit}"
    return Chart("interactivity", f"Throughput against interactivity, {shape.words}", note, draw)


def _points(rows: Sequence[ServingRow]) -> list[tuple[float, float]]:
    names = ("user_tokens", "output_tokens")
    pairs = [[shown_value(row.metrics.get(name)) for name in names] for row in rows if not row.is_withheld]
    return [(of_user, of_all) for of_user, of_all in pairs if of_user is not None and of_all is not None]
