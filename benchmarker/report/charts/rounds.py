"""Raw timed runs in the order of measurement, which show drifts and steps that a mean hides."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import chain

from matplotlib.figure import Figure

from benchmarker.comparison.rows import CellKey, cell_of, cell_words
from benchmarker.report.charts.style import Chart, Ink, Series, figure, label
from benchmarker.schema.record import RunRecord

MOST_SPAN = 20.0
"""Deviation in percent beyond which a run is drawn at the edge of its strip."""
LEAST_SPAN = 2.5
"""Smallest range of a strip in percent, so that tiny noise is not magnified."""
QUANTITIES = {"sm_clock_mhz": "clock, MHz", "temperature_c": "hottest, °C", "power_w": "mean power, W"}
"""Titles of the strips by the field of `Conditions`, which is None if the driver does not report it."""


def rounds_chart(
    members: Mapping[str, Sequence[RunRecord]], cell: CellKey | None, looks: dict[str, Series]
) -> Chart | None:
    """Return the deviation of every run from its variant's median in the first table's cell, one strip per variant."""
    if cell is None:
        return None
    off = {name: changes for name, records in members.items() if (changes := _off_median(records, cell))}
    if not off:
        return None
    farthest = max(abs(change) for strips in off.values() for strip in strips for change in strip)
    span = max(LEAST_SPAN, 1.3 * min(farthest, MOST_SPAN))

    def draw(ink: Ink) -> Figure:
        drawn, all_axes = figure(0.45 + 0.62 * len(off), rows=len(off))
        for axes, (name, strips) in zip(all_axes, off.items(), strict=True):
            position = 0.0
            for strip in strips:
                axes.plot(
                    [position + index for index in range(len(strip))],
                    [min(max(change, -span), span) for change in strip],
                    color=looks[name].colour(ink),
                    marker=looks[name].marker,
                    markersize=3.2,
                    linewidth=0.8,
                )
                position += len(strip) + 1.5
            axes.axhline(0, color=ink.faint, linewidth=1, zorder=0)
            axes.set_ylim(-span, span)
            axes.set_title(label(name), pad=2, fontsize=8)
            axes.grid(visible=False, axis="x")
            axes.tick_params(axis="x", length=0, labelbottom=False)
            axes.tick_params(axis="y", labelsize=7)
        drawn.supylabel("% off the variant's median", fontsize=8)
        many = "one line a process, by round" if max(map(len, off.values())) > 1 else "one process"
        all_axes[-1].set_xlabel(f"timed runs in order ({many})")
        return drawn

    return Chart(
        "rounds",
        f"Every timed run at {cell_words(cell)}",
        "Latency of each run relative to the variant's median: up is slower, and outliers are drawn at the edge. A "
        "slope is drift; a line that lies apart from the others of its strip is a process that differs from its "
        "repeats.",
        draw,
    )


def _off_median(records: Sequence[RunRecord], cell: CellKey) -> list[list[float]]:
    """Return the deviations in percent of each process's runs, in the order of the rounds."""
    ordered = sorted(records, key=lambda record: (record.moment, record.started_at))
    cells = [measured for record in ordered if (measured := cell_of(record, cell)) and measured.status == "ok"]
    strips = [[sample.latency_s for sample in measured.samples] for measured in cells if measured.samples]
    if not strips:
        return []
    median_s = statistics.median(chain.from_iterable(strips))
    return [[100 * (latency_s / median_s - 1) for latency_s in strip] for strip in strips]


def board_chart(members: Mapping[str, Sequence[RunRecord]], looks: dict[str, Series]) -> Chart | None:
    """Return a strip for each quantity of the board over the time since the first cell."""
    cells = [
        (name, cell.timed_at, cell.conditions)
        for name, records in members.items()
        for record in records
        for cell in record.cells
        if cell.conditions and cell.timed_at
    ]
    shown = [name for name in QUANTITIES if any(getattr(conditions, name) is not None for *_, conditions in cells)]
    if not shown:
        return None
    start_s = min(timed_at[0] for _, timed_at, _ in cells)
    variants = list(dict.fromkeys(name for name, *_ in cells))

    def draw(ink: Ink) -> Figure:
        drawn, all_axes = figure(0.6 + 1.05 * len(shown) + 0.17 * ((len(variants) + 1) // 2), rows=len(shown))
        for axes, quantity in zip(all_axes, shown, strict=True):
            for variant in variants:
                points = [
                    ((sum(timed_at) / 2 - start_s) / 60, value)
                    for name, timed_at, conditions in cells
                    if name == variant and (value := getattr(conditions, quantity)) is not None
                ]
                axes.plot(
                    [minutes for minutes, _ in points],
                    [value for _, value in points],
                    linestyle="none",
                    color=looks[variant].colour(ink),
                    marker=looks[variant].marker,
                    markersize=4,
                    label=label(variant),
                )
            axes.set_title(QUANTITIES[quantity], pad=2, fontsize=8)
            axes.margins(y=0.15)
        all_axes[-1].set_xlabel("minutes since the first cell")
        handles, labels = all_axes[0].get_legend_handles_labels()
        drawn.legend(handles, labels, loc="outside lower left", ncols=2, handletextpad=0.1, columnspacing=1)
        return drawn

    return Chart(
        "board",
        "Clock, temperature and power over the measurement",
        "One mark a cell and process, read through the driver while it was timed. Variants at different clocks are two "
        "measurements of the board as well.",
        draw,
    )
