"""Speed over an axis of the grid, and crossings with the baseline."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator

from benchmarker.comparison.rows import CellKey, Row, RowT
from benchmarker.report.charts.speed import speed_words
from benchmarker.report.charts.style import Chart, Ink, Series, figure, label

AXIS_PT = 250.0
"""Length of the axis in points."""
DIGIT_PT = 5.7
"""Width of a digit in points."""
Points = dict[float, float]
"""Drawn values by the value of the axis."""
LOGARITHMIC_FROM = 8.0
"""Ratio of the last and first value of an axis from which it is logarithmic."""


def curves(rows: Sequence[Row], cell: CellKey | None, looks: dict[str, Series]) -> list[Chart]:
    """Return a chart of the ranking metric over each numeric axis with several values."""
    charts = []
    for axis in rows[0].described.axes if rows else ():
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
            value_of=_scaled_pace,
            vertical=speed_words(rows[0]),
            is_logarithmic=min(values) > 0 and max(values) >= LOGARITHMIC_FROM * min(values),
        )
        charts += [chart] if chart else []
    return charts


def _scaled_pace(row: Row) -> float | None:
    return row.pace.value * row.ranking.scale if row.pace else None


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
        cell: The first table's cell. Its other axes are held fixed if several cells have equally many points.
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
        drawn, (axes,) = figure(2.9 + 0.17 * ((len(series) + 1) // 2))
        for variant, points in series.items():
            ordered = sorted(points.items())
            axes.plot(
                [place for place, _ in ordered],
                [rate for _, rate in ordered],
                color=looks[variant].colour(ink),
                marker=looks[variant].marker,
                markersize=5,
                linewidth=1.4,
                label=label(variant),
            )
        axes.plot(
            [place for place, _ in crossed],
            [rate for _, rate in crossed],
            linestyle="none",
            marker="o",
            markersize=11,
            markerfacecolor="none",
            markeredgecolor=ink.text,
        )
        if is_logarithmic:
            _set_logarithmic(axes)
        else:
            axes.set_ylim(bottom=0)
        labelled = with_room(places, is_logarithmic=is_logarithmic)
        axes.set_xticks(places, [f"{place:,}" if place in labelled else "" for place in places])
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


def _set_logarithmic(axes: Axes) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    # matplotlib's own labels for powers of ten are mathematics, which a drawing of ours does not typeset.
    axes.yaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:,.0f}"))
    axes.minorticks_off()


def _series(
    rows: Sequence[RowT], cell: CellKey | None, axis: str, value_of: Callable[[RowT], float | None]
) -> tuple[CellKey | None, dict[str, Points]]:
    """Return the cell without the drawn axis, and the points of each variant.

    Of several such cells, the one with most points is chosen; of equals, that of the first table.
    """
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
    """Return position and value of each crossing of a variant's line and the baseline's on the scales of the chart."""
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
    """Return the positions whose labels do not touch. The first and last come before the others."""
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
