"""Raw timed runs in the order of measurement, which show drifts and steps that a mean hides."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from matplotlib.figure import Figure

from benchmarker.comparison.rows import CellKey, cell_of, cell_words
from benchmarker.report.charts.style import Chart, Ink, Series, figure, label
from benchmarker.schema.record import CellBase, Conditions, RunRecord

MOST_SPAN = 20.0
"""Deviation in percent beyond which a run is drawn at the edge of its strip."""
LEAST_SPAN = 2.5
"""Smallest range of a strip in percent, so that tiny noise is not magnified."""


def rounds_chart(
    members: Mapping[str, Sequence[RunRecord]], cell: CellKey | None, looks: dict[str, Series]
) -> Chart | None:
    """Return the deviation of every run from its variant's median, one strip per variant.

    Args:
        members: Records of each variant.
        cell: The first table's cell.
    """
    if cell is None:
        return None
    runs = {name: _latencies(records, cell) for name, records in members.items()}
    runs = {name: by_round for name, by_round in runs.items() if by_round}
    if not runs:
        return None
    off = {name: _off_median(by_round) for name, by_round in runs.items()}
    farthest = max(abs(change) for strips in off.values() for strip in strips for change in strip)
    span = max(LEAST_SPAN, 1.3 * min(farthest, MOST_SPAN))
    most_rounds = max(map(len, runs.values()))

    def draw(ink: Ink) -> Figure:
        drawn, all_axes = figure(0.45 + 0.62 * len(off), rows=len(off))
        for axes, (name, strips) in zip(all_axes, off.items(), strict=True):
            position = 0.0
            for strip in strips:
                places = [position + index for index in range(len(strip))]
                axes.plot(
                    places,
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
        many = "one line a process, by round" if most_rounds > 1 else "one process"
        all_axes[-1].set_xlabel(f"timed runs in order ({many})")
        return drawn

    return Chart(
        "rounds",
        f"Every timed run at {cell_words(cell)}",
        "Latency of each run relative to the variant's median: up is slower, and outliers are drawn at the edge. A "
        "slope is drift; a line that lies apart from "
        "the others of its strip is a process that differs from its repeats.",
        draw,
    )


def _latencies(records: Sequence[RunRecord], cell: CellKey) -> list[list[float]]:
    ordered = sorted(records, key=lambda record: (record.moment, record.started_at))
    cells = [measured for record in ordered if (measured := cell_of(record, cell))]
    return [[sample.latency_s for sample in cell.samples] for cell in cells if cell.status == "ok" and cell.samples]


def _off_median(by_round: Sequence[Sequence[float]]) -> list[list[float]]:
    middle = statistics.median(latency for strip in by_round for latency in strip)
    return [[100 * (latency / middle - 1) for latency in strip] for strip in by_round]


Quantity = tuple[str, Callable[[Conditions], float | None]]
"""Name with unit, and value during the timing of a cell; None if the driver does not report it."""
QUANTITIES: tuple[Quantity, ...] = (
    ("clock, MHz", lambda conditions: conditions.sm_clock_mhz),
    ("hottest, °C", lambda conditions: conditions.temperature_c),
    ("mean power, W", lambda conditions: conditions.power_w),
)


def board_chart(members: Mapping[str, Sequence[RunRecord]], looks: dict[str, Series]) -> Chart | None:
    """Return a strip for each quantity of the board over the time since the first cell.

    Args:
        members: Records of each variant.
    """
    cells = [
        (name, cell)
        for name, records in members.items()
        for record in records
        for cell in record.cells
        if cell.conditions and cell.timed_at
    ]
    quantities = [
        (words, reading_of)
        for words, reading_of in QUANTITIES
        if any(reading_of(cell.conditions) is not None for _, cell in cells if cell.conditions)
    ]
    if not quantities:
        return None
    start_s = min(cell.timed_at[0] for _, cell in cells if cell.timed_at)
    variants = list(dict.fromkeys(name for name, _ in cells))

    def draw(ink: Ink) -> Figure:
        drawn, all_axes = figure(0.6 + 1.05 * len(quantities) + 0.17 * ((len(variants) + 1) // 2), rows=len(quantities))
        for axes, (words, reading_of) in zip(all_axes, quantities, strict=True):
            for name in variants:
                all_points = [_point(cell, reading_of, start_s) for owner, cell in cells if owner == name]
                points = [point for point in all_points if point]
                axes.plot(
                    [minutes for minutes, _ in points],
                    [value for _, value in points],
                    linestyle="none",
                    color=looks[name].colour(ink),
                    marker=looks[name].marker,
                    markersize=4,
                    label=label(name),
                )
            axes.set_title(words, pad=2, fontsize=8)
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


def _point(
    cell: CellBase, reading_of: Callable[[Conditions], float | None], start_s: float
) -> tuple[float, float] | None:
    assert cell.conditions
    assert cell.timed_at
    value = reading_of(cell.conditions)
    return None if value is None else ((sum(cell.timed_at) / 2 - start_s) / 60, value)
