"""Charts of speed over an axis of the grid, of every timed run, and of the board's clock, temperature and power.

Raw runs in the order of measurement show drifts and steps that a mean hides.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, pairwise

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator

from benchmarker.comparison.rows import CellKey, Row, RowT, cell_of, cell_words, headline
from benchmarker.report.charts.speed import cells_chart, memory_chart, rate_of, speed_chart, speed_words
from benchmarker.report.charts.stacked import kernels_chart, waterfall_chart, withheld_variants
from benchmarker.report.charts.style import Chart, Ink, Series, figure, label, legend_in, plot, series_of
from benchmarker.report.compare import Comparison
from benchmarker.schema.record import RunRecord

AXIS_PT = 250.0  # Length of the axis in points.
DIGIT_PT = 5.7  # Width of a digit in points.
LOGARITHMIC_FROM = 8.0  # Ratio of the last and first value of an axis from which it is logarithmic.
MOST_SPAN = 20.0  # Deviation in percent above which the vertical axis does not grow further.
LEAST_SPAN = 2.5  # Smallest range of the vertical axis in percent, so that tiny noise is not magnified.
QUANTITIES = {"sm_clock_mhz": "clock, MHz", "temperature_c": "hottest, °C", "power_w": "mean power, W"}
"""Titles in the board chart by field of `Conditions`. A field is None if the driver does not report it."""
Points = dict[float, float]  # Drawn values by the value of the axis.


def curves(rows: Sequence[Row], cell: CellKey | None, looks: dict[str, Series]) -> list[Chart]:
    """Return a chart for each numeric axis with several values: the ranking metric over the axis."""
    charts = []
    for axis in rows[0].described.axes:
        values = {row.cell[axis.name] for row in rows if row.cell}
        if len(values) < 2 or not all(isinstance(value, int | float) for value in values):
            continue
        chart = curve_chart(
            rows,
            cell,
            looks,
            axis=axis.name,
            title=f"Over {axis.heading}",
            horizontal=axis.heading,
            value_of=lambda row: rate.value if (rate := rate_of(row)) else None,
            vertical=speed_words(rows[0]),
            is_logarithmic=min(values) > 0 and max(values) >= LOGARITHMIC_FROM * min(values),
        )
        charts += [chart] if chart else []
    return charts


def curve_chart(
    rows: Sequence[RowT],
    cell: CellKey | None,
    looks: dict[str, Series],
    *,
    axis: str,
    title: str,
    horizontal: str,
    value_of: Callable[[RowT], float | None],
    vertical: str,
    is_logarithmic: bool = False,
    name: str | None = None,
) -> Chart | None:
    """Return a chart with a line per variant; None if fewer than two values of the axis were measured.

    Args:
        cell: Only rows with equal values of the other axes are drawn: the values with most points, or this cell's.
        value_of: Returns the drawn value of a row in the unit of `vertical`, or None.
        name: File name of the chart without ending. Default: the axis.
    """
    shape, series = _series(rows, cell, axis, value_of)
    places = sorted({place for points in series.values() for place in points})
    if shape is None or len(places) < 2:
        return None
    baseline = next((row.variant for row in rows if row.is_baseline), None)
    base = series.get(baseline or "", {})
    others = [points for variant, points in series.items() if variant != baseline]
    crossed = [point for points in others for point in crossings(base, points, is_logarithmic=is_logarithmic)]

    def draw(ink: Ink) -> Figure:
        drawn, (axes,) = figure(2.9 + legend_in(series))
        for variant, points in series.items():
            ordered = sorted(points.items())
            plot(axes, ordered, looks[variant], ink, markersize=5, linewidth=1.4, label=label(variant))
        crossing_places, rates = [place for place, _ in crossed], [rate for _, rate in crossed]
        axes.plot(crossing_places, rates, "o", markersize=11, markerfacecolor="none", markeredgecolor=ink.text)
        if is_logarithmic:
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            # matplotlib labels powers of ten with mathtext, which `text.parse_math` disables in these charts.
            axes.yaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:,.0f}"))
            axes.minorticks_off()
        else:
            axes.set_ylim(bottom=0)
        labelled = with_room(places, is_logarithmic=is_logarithmic)
        axes.set_xticks(places, [f"{place:,}".removesuffix(".0") if place in labelled else "" for place in places])
        axes.set_xlabel(horizontal)
        axes.set_ylabel(vertical)
        drawn.legend(loc="outside lower left", ncols=2, columnspacing=1)
        return drawn

    note = "One mark a measured cell."
    if crossed:
        note = f"One mark a measured cell; a ring is where a variant's line crosses that of {label(baseline or '')}."
    elif baseline is not None:
        note = f"{note} No variant's line crosses that of {label(baseline)}."
    scales = "Both scales are logarithmic. " if is_logarithmic else ""
    return Chart(name or axis, f"{title}, {shape.words}", f"{scales}{note}", draw)


def _series(
    rows: Sequence[RowT], cell: CellKey | None, axis: str, value_of: Callable[[RowT], float | None]
) -> tuple[CellKey | None, dict[str, Points]]:
    shapes: dict[CellKey, dict[str, Points]] = {}
    for row in rows:
        value = value_of(row)
        if row.cell and value is not None:
            shapes.setdefault(row.cell.without(axis), {}).setdefault(row.variant, {})[row.cell[axis]] = value
    if not shapes:
        return None, {}
    most = {shape: len({place for points in lines.values() for place in points}) for shape, lines in shapes.items()}
    longest = max(shapes, key=lambda shape: (most[shape], cell is not None and shape == cell.without(axis)))
    return longest, shapes[longest]


def crossings(base: Points, points: Points, *, is_logarithmic: bool) -> list[tuple[float, float]]:
    """Return (x, y) of each point at which the drawn lines of a variant and the baseline cross."""
    scale, back = (math.log, math.exp) if is_logarithmic else (float, float)
    crossed = []
    for start, end in pairwise(sorted(base.keys() & points.keys())):
        before, after = (scale(points[place]) - scale(base[place]) for place in (start, end))
        if before * after < 0:
            share = before / (before - after)
            ends = ((start, end), (base[start], base[end]))
            place, rate = (back((1 - share) * scale(low) + share * scale(high)) for low, high in ends)
            crossed.append((place, rate))
    return crossed


def with_room(places: Sequence[float], *, is_logarithmic: bool) -> set[float]:
    """Return the positions to label, so that labels do not touch. The first and last position are chosen first."""
    scale = math.log if is_logarithmic else float
    pt_per_unit = AXIS_PT / (scale(places[-1]) - scale(places[0]))
    labelled: set[float] = set()
    for place in (places[0], places[-1], *places[1:-1]):
        if all(
            pt_per_unit * abs(scale(place) - scale(neighbour)) > DIGIT_PT * (len(f"{place:,}{neighbour:,}") / 2 + 1)
            for neighbour in labelled
        ):
            labelled.add(place)
    return labelled


def rounds_chart(
    members: Mapping[str, Sequence[RunRecord]], cell: CellKey | None, looks: dict[str, Series]
) -> Chart | None:
    """Return a chart of each run's deviation from its variant's median in `cell`, with axes for each variant."""
    if cell is None:
        return None
    off = {name: changes for name, records in members.items() if (changes := _off_median(records, cell))}
    if not off:
        return None
    farthest = max(abs(change) for strips in off.values() for strip in strips for change in strip)
    span = max(LEAST_SPAN, 1.3 * min(farthest, MOST_SPAN))

    def draw(ink: Ink) -> Figure:
        drawn, all_axes = figure(0.45 + 0.62 * len(off), rows=len(off))
        for axes, (name, strips) in zip(all_axes, off.items(), strict=True):
            position = 0.0
            for strip in strips:
                points = [(position + index, min(max(change, -span), span)) for index, change in enumerate(strip)]
                plot(axes, points, looks[name], ink, markersize=3.2, linewidth=0.8)
                position += len(strip) + 1.5
            axes.axhline(0, color=ink.faint, linewidth=1, zorder=0)
            axes.set_ylim(-span, span)
            axes.set_title(label(name), pad=2, fontsize=8)
            axes.grid(visible=False, axis="x")
            axes.tick_params(axis="x", length=0, labelbottom=False)
            axes.tick_params(axis="y", labelsize=7)
        drawn.supylabel("% off the variant's median", fontsize=8)
        many = "one line a process, by round" if max(map(len, off.values())) > 1 else "one process"
        all_axes[-1].set_xlabel(f"timed runs in order ({many})")
        return drawn

    return Chart(
        "rounds",
        f"Every timed run at {cell_words(cell)}",
        "Latency of each run relative to the variant's median: up is slower, and outliers are drawn at the edge. A "
        "slope is drift; a line that lies apart from the others of its strip is a process that differs from its "
        "repeats.",
        draw,
    )


def _off_median(records: Sequence[RunRecord], cell: CellKey) -> list[list[float]]:
    ordered = sorted(records, key=lambda record: (record.moment, record.started_at))
    cells = [measured for record in ordered if (measured := cell_of(record, cell)) and measured.status == "ok"]
    strips = [[sample.latency_s for sample in measured.samples] for measured in cells if measured.samples]
    if not strips:
        return []
    median_s = statistics.median(chain.from_iterable(strips))
    return [[100 * (latency_s / median_s - 1) for latency_s in strip] for strip in strips]


def board_chart(members: Mapping[str, Sequence[RunRecord]], looks: dict[str, Series]) -> Chart | None:
    """Return a chart of the board's clock, temperature and power over the time since the first cell."""
    cells = [
        (name, cell.timed_at, cell.conditions)
        for name, records in members.items()
        for record in records
        for cell in record.cells
        if cell.conditions and cell.timed_at
    ]
    quantities = [name for name in QUANTITIES if any(getattr(conditions, name) is not None for *_, conditions in cells)]
    if not quantities:
        return None
    start_s = min(timed_at[0] for _, timed_at, _ in cells)
    variants = list(dict.fromkeys(name for name, *_ in cells))

    def draw(ink: Ink) -> Figure:
        drawn, all_axes = figure(0.6 + 1.05 * len(quantities) + legend_in(variants), rows=len(quantities))
        for axes, quantity in zip(all_axes, quantities, strict=True):
            for variant in variants:
                points = [
                    ((sum(timed_at) / 2 - start_s) / 60, value)
                    for name, timed_at, conditions in cells
                    if name == variant and (value := getattr(conditions, quantity)) is not None
                ]
                plot(axes, points, looks[variant], ink, linestyle="none", markersize=4, label=label(variant))
            axes.set_title(QUANTITIES[quantity], pad=2, fontsize=8)
            axes.margins(y=0.15)
        all_axes[-1].set_xlabel("minutes since the first cell")
        handles, labels = all_axes[0].get_legend_handles_labels()
        drawn.legend(handles, labels, loc="outside lower left", ncols=2, handletextpad=0.1, columnspacing=1)
        return drawn

    return Chart(
        "board",
        "Clock, temperature and power over the measurement",
        "One mark a cell and process, read through the driver while it was timed. Variants at different clocks are two "
        "measurements of the board as well.",
        draw,
    )


def plain_charts(results: Comparison) -> list[Chart]:
    """Return the charts that every workload has, in the order of the page, except charts without data."""
    rows, cell, withheld = results.rows, headline(results.rows), withheld_variants(results)
    chosen = [row for row in rows if row.cell == cell]
    looks = series_of({row.variant: row.family for row in rows})
    charts = (
        speed_chart(chosen, looks),
        memory_chart(chosen, looks),
        waterfall_chart(results.explained),
        *curves(rows, cell, looks),
        cells_chart(rows, looks, shape=", ".join(axis.heading for axis in rows[0].described.axes)),
        kernels_chart({name: records for name, records in results.members.items() if name not in withheld}),
        rounds_chart(results.members, cell, looks),
        board_chart(results.members, looks),
    )
    return [chart for chart in charts if chart]
