"""Speed against memory or another cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarker.comparison.ranking import front
from benchmarker.comparison.rows import Row, RowT, cell_words
from benchmarker.core.formatting import GIB, MIB, percent
from benchmarker.core.stats import SAME_WITHIN
from benchmarker.report.charts.speed import bounds, marks, rate_of, rate_words, spread_note, top_of
from benchmarker.report.charts.style import Chart, Ink, Series, figure, label

LETTER_PT = 5.0
"""Width of an average letter in points."""
AXES_SHARE = 0.87
"""Share of the figure for the axes in each direction."""
Box = tuple[float, float, float, float]
"""Left, bottom, right and top in points."""


def memory_chart(rows: Sequence[Row], looks: dict[str, Series]) -> Chart | None:
    """Return speed over peak memory.

    Args:
        rows: Rows of the first table's cell.
    """
    able = [row for row in rows if row.pace and row.peak_memory_bytes is not None]
    if len(able) < 2:
        return None
    is_small = max(row.peak_memory_bytes or 0 for row in able) < GIB / 20
    unit, size = ("MiB", MIB) if is_small else ("GiB", GIB)
    return Chart(
        "speed-memory",
        f"Speed against memory at {_where(able)}",
        f"{front_note(rows, able)} {spread_note([rate for row in able if (rate := rate_of(row))])}",
        draw_against(
            able, looks, lambda row: (row.peak_memory_bytes or 0) / size, f"peak memory, {unit}, lower is better"
        ),
    )


def draw_against(
    rows: Sequence[RowT], looks: dict[str, Series], cost_of: Callable[[RowT], float], horizontal: str
) -> Callable[[Ink], Figure]:
    """Return a drawing of speed over a cost.

    Args:
        cost_of: Returns a row's cost in the unit of `horizontal`.
        horizontal: Label of the cost with its unit.
    """
    rates = {row.variant: rate for row in rows if (rate := rate_of(row))}
    best = {row.variant for row in front(rows)}

    def draw(ink: Ink) -> Figure:
        drawn, (axes,) = figure(2.9)
        beaten_first = sorted(rows, key=lambda row: row.variant in best)
        for row in beaten_first:
            place, rate = cost_of(row), rates[row.variant]
            axes.plot([place] * 2, bounds(rate), color=looks[row.variant].colour(ink), linewidth=1, zorder=1)
            marks(
                axes,
                [(place, rate.value)],
                looks[row.variant],
                ink,
                name=row.variant,
                hollow=row.variant not in best,
            )
        axes.set_xlim(0, 1.08 * max(map(cost_of, rows)) or 1)
        axes.set_ylim(0, 1.1 * top_of(list(rates.values())))
        lines = [(cost_of(row), *bounds(rates[row.variant])) for row in rows]
        _label(drawn, axes, [(row.label, cost_of(row), rates[row.variant].value) for row in rows], lines)
        axes.set_xlabel(horizontal)
        axes.set_ylabel(rate_words(rows[0]))
        return drawn

    return draw


def _label(
    drawn: Figure,
    axes: Axes,
    points: Sequence[tuple[str, float, float]],
    lines: Sequence[tuple[float, float, float]],
) -> None:
    """Write each name beside its mark, without covering other marks, names or lines if possible."""
    width_pt, height_pt = (72 * AXES_SHARE * inches for inches in drawn.get_size_inches())
    (_, right), (_, top) = axes.get_xlim(), axes.get_ylim()
    across_pt, up_pt = width_pt / right, height_pt / top
    marks_pt = [(x * across_pt, y * up_pt) for _, x, y in points]
    covered = [(x - 5, y - 5, x + 5, y + 5) for x, y in marks_pt]
    covered += [(x * across_pt - 1, low * up_pt, x * across_pt + 1, high * up_pt) for x, low, high in lines]
    for (name, x, y), (x_pt, y_pt) in zip(points, marks_pt, strict=True):
        text = label(name)
        length_pt = LETTER_PT * len(text)
        sides = (1, -1) if x_pt + 7 + length_pt < width_pt else (-1, 1)
        places = [(side, up) for up in (0, 9, -9, 18, -18) for side in sides]
        boxes = [_box(x_pt, y_pt, length_pt, place) for place in places]
        best = min(range(len(places)), key=lambda index: (sum(_overlap(boxes[index], box) for box in covered), index))
        covered.append(boxes[best])
        side, up = places[best]
        axes.annotate(
            text,
            (x, y),
            xytext=(7 * side, up),
            textcoords="offset points",
            ha="left" if side > 0 else "right",
            va="center",
            fontsize=8,
        )


def _box(x_pt: float, y_pt: float, length_pt: float, place: tuple[int, int]) -> Box:
    """Return the box that a name of `length_pt` covers beside its mark at (x_pt, y_pt).

    Args:
        place: 1 for the right side of the mark or -1 for the left, and points above it.
    """
    side, up = place
    near, far = sorted((x_pt + 6 * side, x_pt + side * (7 + length_pt)))
    return near, y_pt + up - 5, far, y_pt + up + 5


def _overlap(first: Box, second: Box) -> float:
    width = min(first[2], second[2]) - max(first[0], second[0])
    height = min(first[3], second[3]) - max(first[1], second[1])
    return max(0.0, width) * max(0.0, height)


def front_note(rows: Sequence[Row], drawn: Sequence[Row]) -> str:
    """Return the meaning of the marks, and the rows without one."""
    variants = {row.variant for row in drawn}
    missing = [row.variant for row in rows if row.variant not in variants]
    left_out = f" Not measured here: {', '.join(map(label, missing))}." if missing else ""
    return (
        "Full marks are the Pareto front: no other variant is at least as good in everything measured and better in "
        f"something, to within {percent(SAME_WITHIN, places=0)} of speed and memory. "
        f"Hollow marks are beaten by another.{left_out}"
    )


def _where(rows: Sequence[Row]) -> str:
    return cell_words(rows[0].cell)
