"""Table that fills in while a sweep runs: the current median rate of each cell, one row per variant."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tabulate import tabulate

from benchmarker.core.errors import CellStatus
from benchmarker.core.formatting import seconds, significant
from benchmarker.core.tables import plain_line
from benchmarker.schema.record import CellBase, status_words

if TYPE_CHECKING:
    from benchmarker.workloads.base import Workload

UNKNOWN = "·"
RUNNING = "…"


class LiveTable:
    """Headline metric by variant and cell: the median over the rounds so far, or the last failure."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._rates: dict[tuple[str, int], list[float]] = defaultdict(list)
        self._failures: dict[tuple[str, int], CellStatus] = {}

    def add(self, variant: str, position: int, cell: CellBase) -> None:
        """Add one round of a cell; a cell without a rate adds nothing."""
        rate = median_rate(self._workload, cell)
        if rate is not None:
            self._rates[variant, position].append(rate)

    def add_failure(self, variant: str, position: int, status: CellStatus) -> None:
        self._failures[variant, position] = status

    def text(self, variants: Sequence[str], points: Sequence[Any], *, running: Sequence[str] = ()) -> str:
        """Return the table as lines of text.

        Args:
            points: Points of the grid, in order.
            running: Variants that are being measured.
        """
        lines = [
            [plain_line(name), *(self._cell_text((name, position), name in running) for position in range(len(points)))]
            for name in variants
        ]
        headings = [self._workload.rate_unit, *map(self._workload.point_text, points)]
        return tabulate(lines, headings, tablefmt="simple", disable_numparse=True)

    def _cell_text(self, cell: tuple[str, int], is_running: bool) -> str:
        rates = self._rates.get(cell)
        failure = self._failures.get(cell)
        text = significant(statistics.median(rates)) if rates else status_words(failure) if failure else None
        return " ".join([*([text] if text else []), *([RUNNING] if is_running else [])]) or UNKNOWN


def cell_line(workload: Workload, point: Any, cell: CellBase) -> str:
    """Return `26 x 50: 0.1525 s, 327.9 tok/s`, or the status of a cell without a rate."""
    name, rate = workload.point_text(point), median_rate(workload, cell)
    if rate is None:
        return f"{name}: {status_words(cell.status)}"
    latency_s = statistics.median(sample.latency_s for sample in cell.samples)
    return f"{name}: {seconds(latency_s)}, {significant(rate)} {workload.rate_unit}"


def median_rate(workload: Workload, cell: CellBase) -> float | None:
    """Return the headline metric of the median repeat; None unless the cell is valid."""
    if cell.status != "ok":
        return None
    rates = [rate for sample in cell.samples if (rate := workload.rate(cell, sample)) is not None]
    return statistics.median(rates) if rates else None
