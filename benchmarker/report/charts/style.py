"""Style of all charts: colours for colour-blind readers, on light and dark paper. Text stays text in SVG.

In the page a chart is SVG whose colours are CSS variables of the page, so that one drawing has light, dark and print
colours. A PNG has the light colours.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence, Sized
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarker.comparison.rows import grouped

WIDTH_IN = 4.6  # Width in inches, narrow enough for legible letters on a phone.
PNG_DPI = 200

MARKERS = "osD^v<>p"  # Markers with an interior, so that hollow and filled marks differ.
HATCHES = ("", "////", "....", "||||")


@dataclass(frozen=True)
class Ink:
    text: str
    faint: str  # Colour of grids and lines that are not data.
    paper: str
    series: tuple[str, ...]  # Colours of variants.
    parts: tuple[str, ...]  # Colours of the parts of a time; none is in `series`.

    @property
    def variables(self) -> dict[str, str]:
        """Colours by the names of the page's CSS variables: `{"text": "#1b1f24", "series-0": "#0072b2"}`."""
        series = {f"series-{index}": colour for index, colour in enumerate(self.series)}
        parts = {f"part-{index}": colour for index, colour in enumerate(self.parts)}
        return {"text": self.text, "faint": self.faint, "paper": self.paper, **series, **parts}


# Variants: Okabe and Ito's palette ("Color universal design", 2008) without yellow, too faint on white, and black, the
# colour of text. Parts of a time: Tol's "muted" palette, so that no colour has two meanings. DARK has brighter colours
# in the same order of hues.
LIGHT = Ink(
    "#1b1f24",
    "#d3d8de",
    "#ffffff",
    ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#a6761d", "#7f7f7f"),
    ("#332288", "#aa4499", "#117733", "#88ccee", "#ddcc77", "#cc6677", "#999999"),
)
DARK = Ink(
    "#e6e9ee",
    "#3a4048",
    "#15181c",
    ("#4da6e0", "#ff8a3d", "#2fc49a", "#e6a3c8", "#9ad4f5", "#d9b45b", "#a8a8a8"),
    ("#8f84e0", "#d98acb", "#5fbf7d", "#b5e3f5", "#eee0a0", "#e8a0ab", "#c8c8c8"),
)
# Placeholder colours in an SVG, which `_for_page` replaces by CSS variables.
_MARKS = Ink(
    "#010101",
    "#010102",
    "#010103",
    tuple(f"#0102{index:02x}" for index in range(len(LIGHT.series))),
    tuple(f"#0103{index:02x}" for index in range(len(LIGHT.parts))),
)

_SETTINGS: dict[str, Any] = {
    "text.parse_math": False,  # a name may hold two dollar signs
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.formatter.useoffset": False,
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "hatch.linewidth": 0.6,
    "figure.constrained_layout.use": True,
}


@dataclass(frozen=True)
class Chart:
    name: str  # File name without ending.
    title: str
    note: str  # Sentence that explains the chart.
    draw: Callable[[Ink], Figure]


@dataclass(frozen=True)
class Series:
    """Colour and marker of one variant in all charts of a report."""

    hue: int
    mark: int

    def colour(self, ink: Ink) -> str:
        return ink.series[self.hue % len(ink.series)]

    @property
    def marker(self) -> str:
        return MARKERS[self.mark % len(MARKERS)]


def series_of(variants: Mapping[str, str]) -> dict[str, Series]:
    """Return the colour and marker of each variant. `variants` maps its name to its family, such as a quantization.

    Each variant has its own colour if there are enough colours; otherwise variants of a family differ in the marker.
    """
    together = grouped((family, name) for name, family in variants.items())
    are_enough = 1 < len(together) <= len(LIGHT.series) and max(map(len, together.values())) <= len(MARKERS)
    if len(variants) <= len(LIGHT.series) or not are_enough:
        return {name: Series(index, index) for index, name in enumerate(variants)}
    hues = list(together)
    return {name: Series(hues.index(family), together[family].index(name)) for name, family in variants.items()}


def figure(height_in: float, *, rows: int = 1) -> tuple[Figure, list[Axes]]:
    """Return an empty figure and its axes: `rows` axes, one below the other, that share the horizontal axis."""
    drawn = Figure(figsize=(WIDTH_IN, height_in))
    return drawn, list(drawn.subplots(rows, 1, sharex=True, squeeze=False)[:, 0])


def plot(axes: Axes, points: Sequence[tuple[float, float]], look: Series, ink: Ink, **style: Any) -> None:
    """Draw the points of one variant. `style` are further arguments of matplotlib's `plot`."""
    x, y = [x for x, _ in points], [y for _, y in points]
    axes.plot(x, y, color=look.colour(ink), marker=look.marker, **style)


def name_bars(axes: Axes, names: Sequence[str]) -> None:
    """Write the names of horizontal bars, the first at the top."""
    axes.set_yticks(range(len(names)), list(map(label, names)))
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")


def write_beside(axes: Axes, place: int, text: str) -> None:
    axes.text(1.02, place, text, transform=axes.get_yaxis_transform(), va="center", fontsize=8)


def legend_in(names: Sized) -> float:
    return 0.17 * ((len(names) + 1) // 2)


def label(text: str, longest: int = 28) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def to_svg(chart: Chart) -> str:
    """Return the drawing as an SVG element for a page that defines CSS variables such as `--text` and `--series-0`."""
    buffer = io.StringIO()
    with _drawing(_MARKS, salt=chart.name):
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        chart.draw(_MARKS).savefig(buffer, format="svg", transparent=True, metadata=nothing)
    return _for_page(buffer.getvalue(), chart.name)


def to_png(chart: Chart, path: Path, *, remark: str = "") -> None:
    with _drawing(LIGHT, salt=chart.name):
        drawn = chart.draw(LIGHT)
        drawn.suptitle(chart.title + remark, x=0.01, ha="left", fontsize=9, fontweight="bold", wrap=True)
        drawn.savefig(path, dpi=PNG_DPI, facecolor=LIGHT.paper, metadata={"Software": None})


def _drawing(ink: Ink, *, salt: str) -> AbstractContextManager[None]:
    colours = dict.fromkeys(("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), ink.text)
    colours |= dict.fromkeys(("grid.color", "axes.edgecolor", "xtick.color", "ytick.color"), ink.faint)
    settings: dict[Any, Any] = {**_SETTINGS, **colours, "axes.facecolor": "none", "svg.hashsalt": salt}
    return matplotlib.rc_context(settings)


def _for_page(svg: str, name: str) -> str:
    element = svg[svg.index("<svg") :]
    element = re.sub(r'<svg[^>]*?viewBox="([^"]*)"[^>]*>', r'<svg viewBox="\1" aria-hidden="true">', element, count=1)
    element = re.sub(r"<defs>\s*<style[^>]*>.*?</style>\s*</defs>", "", element, count=1, flags=re.DOTALL)
    element = re.sub(r'\bid="', f'id="{name}-', element)
    element = element.replace("url(#", f"url(#{name}-").replace('xlink:href="#', f'href="#{name}-')
    for variable, mark in _MARKS.variables.items():
        element = element.replace(mark, f"var(--{variable})")
    return re.sub(r"font: ([\d.]+)px[^;\"]*", r"font-size: \1px", element)
