"""Stacked bars of milliseconds per unit, one bar per variant."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarker.comparison.rows import cell_words
from benchmarker.core.formatting import decimal
from benchmarker.explain.values import Explanation, NotExplained, part_names
from benchmarker.explain.waterfall import GAPS
from benchmarker.profiling.categories import CATEGORIES, seconds_by_category
from benchmarker.report.charts.style import HATCHES, WIDTH_IN, Chart, Ink, label
from benchmarker.schema.record import Profile, RunRecord

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
"""Colour and hatching by the name of a part. Charts that name a part differently draw it alike."""
WIDEST_SCALE = 10.0
"""Ratio to the shortest bar above which a bar gets another panel."""


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
    """Draw stacked bars.

    Args:
        bars: Milliseconds of each bar by the name of the part.
        names: All parts in the order of stack and legend.
        columns: Columns of the legend.
        nothing: Part in which nothing runs; it is hatched.
        totals: Milliseconds beside each bar. Bars are sorted by them, in several panels if they differ by more than
        ten times.
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
    """Distribute bars to panels in which the longest is at most ten times the shortest."""
    panels: list[list[str]] = []
    for name in sorted(totals, key=totals.__getitem__):
        if not panels or totals[name] > WIDEST_SCALE * totals[panels[-1][0]]:
            panels.append([])
        panels[-1].append(name)
    return panels


def looks_of(names: Sequence[str], colours: int) -> dict[str, tuple[int, int]]:
    """Return colour and hatching of each part. Unknown parts get unused ones.

    Args:
        colours: Number of available colours.
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


def profile_of(records: Sequence[RunRecord]) -> Profile | None:
    """Return the profile among the variant's records."""
    return next((record.profile for record in records if record.profile), None)


def once(profile: Any) -> int:  # noqa: ARG001
    return 1


def profiled_call(profiles: Sequence[Any]) -> str:  # noqa: ARG001
    return "From one profiled call of each variant, outside the timed runs."


def kernels_chart(
    members: Mapping[str, Sequence[RunRecord]],
    *,
    count: Callable[[Any], int] = once,
    per: str = "ms per call",
    origin: Callable[[Sequence[Any]], str] = profiled_call,
) -> Chart | None:
    """Return stacked bars of kernel categories, one per variant.

    Args:
        members: Records of each variant.
        count: Returns the number of units of a profile, such as tokens.
        per: Unit of the horizontal axis.
        origin: Sentence on the subject of the profiles.
    """
    profiles = {name: profile for name, records in members.items() if (profile := profile_of(records))}
    if not profiles:
        return None
    spent = {name: _milliseconds(profile, count(profile)) for name, profile in profiles.items()}
    missing = [label(name) for name in members if name not in profiles]
    used = [category for category in CATEGORIES if any(parts.get(category) for parts in spent.values())]

    def draw(ink: Ink) -> Figure:
        what = _what(list(profiles.values()))
        return stacked(spent, used, ink, horizontal=f"{what}, {per}")

    return Chart(
        "kernels",
        "What the time is spent on",
        " ".join([origin(list(profiles.values())), *_gaps(list(profiles.values()))])
        + (f" Without a profile: {', '.join(missing)}." if missing else ""),
        draw,
    )


def _milliseconds(profile: Profile, count: int) -> dict[str, float]:
    spent = seconds_by_category((kernel.name, kernel.total_s) for kernel in profile.kernels)
    return {category: 1e3 * spent_s / count for category, spent_s in spent.items()}


def _what(profiles: Sequence[Profile]) -> str:
    return "operator time" if all(profile.by == "cpu" for profile in profiles) else "kernel time"


def _gaps(profiles: Sequence[Profile]) -> list[str]:
    on_device = any(profile.by == "device" for profile in profiles)
    return ["Time in which no kernel ran is not in the bars."] if on_device else []


GAPS_ARE = {"cpu": "Python, and the time between operators", "device": "time in which the device waits for the host"}
"""Meaning of gaps by the profiled unit."""


def waterfall_chart(explanations: Sequence[Explanation | NotExplained]) -> Chart | None:
    """Return stacked bars as long as the measured unit; None if no variant is explained."""
    explained = [explanation for explanation in explanations if isinstance(explanation, Explanation)]
    if not explained:
        return None
    bars: dict[str, Parts] = {
        explanation.variant: {part.name: 1e3 * part.seconds for part in explanation.waterfall.parts if part.seconds > 0}
        for explanation in explained
    }
    totals = {explanation.variant: 1e3 * explanation.waterfall.total_s for explanation in explained}
    names = [name for name in part_names(explained) if any(name in parts for parts in bars.values())]

    def draw(ink: Ink) -> Figure:
        horizontal = f"ms per {explained[0].unit}, lower is better"
        return stacked(bars, names, ink, horizontal=horizontal, columns=2, nothing=GAPS, totals=totals)

    cells = {explanation.cell for explanation in explained}
    where = f" at {cell_words(explained[0].cell)}" if len(cells) == 1 else ""
    return Chart(
        "waterfall",
        f"Why a token takes as long as it does{where}",
        " ".join(
            [
                "A bar, and the number beside it, is the token as measured without the profiler. Its gaps are "
                f"{_gap_shares(explained)}; its other parts are those of the profiled generation.",
                *_missing(explanations),
            ]
        ),
        draw,
    )


def _gap_shares(explained: Sequence[Explanation]) -> str:
    kinds = {explanation.phase.by for explanation in explained}
    return " or ".join(words for by, words in GAPS_ARE.items() if by in kinds)


def _missing(explanations: Sequence[Explanation | NotExplained]) -> list[str]:
    names = [label(explanation.variant) for explanation in explanations if isinstance(explanation, NotExplained)]
    return [f"Not explained: {', '.join(names)}."] if names else []
