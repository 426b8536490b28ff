"""The GPU over the sweep: clocks, temperature and power while each cell was timed, where a driver told them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from matplotlib.figure import Figure

from benchmarker.report.charts.style import Chart, Ink, Series, figure, label
from benchmarker.schema.environment import Conditions
from benchmarker.schema.record import CellBase, RunRecord

Quantity = tuple[str, Callable[[Conditions], float | None]]
"""Its name with the unit, and its value while a cell was timed; None where the driver did not say."""
QUANTITIES: tuple[Quantity, ...] = (
    ("clock, MHz", lambda conditions: conditions.sm_clock_mhz),
    ("hottest, °C", lambda conditions: conditions.temperature_c),
    ("mean power, W", lambda conditions: conditions.power_w),
)


def board_chart(members: Mapping[str, Sequence[RunRecord]], looks: dict[str, Series]) -> Chart | None:
    """A strip for each quantity that any cell knows, over the time since the first cell.

    Args:
        members: Each variant's records.
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
    """Minutes since the first cell, and the quantity; None where the driver did not tell it."""
    assert cell.conditions
    assert cell.timed_at
    value = reading_of(cell.conditions)
    return None if value is None else ((sum(cell.timed_at) / 2 - start_s) / 60, value)
