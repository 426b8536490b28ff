"""Tokens a second, variant by variant, with how sure each is."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarker.comparison.rows import CellKey, Row
from benchmarker.comparison.words import cell_words
from benchmarker.core.numbers import decimal
from benchmarker.core.stats import Estimate
from benchmarker.report.charts.style import Chart, Ink, Series, figure, label

INTERVAL_NOTE = "The thin line is the 95 % interval over the rounds."
DEVIATION_NOTE = "The thin line is ± the sample standard deviation of the timed runs."


def speed_chart(rows: Sequence[Row], looks: dict[str, Series]) -> Chart | None:
    """Bars from zero, the fastest first.

    Args:
        rows: Of the headline's cell.
    """
    rates = {row.variant: row.rate for row in rows if row.rate}
    cell = next((row.cell for row in rows if row.rate), None)
    if cell is None:
        return None
    ordered = sorted(rates, key=lambda name: -rates[name].value)

    def draw(ink: Ink) -> Figure:
        drawn, (axes,) = figure(0.55 + 0.34 * len(ordered))
        for place, name in enumerate(ordered):
            rate = rates[name]
            axes.barh(place, rate.value, height=0.62, color=looks[name].colour(ink))
            low, high = bounds(rate)
            axes.plot([low, high], [place, place], color=ink.text, linewidth=1.2)
            beside = axes.get_yaxis_transform()
            axes.text(1.02, place, decimal(rate.value), transform=beside, va="center", fontsize=8)
        axes.set_yticks(range(len(ordered)), [label(name) for name in ordered])
        axes.tick_params(axis="y", length=0)
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.set_xlim(0, 1.03 * max(bounds(rate)[1] for rate in rates.values()))
        axes.set_xlabel("tokens per second, higher is better")
        return drawn

    note = f"The number beside a bar is the bar's length. {spread_note(list(rates.values()))}"
    return Chart("speed", f"Speed at {cell_words(cell)}", note, draw)


def cells_chart(rows: Sequence[Row], looks: dict[str, Series]) -> Chart | None:
    """One line a cell, one mark a variant; only where there are several cells."""
    cells = [cell for cell in dict.fromkeys(row.cell for row in rows if row.rate) if cell]
    if len(cells) < 2:
        return None
    known = {(row.cell, row.variant): row.rate for row in rows if row.rate}
    variants = list(dict.fromkeys(row.variant for row in rows if row.rate))

    def draw(ink: Ink) -> Figure:
        drawn, (axes,) = figure(1.0 + 0.3 * len(cells) + 0.17 * ((len(variants) + 1) // 2))
        for name in variants:
            points = [(rate.value, place) for place, cell in enumerate(cells) if (rate := known.get((cell, name)))]
            marks(axes, points, looks[name], ink, name=name)
        axes.set_yticks(range(len(cells)), [_short(cell) for cell in cells])
        axes.set_ylim(len(cells) - 0.5, -0.5)
        axes.set_xlim(left=0)
        axes.set_ylabel(_axis_words(cells))
        axes.set_xlabel("tokens per second, higher is better")
        drawn.legend(loc="outside lower left", ncols=2, handletextpad=0.1, columnspacing=1)
        return drawn

    note = "Where the order of the marks changes from line to line, the best variant depends on the shape."
    return Chart("cells", "Speed in every cell", note, draw)


def marks(
    axes: Axes, points: Sequence[tuple[float, float]], look: Series, ink: Ink, *, name: str, hollow: bool = False
) -> None:
    """One variant's marks, hollow or full."""
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
    """Ends of the interval; one deviation to each side where there are too few rounds; the value itself if alone."""
    if estimate.low is not None and estimate.high is not None:
        return estimate.low, estimate.high
    spread = estimate.deviation or 0.0
    return max(0.0, estimate.value - spread), estimate.value + spread


def spread_note(estimates: Sequence[Estimate]) -> str:
    """What the thin lines are."""
    kinds = {one.low is not None for one in estimates}
    if kinds == {True}:
        return INTERVAL_NOTE
    if kinds == {False}:
        return DEVIATION_NOTE if any(one.deviation for one in estimates) else "One timed run each: no spread is known."
    return f"{INTERVAL_NOTE} Where there are fewer than three rounds it is ± the standard deviation."


def _axis_words(cells: Sequence[CellKey]) -> str:
    depth = "depth + " if any(cell.depth for cell in cells) else ""
    batch = " × batch" if any(cell.batch_size > 1 for cell in cells) else ""
    return f"{depth}prompt + new tokens{batch}"


def _short(cell: CellKey) -> str:
    """`26 + 100`, and the depth and the batch where there is one."""
    batch = f" × {cell.batch_size}" if cell.batch_size > 1 else ""
    text = f" text {cell.text + 1}" if cell.text else ""
    depth = f"{cell.depth} + " if cell.depth else ""
    return f"{depth}{cell.prompt_tokens} + {cell.new_tokens}{batch}{text}"
