"""Speed over an axis, and where variants cross the baseline."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator

from benchmarker.comparison.rows import CellKey, Row, RowT
from benchmarker.report.charts.speed import speed_words
from benchmarker.report.charts.style import Chart, Ink, Series, figure, label

AXIS_PT = 250.0
"""From the first place to the last."""
DIGIT_PT = 5.7
"""Width of a digit on an axis."""
Points = dict[float, float]
"""What is drawn, by the value of the axis."""
LOGARITHMIC_FROM = 8.0
"""An axis whose last value is so many times its first is drawn logarithmically."""


def curves(rows: Sequence[Row], cell: CellKey | None, looks: dict[str, Series]) -> list[Chart]:
    """The headline metric over each axis of numbers that has several."""
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
            of=_shown_rate,
            vertical=speed_words(rows[0]),
            is_logarithmic=min(values) > 0 and max(values) >= LOGARITHMIC_FROM * min(values),
        )
        charts += [chart] if chart else []
    return charts


def _shown_rate(row: Row) -> float | None:
    return row.pace.value * row.ranking.scale if row.pace else None


def curve_chart(
    rows: Sequence[RowT],
    cell: CellKey | None,
    looks: dict[str, Series],
    *,
    axis: str,
    title: str,
    horizontal: str,
    of: Callable[[RowT], float | None],
    vertical: str,
    is_logarithmic: bool = False,
    name: str | None = None,
) -> Chart | None:
    """A line for each variant; None where fewer than two values of the axis were measured alike.

    Args:
        cell: The headline's; it is the shape that is kept where several were measured alike.
        of: What is drawn, in the unit of `vertical`.
        name: Of the chart's file. That of the axis by default.
    """
    kept, series = _series(rows, cell, axis, of)
    places = sorted({place for points in series.values() for place in points})
    if len(places) < 2:
        return None
    baseline = next((row.variant for row in rows if row.is_baseline), None)
    base = series.get(baseline or "", {})
    crossed = [
        point
        for other in series
        if other != baseline
        for point in crossings(base, series[other], is_logarithmic=is_logarithmic)
    ]

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
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            # matplotlib's own labels for powers of ten are mathematics, which a drawing of ours does not typeset.
            axes.yaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:,.0f}"))
            axes.minorticks_off()
        else:
            axes.set_ylim(bottom=0)
        shown = with_room(places, is_logarithmic=is_logarithmic)
        axes.set_xticks(places, [f"{place:,}" if place in shown else "" for place in places])
        axes.set_xlabel(horizontal)
        axes.set_ylabel(vertical)
        drawn.legend(loc="outside lower left", ncols=2, columnspacing=1)
        return drawn

    return Chart(name or axis, f"{title}, {kept.words if kept else ''}", _note(crossed, baseline, is_logarithmic), draw)


def _series(
    rows: Sequence[RowT], cell: CellKey | None, axis: str, of: Callable[[RowT], float | None]
) -> tuple[CellKey | None, dict[str, Points]]:
    """What is kept, and each variant's points: of the shape that was measured at most places, the headline's first."""
    shapes: dict[CellKey, dict[str, Points]] = {}
    for row in rows:
        value = of(row)
        if row.cell and value is not None:
            shapes.setdefault(row.cell.without(axis), {}).setdefault(row.variant, {})[row.cell[axis]] = value
    if not shapes:
        return None, {}
    most = {shape: len({place for points in lines.values() for place in points}) for shape, lines in shapes.items()}
    kept = max(shapes, key=lambda shape: (most[shape], cell is not None and shape == cell.without(axis)))
    return kept, shapes[kept]


def crossings(base: Points, other: Points, *, is_logarithmic: bool) -> list[tuple[float, float]]:
    """Where the line drawn through the other's points crosses the baseline's, between places that both know.

    Args:
        is_logarithmic: Whether both scales are, on which the lines are drawn straight.
    """
    scale, back = (math.log, math.exp) if is_logarithmic else (float, float)
    common = sorted(base.keys() & other.keys())
    found = []
    for left, right in pairwise(common):
        before, after = (scale(other[place]) - scale(base[place]) for place in (left, right))
        if before * after < 0:
            share = before / (before - after)
            ends = ((left, right), (base[left], base[right]))
            place, rate = (back((1 - share) * scale(start) + share * scale(end)) for start, end in ends)
            found.append((place, rate))
    return found


def with_room(places: Sequence[float], *, is_logarithmic: bool) -> set[float]:
    """Those whose numbers stand on the axis without touching; the first and the last before the others."""
    scale = math.log if is_logarithmic else float
    point = AXIS_PT / (scale(places[-1]) - scale(places[0]))
    kept: list[float] = []
    for place in (places[0], places[-1], *places[1:-1]):
        needed = [DIGIT_PT * (len(f"{place:,}{other:,}") / 2 + 1) for other in kept]
        if all(point * abs(scale(place) - scale(other)) > room_pt for other, room_pt in zip(kept, needed, strict=True)):
            kept.append(place)
    return set(kept)


def _note(crossed: Sequence[tuple[float, float]], baseline: str | None, is_logarithmic: bool) -> str:
    said = ["Both scales are logarithmic."] if is_logarithmic else []
    if baseline is None:
        return " ".join([*said, "One mark a measured cell."])
    base = label(baseline)
    if not crossed:
        return " ".join([*said, f"One mark a measured cell. No variant's line crosses that of {base}."])
    return " ".join([*said, f"One mark a measured cell; a ring is where a variant's line crosses that of {base}."])
