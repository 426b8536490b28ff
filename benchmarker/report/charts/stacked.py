"""Charts of stacked bars, one per variant: milliseconds of each part of a call or decode step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarker.comparison.rows import Results, cell_words, headline_rows
from benchmarker.core.formatting import decimal
from benchmarker.explain.explain import Explanation, part_names
from benchmarker.explain.waterfall import GAPS, NotExplained
from benchmarker.profiling.kernel_categories import CATEGORIES, seconds_by_category
from benchmarker.report.charts.style import HATCHES, WIDTH_IN, Chart, Ink, label, name_bars, write_beside
from benchmarker.schema.record import Profile, RunRecord

Parts = Mapping[str, float]  # Milliseconds by name.
LOOKS: Mapping[str, tuple[int, int]] = {
    **{"matmul": (0, 0), "quantized matmul": (0, 1), "matrix products": (0, 0), "matrix products beyond that": (0, 2)},
    **dict.fromkeys(("reading the weights", "moving the bytes", "moving data at the measured bandwidth"), (0, 1)),
    **dict.fromkeys(("arithmetic at the measured rate", "linear layers at the measured rate"), (0, 3)),
    "products at the measured matmul rate": (0, 3),
    **dict.fromkeys(("dequantize", "dequantizing"), (1, 0)),
    **{"attention": (2, 0), "linear attention": (2, 1), "attention in float32": (2, 2), "convolution": (2, 3)},
    **{"norm": (3, 0), "norms, rotary, elementwise": (3, 0), "rotary": (3, 1), "elementwise": (3, 2)},
    **dict.fromkeys(("copy/cast", "copies and casts"), (4, 0)),
    **{"KV update": (5, 0), "KV cache": (5, 0), "sampling": (5, 1), "loss": (5, 2), "optimizer": (5, 3)},
    **{"other": (6, 0), "bookkeeping": (6, 1), "communication": (6, 2)},
}
"""Index of the colour and index of the hatching by part. `copy/cast` and `copies and casts` are names of one part."""
WIDEST_SCALE = 10.0  # Largest ratio of the longest to the shortest bar of a panel.


def stacked(
    bars: Mapping[str, Parts], names: Sequence[str], ink: Ink, *, horizontal: str, columns: int, totals: Parts | None
) -> Figure:
    """Draw stacked bars. With `totals`, write each bar's total beside it, and distribute the bars by `panels_of`."""
    panels = panels_of(totals) if totals else [list(bars)]
    legend_in = 0.17 * math.ceil(len(names) / columns)
    drawn = Figure(figsize=(WIDTH_IN, 0.35 + 0.4 * len(panels) + 0.36 * len(bars) + legend_in))
    heights = {"height_ratios": [len(panel) + 0.4 for panel in panels]}
    all_axes = drawn.subplots(len(panels), 1, squeeze=False, gridspec_kw=heights)[:, 0]
    for index, (axes, panel) in enumerate(zip(all_axes, panels, strict=True)):
        _panel(axes, {name: bars[name] for name in panel}, names, ink, is_labelled=index == 0)
        if totals:
            for place, name in enumerate(panel):
                write_beside(axes, place, decimal(totals[name]))
    all_axes[-1].set_xlabel(horizontal)
    drawn.legend(loc="outside lower left", ncols=columns, handlelength=1, handletextpad=0.4, columnspacing=1)
    return drawn


def panels_of(totals: Parts) -> list[list[str]]:
    """Distribute bars to panels so that the longest bar of a panel is at most ten times its shortest bar."""
    panels: list[list[str]] = []
    for name in sorted(totals, key=totals.__getitem__):
        if not panels or totals[name] > WIDEST_SCALE * totals[panels[-1][0]]:
            panels.append([])
        panels[-1].append(name)
    return panels


def looks_of(names: Sequence[str], colours: int) -> dict[str, tuple[int, int]]:
    """Return (colour index, hatching index) of each part: that of LOOKS, or an unused pair."""
    looks = {name: LOOKS[name] for name in names if name in LOOKS}
    free = [(colour, hatch) for hatch in range(len(HATCHES)) for colour in range(colours)]
    for name in names:
        if name not in looks:
            looks[name] = next((look for look in free if look not in looks.values()), free[0])
    return looks


def _panel(axes: Axes, bars: Mapping[str, Parts], names: Sequence[str], ink: Ink, *, is_labelled: bool) -> None:
    starts, looks = dict.fromkeys(bars, 0.0), looks_of(names, len(ink.parts))
    for name in names:
        colour, hatch = looks[name]
        axes.barh(
            range(len(bars)),
            [parts.get(name, 0.0) for parts in bars.values()],
            left=list(starts.values()),
            height=0.62,
            color=ink.faint if name == GAPS else ink.parts[colour],
            edgecolor=ink.paper,
            linewidth=0.25,  # a wider edge would cover a part of 1 % of the bar
            hatch="xxxx" if name == GAPS else HATCHES[hatch],
            label=name if is_labelled else None,
        )
        starts = {bar: starts[bar] + parts.get(name, 0.0) for bar, parts in bars.items()}
    name_bars(axes, list(bars))


def profile_of(records: Sequence[RunRecord]) -> Profile | None:
    if records and type(records[0]).why_void(records):
        return None
    return next((record.profile for record in records if record.profile and not record.is_disturbed), None)


def kernels_chart(
    members: Mapping[str, Sequence[RunRecord]],
    *,
    per: str = "ms per call",
    units: Mapping[str, int] | None = None,
    subject: str = "call of each variant",
) -> Chart | None:
    """Return a chart of the time in each kernel category; `units` is the number of decode steps in each profile."""
    profiles = {name: profile for name, records in members.items() if (profile := profile_of(records))}
    if not profiles:
        return None
    spent: dict[str, Parts] = {}
    for name, profile in profiles.items():
        seconds = seconds_by_category((kernel.name, kernel.total_s) for kernel in profile.kernels)
        spent[name] = {category: 1e3 * spent_s / (units or {}).get(name, 1) for category, spent_s in seconds.items()}
    used = [category for category in CATEGORIES if any(parts.get(category) for parts in spent.values())]
    sources = {profile.by for profile in profiles.values()}
    missing = [label(name) for name in members if name not in profiles]
    notes = [
        f"From one profiled {subject}, outside the timed runs.",
        *(["Time in which no kernel ran is not in the bars."] if "device" in sources else []),
        *([f"Without a profile: {', '.join(missing)}."] if missing else []),
    ]

    def draw(ink: Ink) -> Figure:
        time = "operator time" if sources == {"cpu"} else "kernel time"
        return stacked(spent, used, ink, horizontal=f"{time}, {per}", columns=3, totals=None)

    return Chart("kernels", "What the time is spent on", " ".join(notes), draw)


GAPS_ARE = {"cpu": "Python, and the time between operators", "device": "time in which the device waits for the host"}
"""Meaning of gaps by the source of the profile (`Phase.by`): CPU operators or device kernels."""


def withheld_variants(results: Results) -> set[str]:
    """Return the variants whose interval is too wide for a number in the first table. No chart has a bar for them."""
    return {row.variant for row in headline_rows(results.rows) if row.is_withheld}


def waterfall_chart(explanations: Sequence[Explanation | NotExplained]) -> Chart | None:
    """Return a chart of bars as long as the measured time, divided into its parts; None if no variant is explained."""
    explained = [each for each in explanations if isinstance(each, Explanation)]
    if not explained:
        return None
    unit = explained[0].unit
    bars: dict[str, Parts] = {
        explanation.variant: {part.name: 1e3 * part.seconds for part in explanation.waterfall if part.seconds > 0}
        for explanation in explained
    }
    totals = {explanation.variant: 1e3 * explanation.total_s for explanation in explained}
    names = [name for name in part_names(explained) if any(name in parts for parts in bars.values())]

    def draw(ink: Ink) -> Figure:
        horizontal = f"ms per {unit}, lower is better"
        return stacked(bars, names, ink, horizontal=horizontal, columns=2, totals=totals)

    cells = {explanation.cell for explanation in explained}
    where = f" at {cell_words(explained[0].cell)}" if len(cells) == 1 else ""
    sources = {explanation.phase.by for explanation in explained}
    gaps = " or ".join(meaning for source, meaning in GAPS_ARE.items() if source in sources)
    unexplained = [label(each.variant) for each in explanations if each.variant not in totals]
    note = (
        f"A bar, and the number beside it, is the {unit} as measured without the profiler. Its gaps are {gaps}; its "
        "other parts are those of the profiled repeat."
    )
    missing = f" Not explained: {', '.join(unexplained)}." if unexplained else ""
    return Chart("waterfall", f"Why a {unit} takes as long as it does{where}", note + missing, draw)
