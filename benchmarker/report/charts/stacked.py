"""Milliseconds a token as stacked bars, one a variant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarker.core.formatting import decimal
from benchmarker.report.charts.style import HATCHES, WIDTH_IN, Ink, label

Parts = Mapping[str, float]
"""Milliseconds by name."""
LOOKS: Mapping[str, tuple[int, int]] = {
    **{"matmul": (0, 0), "quantized matmul": (0, 1), "matrix products": (0, 0), "matrix products beyond that": (0, 2)},
    **dict.fromkeys(("reading the weights", "moving the bytes", "moving data at the measured bandwidth"), (0, 1)),
    "arithmetic at the measured rate": (0, 3),
    "linear layers at the measured rate": (0, 3),
    "products at the measured matmul rate": (0, 3),
    **dict.fromkeys(("dequantize", "dequantizing"), (1, 0)),
    **{"attention": (2, 0), "linear attention": (2, 1), "attention in float32": (2, 2), "convolution": (2, 3)},
    **{"norm": (3, 0), "norms, rotary, elementwise": (3, 0), "rotary": (3, 1), "elementwise": (3, 2)},
    **dict.fromkeys(("copy/cast", "copies and casts"), (4, 0)),
    **{"KV update": (5, 0), "KV cache": (5, 0), "sampling": (5, 1), "loss": (5, 2), "optimizer": (5, 3)},
    **{"other": (6, 0), "bookkeeping": (6, 1), "communication": (6, 2)},
}
"""Colour and hatching of a part, by its name. Two charts of a page name some parts differently, and draw them alike."""
WIDEST_SCALE = 10.0
"""Of the shortest bar of a panel: what is longer has a panel of its own, or the short ones could not be read."""


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
    """Bars of milliseconds, each stacked of its parts.

    Args:
        bars: The parts of each bar by their names, in milliseconds.
        names: All parts, in the order of the stack and of the legend.
        columns: Columns of the legend.
        nothing: The part in which nothing runs; it is hatched.
        totals: Milliseconds to print beside each bar. The bars are sorted by them, and drawn in several panels where
            they differ by more than ten times.
    """
    panels = panels_of(totals) if totals else [list(bars)]
    legend_in = 0.17 * (-(-len(names) // columns))
    drawn = Figure(figsize=(WIDTH_IN, 0.35 + 0.4 * len(panels) + 0.36 * len(bars) + legend_in))
    all_axes = drawn.subplots(
        len(panels), 1, squeeze=False, gridspec_kw={"height_ratios": [len(panel) + 0.4 for panel in panels]}
    )[:, 0]
    for index, (axes, panel) in enumerate(zip(all_axes, panels, strict=True)):
        _panel(axes, {name: bars[name] for name in panel}, names, ink, nothing=nothing, is_labelled=index == 0)
        for place, name in enumerate(panel if totals else ()):
            total = (totals or {})[name]
            axes.text(1.02, place, decimal(total), transform=axes.get_yaxis_transform(), va="center", fontsize=8)
    all_axes[-1].set_xlabel(horizontal)
    drawn.legend(loc="outside lower left", ncols=columns, handlelength=1, handletextpad=0.4, columnspacing=1)
    return drawn


def panels_of(totals: Parts) -> list[list[str]]:
    """The bars in panels with a scale of their own: in each the longest is at most ten times the shortest."""
    panels: list[list[str]] = []
    for name in sorted(totals, key=totals.__getitem__):
        if not panels or totals[name] > WIDEST_SCALE * totals[panels[-1][0]]:
            panels.append([])
        panels[-1].append(name)
    return panels


def looks_of(names: Sequence[str], colours: int) -> dict[str, tuple[int, int]]:
    """Colour and hatching of each part; an unknown one takes what none of the others has.

    Args:
        colours: How many there are.
    """
    looks = {name: LOOKS[name] for name in names if name in LOOKS}
    free = [(colour, hatch) for hatch in range(len(HATCHES)) for colour in range(colours)]
    for name in names:
        if name not in looks:
            looks[name] = next((look for look in free if look not in looks.values()), free[0])
    return looks


def _panel(
    axes: Axes, bars: Mapping[str, Parts], names: Sequence[str], ink: Ink, *, nothing: str | None, is_labelled: bool
) -> None:
    starts, looks = dict.fromkeys(bars, 0.0), looks_of(names, len(ink.parts))
    for name in names:
        colour, hatch = looks[name]
        axes.barh(
            range(len(bars)),
            [parts.get(name, 0.0) for parts in bars.values()],
            left=list(starts.values()),
            height=0.62,
            color=ink.faint if name == nothing else ink.part(colour),
            edgecolor=ink.paper,
            linewidth=0.25,  # a part of a hundredth is as thin as a wider edge, which would paint it over
            hatch="xxxx" if name == nothing else HATCHES[hatch],
            label=name if is_labelled else None,
        )
        starts = {bar: starts[bar] + parts.get(name, 0.0) for bar, parts in bars.items()}
    axes.set_yticks(range(len(bars)), [label(name) for name in bars])
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
