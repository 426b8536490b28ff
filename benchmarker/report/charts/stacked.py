"""Milliseconds a token as stacked bars, one a variant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from benchmarker.core.numbers import decimal
from benchmarker.report.charts.style import HATCHES, Ink, figure, label

Parts = Mapping[str, float]
"""Milliseconds by name."""


def stacked(
    bars: Mapping[str, Parts],
    names: Sequence[str],
    ink: Ink,
    *,
    horizontal: str,
    columns: int = 3,
    nothing: str | None = None,
    totals: Parts | None = None,
) -> Figure:
    """The parts in the order of their names; the legend in the same order.

    Args:
        columns: Of the legend.
        nothing: The part in which nothing is done, drawn as such.
        totals: Printed beside the bars.
    """
    drawn, (axes,) = figure(0.75 + 0.36 * len(bars) + 0.17 * (-(-len(names) // columns)))
    left = dict.fromkeys(bars, 0.0)
    for index, name in enumerate(names):
        axes.barh(
            range(len(bars)),
            [parts.get(name, 0.0) for parts in bars.values()],
            left=list(left.values()),
            height=0.62,
            color=ink.faint if name == nothing else ink.colour(index),
            edgecolor=ink.paper,
            linewidth=0.25,  # a part of a hundredth is as thin as a wider edge, which would paint it over
            hatch="xxxx" if name == nothing else HATCHES[index // len(ink.series)],
            label=name,
        )
        left = {bar: left[bar] + parts.get(name, 0.0) for bar, parts in bars.items()}
    for place, name in enumerate(bars if totals else ()):
        total = (totals or {})[name]
        axes.text(1.02, place, decimal(total), transform=axes.get_yaxis_transform(), va="center", fontsize=8)
    axes.set_yticks(range(len(bars)), [label(name) for name in bars])
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(horizontal)
    drawn.legend(loc="outside lower left", ncols=columns, handlelength=1, handletextpad=0.4, columnspacing=1)
    return drawn
