"""The decode rate over the context's depth and over the batch size, and where variants cross the baseline."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator

from benchmarker.comparison.rows import CellKey, Row
from benchmarker.comparison.words import cell_words
from benchmarker.report.charts.style import Chart, Ink, Series, figure, label

AXIS_PT = 250.0
"""From the first place to the last."""
DIGIT_PT = 5.7
"""Width of a digit on an axis."""
Points = dict[int, float]
"""Decoded tokens a second by depth or batch size."""


def depth_chart(rows: Sequence[Row], cell: CellKey | None, looks: dict[str, Series]) -> Chart | None:
    """Over the tokens that were in the cache already; only where there are several depths.

    Args:
        cell: The headline's; it is the shape that is kept where several were measured alike.
    """
    return _chart(
        rows,
        cell,
        looks,
        name="depth",
        title="Decoding with a long context",
        horizontal="tokens in the KV cache before the prompt",
        of=lambda key: key.depth,
        without=lambda key: replace(key, depth=0),
    )


def batch_chart(rows: Sequence[Row], cell: CellKey | None, looks: dict[str, Series]) -> Chart | None:
    """Over the number of sequences at once; only where there are several.

    Args:
        cell: The headline's; as for `depth_chart`.
    """
    return _chart(
        rows,
        cell,
        looks,
        name="batch",
        title="Decoding many sequences at once",
        horizontal="sequences at once (batch size)",
        of=lambda key: key.batch_size,
        without=lambda key: replace(key, batch_size=1),
        is_logarithmic=True,
    )


def _chart(
    rows: Sequence[Row],
    cell: CellKey | None,
    looks: dict[str, Series],
    *,
    name: str,
    title: str,
    horizontal: str,
    of: Callable[[CellKey], int],
    without: Callable[[CellKey], CellKey],
    is_logarithmic: bool = False,
) -> Chart | None:
    kept, series = _series(rows, cell, of=of, without=without)
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
        axes.set_ylabel("decoded tokens per second")
        drawn.legend(loc="outside lower left", ncols=2, columnspacing=1)
        return drawn

    return Chart(name, f"{title}, {_rest(kept, name)}", _note(crossed, baseline, is_logarithmic), draw)


def _series(
    rows: Sequence[Row], cell: CellKey | None, *, of: Callable[[CellKey], int], without: Callable[[CellKey], CellKey]
) -> tuple[CellKey | None, dict[str, Points]]:
    """What is kept, and each variant's points: of the shape that was measured at most places, the headline's first."""
    shapes: dict[CellKey, dict[str, Points]] = {}
    for row in rows:
        if row.cell and row.decode_tokens_per_s is not None:
            series = shapes.setdefault(without(row.cell), {}).setdefault(row.variant, {})
            series[of(row.cell)] = row.decode_tokens_per_s
    if not shapes:
        return None, {}
    most = {shape: len({place for points in found.values() for place in points}) for shape, found in shapes.items()}
    kept = max(shapes, key=lambda shape: (most[shape], cell is not None and shape == without(cell)))
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


def with_room(places: Sequence[int], *, is_logarithmic: bool) -> set[int]:
    """Those whose numbers stand on the axis without touching; the first and the last before the others."""
    scale = math.log if is_logarithmic else float
    point = AXIS_PT / (scale(places[-1]) - scale(places[0]))
    kept: list[int] = []
    for place in (places[0], places[-1], *places[1:-1]):
        needed = [DIGIT_PT * (len(f"{place:,}{other:,}") / 2 + 1) for other in kept]
        if all(point * abs(scale(place) - scale(other)) > room_pt for other, room_pt in zip(kept, needed, strict=True)):
            kept.append(place)
    return set(kept)


def _rest(cell: CellKey | None, name: str) -> str:
    words = cell_words(cell)
    return words.removesuffix(", batch 1") if name == "batch" else words


def _note(crossed: Sequence[tuple[float, float]], baseline: str | None, is_logarithmic: bool) -> str:
    said = ["Both scales are logarithmic."] if is_logarithmic else []
    if baseline is None:
        return " ".join([*said, "One mark a measured cell."])
    base = label(baseline)
    if not crossed:
        return " ".join([*said, f"One mark a measured cell. No variant's line crosses that of {base}."])
    return " ".join([*said, f"One mark a measured cell; a ring is where a variant's line crosses that of {base}."])
