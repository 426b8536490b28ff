"""Charts of the ranking metric with its intervals: bars, marks for every cell, and marks over a cost such as memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from benchmarker.comparison.ranking import front
from benchmarker.comparison.rows import Row, RowT, cell_words
from benchmarker.core.formatting import GIB, MIB, decimal, percent
from benchmarker.core.stats import SAME_WITHIN, Estimate
from benchmarker.core.tables import unmarked
from benchmarker.report.charts.style import Chart, Ink, Series, figure, label, legend_in, name_bars, plot, write_beside
from benchmarker.schema.registry import workload_of

WIDEST_SPREAD = 1.5
"""Multiple of the largest value at which intervals are cut off, so that one bad row does not stretch the axis."""
LETTER_PT = 5.0  # Width of an average letter in points.
AXES_SHARE = 0.87  # Approximate share of the figure's width and height that the axes take.


def speed_chart(rows: Sequence[Row], looks: dict[str, Series]) -> Chart | None:
    """Return a bar chart of the rows of one cell, the fastest first; None if no row has a number."""
    able = sorted((row for row in rows if rate_of(row)), key=lambda row: -row.speed)
    if not able or able[0].cell is None:
        return None
    rates = {row.variant: rate for row in able if (rate := rate_of(row))}

    def draw(ink: Ink) -> Figure:
        drawn, (axes,) = figure(0.55 + 0.34 * len(rates))
        for place, (name, rate) in enumerate(rates.items()):
            axes.barh(place, rate.value, height=0.62, color=looks[name].colour(ink))
            axes.plot(bounds(rate), [place, place], color=ink.text, linewidth=1.2)
            write_beside(axes, place, decimal(rate.value))
        name_bars(axes, [row.label for row in able])
        axes.set_xlim(0, 1.03 * top_of(list(rates.values())))
        axes.set_xlabel(rate_words(able[0]))
        return drawn

    marked = dict.fromkeys(unmarked(row.mark).replace("`", "") for row in able if row.mark)
    notes = ["The number beside a bar is the bar's length.", spread_note(able), *(f"* {mark}." for mark in marked)]
    withheld = [f"{label(row.label)}: {row.pace_spread}" for row in rows if row.is_withheld]
    notes += [f"Without a number: {'; '.join(withheld)}."] if withheld else []
    return Chart("speed", f"Speed at {cell_words(able[0].cell)}", " ".join(notes), draw)


def cells_chart(rows: Sequence[Row], looks: dict[str, Series], *, shape: str) -> Chart | None:
    """Return a chart with a line per cell and a mark per variant; None for one cell. `shape` labels the cells' axis."""
    cells = [cell for cell in dict.fromkeys(row.cell for row in rows if rate_of(row)) if cell]
    if len(cells) < 2:
        return None
    rates = {(row.cell, row.variant): rate for row in rows if (rate := rate_of(row))}
    variants = list(dict.fromkeys(row.variant for row in rows if rate_of(row)))

    def draw(ink: Ink) -> Figure:
        drawn, (axes,) = figure(1.0 + 0.3 * len(cells) + legend_in(variants))
        for name in variants:
            points = [(rate.value, place) for place, cell in enumerate(cells) if (rate := rates.get((cell, name)))]
            marks(axes, points, looks[name], ink, name=name)
        axes.set_yticks(range(len(cells)), [", ".join(map(str, cell.context)) for cell in cells])
        axes.set_ylim(len(cells) - 0.5, -0.5)
        axes.set_xlim(left=0)
        axes.set_ylabel(shape)
        axes.set_xlabel(rate_words(rows[0]))
        drawn.legend(loc="outside lower left", ncols=2, handletextpad=0.1, columnspacing=1)
        return drawn

    note = "Where the order of the marks changes from line to line, the best variant depends on the shape."
    return Chart("cells", "Speed in every cell", note, draw)


def memory_chart(rows: Sequence[Row], looks: dict[str, Series]) -> Chart | None:
    able = [row for row in rows if rate_of(row) and row.peak_memory_bytes is not None]
    if len(able) < 2:
        return None
    is_small = max(row.peak_memory_bytes or 0 for row in able) < GIB
    unit, size = ("MiB", MIB) if is_small else ("GiB", GIB)
    horizontal = f"peak memory, {unit}, lower is better"
    return Chart(
        "speed-memory",
        f"Speed against memory at {cell_words(able[0].cell)}",
        f"{front_note(rows, able)} {spread_note(able)}",
        draw_against(able, looks, lambda row: (row.peak_memory_bytes or 0) / size, horizontal),
    )


def draw_against(
    rows: Sequence[RowT], looks: dict[str, Series], cost_of: Callable[[RowT], float], horizontal: str
) -> Callable[[Ink], Figure]:
    """Return a function that draws speed over cost. `horizontal` labels the axis; `cost_of` has its unit."""
    rates = {row.variant: rate for row in rows if (rate := rate_of(row))}
    best = {row.variant for row in front(rows)}

    def draw(ink: Ink) -> Figure:
        drawn, (axes,) = figure(2.9)
        beaten_first = sorted(rows, key=lambda row: row.variant in best)
        for row in beaten_first:
            place, rate, look = cost_of(row), rates[row.variant], looks[row.variant]
            axes.plot([place] * 2, bounds(rate), color=look.colour(ink), linewidth=1, zorder=1)
            marks(axes, [(place, rate.value)], look, ink, name=row.variant, hollow=row.variant not in best)
        axes.set_xlim(0, 1.08 * max(map(cost_of, rows)) or 1)
        axes.set_ylim(0, 1.1 * top_of(list(rates.values())))
        _label(drawn, axes, [(row.label, cost_of(row), rates[row.variant]) for row in rows])
        axes.set_xlabel(horizontal)
        axes.set_ylabel(rate_words(rows[0]))
        return drawn

    return draw


def marks(
    axes: Axes, points: Sequence[tuple[float, float]], look: Series, ink: Ink, *, name: str, hollow: bool = False
) -> None:
    # A hollow mark has the paper's colour: through a transparent mark, the line behind it would be visible.
    inside = ink.paper if hollow else look.colour(ink)
    style = {"linestyle": "none", "markersize": 6, "markeredgewidth": 1.4, "markerfacecolor": inside, "clip_on": False}
    plot(axes, points, look, ink, label=label(name), **style)


def _label(drawn: Figure, axes: Axes, rows: Sequence[tuple[str, float, Estimate]]) -> None:
    """Write each name beside its mark, without covering other marks, names or intervals if possible."""
    width_pt, height_pt = (72 * AXES_SHARE * inches for inches in drawn.get_size_inches())
    across_pt, up_pt = width_pt / axes.get_xlim()[1], height_pt / axes.get_ylim()[1]
    covered = [_box(x * across_pt, rate.value * up_pt, 5, 5) for _, x, rate in rows]
    for _, x, rate in rows:
        low, high = bounds(rate)
        covered.append(Bbox.from_extents(x * across_pt - 1, low * up_pt, x * across_pt + 1, high * up_pt))
    for name, x, rate in rows:
        x_pt, y_pt = x * across_pt, rate.value * up_pt
        text = label(name)
        length_pt = LETTER_PT * len(text)
        sides = (1, -1) if x_pt + 7 + length_pt < width_pt else (-1, 1)
        places = [(side, up) for up in (0, 9, -9, 18, -18) for side in sides]
        boxes = [_box(x_pt + side * (6.5 + length_pt / 2), y_pt + up, (1 + length_pt) / 2, 5) for side, up in places]
        best = min(range(len(places)), key=lambda index: sum(_overlap(boxes[index], box) for box in covered))
        covered.append(boxes[best])
        side, up = places[best]
        axes.annotate(
            text,
            (x, rate.value),
            xytext=(7 * side, up),
            textcoords="offset points",
            ha="left" if side > 0 else "right",
            va="center",
            fontsize=8,
        )


def _box(x_pt: float, y_pt: float, half_width_pt: float, half_height_pt: float) -> Bbox:
    return Bbox.from_extents(x_pt - half_width_pt, y_pt - half_height_pt, x_pt + half_width_pt, y_pt + half_height_pt)


def _overlap(first: Bbox, second: Bbox) -> float:
    common = Bbox.intersection(first, second)
    return common.width * common.height if common else 0.0


def bounds(estimate: Estimate) -> tuple[float, float]:
    """Return the ends of the interval; below three rounds, the value plus and minus one standard deviation."""
    if estimate.low is not None and estimate.high is not None:
        return estimate.low, estimate.high
    spread = estimate.deviation or 0.0
    return max(0.0, estimate.value - spread), estimate.value + spread


def top_of(rates: Sequence[Estimate]) -> float:
    return min(max(bounds(rate)[1] for rate in rates), WIDEST_SPREAD * max(rate.value for rate in rates))


def spread_note(rows: Sequence[Row]) -> str:
    estimates = [row.pace for row in rows if row.pace]
    interval = "The thin line is the 95 % interval over the rounds."
    kinds = {estimate.low is not None for estimate in estimates}
    if kinds == {True}:
        return interval
    if kinds == {True, False}:
        return f"{interval} Where there are fewer than three rounds it is ± the standard deviation."
    if any(estimate.deviation for estimate in estimates):
        return "The thin line is ± the sample standard deviation of the timed runs."
    return "One timed run each: no spread is known."


def rate_of(row: Row) -> Estimate | None:
    """Return the ranking metric in its printed unit; None if it is missing or its interval is too wide."""
    rate, scale = row.pace, row.ranking.scale
    if rate is None or row.is_withheld:
        return None
    low, high, deviation = (None if part is None else scale * part for part in (rate.low, rate.high, rate.deviation))
    return replace(rate, value=scale * rate.value, low=low, high=high, deviation=deviation)


def rate_words(row: Row) -> str:
    return f"{speed_words(row)}, {row.ranking.better} is better"


def speed_words(row: Row) -> str:
    return workload_of(row.workload).speed_axis or row.ranking.heading


def front_note(rows: Sequence[Row], drawn: Sequence[Row]) -> str:
    """Return a note that explains full and hollow marks and lists the variants without a mark."""
    variants = {row.variant for row in drawn}
    missing = [row.variant for row in rows if row.variant not in variants]
    left_out = f" Without a number here: {', '.join(map(label, missing))}." if missing else ""
    return (
        "Full marks are the Pareto front: no other variant is at least as good in everything measured and better in "
        f"something, to within {percent(SAME_WITHIN, places=0)} of speed and memory. "
        f"Hollow marks are beaten by another.{left_out}"
    )
