"""Bars of the ranking metric with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarker.comparison.rows import Row, cell_words
from benchmarker.core.formatting import decimal
from benchmarker.core.stats import Estimate
from benchmarker.core.tables import unmarked
from benchmarker.report.charts.style import Chart, Ink, Series, figure, label
from benchmarker.schema.registry import workload_of

INTERVAL_NOTE = "The thin line is the 95 % interval over the rounds."
DEVIATION_NOTE = "The thin line is ± the sample standard deviation of the timed runs."


def speed_chart(rows: Sequence[Row], looks: dict[str, Series]) -> Chart | None:
    """Return bars from zero, the fastest first.

    Args:
        rows: Rows of the first table's cell.
    """
    able = sorted((row for row in rows if rate_of(row)), key=lambda row: -row.speed)
    if not able or able[0].cell is None:
        return None
    cell, words = able[0].cell, rate_words(able[0])
    rates = {row.variant: rate for row in able if (rate := rate_of(row))}
    names = {row.variant: label(row.label) for row in able}

    def draw(ink: Ink) -> Figure:
        drawn, (axes,) = figure(0.55 + 0.34 * len(rates))
        for place, (name, rate) in enumerate(rates.items()):
            axes.barh(place, rate.value, height=0.62, color=looks[name].colour(ink))
            low, high = bounds(rate)
            axes.plot([low, high], [place, place], color=ink.text, linewidth=1.2)
            beside = axes.get_yaxis_transform()
            axes.text(1.02, place, decimal(rate.value), transform=beside, va="center", fontsize=8)
        axes.set_yticks(range(len(rates)), [names[name] for name in rates])
        axes.tick_params(axis="y", length=0)
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.set_xlim(0, 1.03 * top_of(list(rates.values())))
        axes.set_xlabel(words)
        return drawn

    marked = " ".join(
        f"* {mark}." for mark in dict.fromkeys(unmarked(row.mark).replace("`", "") for row in able if row.mark)
    )
    note = f"The number beside a bar is the bar's length. {spread_note(list(rates.values()))} {marked}".strip()
    return Chart("speed", f"Speed at {cell_words(cell)}", note, draw)


def cells_chart(rows: Sequence[Row], looks: dict[str, Series], *, shape: str) -> Chart | None:
    """Return one line per cell with one mark per variant, if there are several cells.

    Args:
        shape: Names of the axes, for the labels of the lines.
    """
    cells = [cell for cell in dict.fromkeys(row.cell for row in rows if row.pace) if cell]
    if len(cells) < 2:
        return None
    rates = {(row.cell, row.variant): rate for row in rows if (rate := rate_of(row))}
    words = rate_words(rows[0])
    variants = list(dict.fromkeys(row.variant for row in rows if row.pace))

    def draw(ink: Ink) -> Figure:
        drawn, (axes,) = figure(1.0 + 0.3 * len(cells) + 0.17 * ((len(variants) + 1) // 2))
        for name in variants:
            points = [(rate.value, place) for place, cell in enumerate(cells) if (rate := rates.get((cell, name)))]
            marks(axes, points, looks[name], ink, name=name)
        axes.set_yticks(range(len(cells)), [cell.short_words for cell in cells])
        axes.set_ylim(len(cells) - 0.5, -0.5)
        axes.set_xlim(left=0)
        axes.set_ylabel(shape)
        axes.set_xlabel(words)
        drawn.legend(loc="outside lower left", ncols=2, handletextpad=0.1, columnspacing=1)
        return drawn

    note = "Where the order of the marks changes from line to line, the best variant depends on the shape."
    return Chart("cells", "Speed in every cell", note, draw)


def marks(
    axes: Axes, points: Sequence[tuple[float, float]], look: Series, ink: Ink, *, name: str, hollow: bool = False
) -> None:
    """Draw one variant's marks, hollow or filled."""
    colour = look.colour(ink)
    axes.plot(
        [x for x, _ in points],
        [y for _, y in points],
        linestyle="none",
        marker=look.marker,
        markersize=6,
        markeredgewidth=1.4,
        markeredgecolor=colour,
        # Paper, not nothing: a line behind the mark would fill it.
        markerfacecolor=ink.paper if hollow else colour,
        clip_on=False,
        label=label(name),
    )


def bounds(estimate: Estimate) -> tuple[float, float]:
    """Return the ends of the interval, or one standard deviation to each side if there are too few rounds."""
    if estimate.low is not None and estimate.high is not None:
        return estimate.low, estimate.high
    spread = estimate.deviation or 0.0
    return max(0.0, estimate.value - spread), estimate.value + spread


WIDEST_SPREAD = 1.5
"""Multiple of the largest value at which intervals are cut off, so that one bad row does not stretch the axis."""


def top_of(rates: Sequence[Estimate]) -> float:
    return min(max(bounds(rate)[1] for rate in rates), WIDEST_SPREAD * max(rate.value for rate in rates))


def spread_note(estimates: Sequence[Estimate]) -> str:
    """Return the meaning of the thin lines."""
    kinds = {estimate.low is not None for estimate in estimates}
    if kinds == {True}:
        return INTERVAL_NOTE
    if kinds == {False}:
        has_deviation = any(estimate.deviation for estimate in estimates)
        return DEVIATION_NOTE if has_deviation else "One timed run each: no spread is known."
    return f"{INTERVAL_NOTE} Where there are fewer than three rounds it is ± the standard deviation."


def rate_of(row: Row) -> Estimate | None:
    """Return the ranking metric in its printed unit."""
    rate, scale = row.pace, row.ranking.scale
    if rate is None:
        return None
    low, high, deviation = (None if part is None else scale * part for part in (rate.low, rate.high, rate.deviation))
    return replace(rate, value=scale * rate.value, low=low, high=high, deviation=deviation)


def rate_words(row: Row) -> str:
    """Return `tokens per second, higher is better`."""
    return f"{speed_words(row)}, {row.ranking.better} is better"


def speed_words(row: Row) -> str:
    """Return the name of the ranking metric with its unit."""
    return workload_of(row.workload).speed_axis or row.ranking.heading
