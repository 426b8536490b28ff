"""The table that fills in while a sweep runs: what each cell gives so far, a row a variant."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tabulate import tabulate

from benchmarker.core.formatting import significant
from benchmarker.core.tables import plain_line
from benchmarker.schema.record import CellBase
from benchmarker.schema.status import CellStatus
from benchmarker.schema.status_words import status_words
from benchmarker.sweep.cell_text import rate_of

if TYPE_CHECKING:
    from benchmarker.workloads.base import Workload

UNKNOWN = "·"
RUNNING = "…"


class LiveTable:
    """The headline metric by variant and cell: the median over the rounds so far, or how the last try ended."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._rates: dict[tuple[str, int], list[float]] = defaultdict(list)
        self._faults: dict[tuple[str, int], CellStatus] = {}

    def take(self, variant: str, position: int, cell: CellBase) -> None:
        """Add a round of a cell; a cell without a rate adds nothing."""
        rate = rate_of(self._workload, cell)
        if rate is not None:
            self._rates[variant, position].append(rate)

    def fail(self, variant: str, position: int, status: CellStatus) -> None:
        """Say how a cell failed that was given up in this round."""
        self._faults[variant, position] = status

    def table(self, variants: Sequence[str], shapes: Sequence[str], *, running: str | None = None) -> str:
        """The table as lines of text.

        Args:
            shapes: Of the grid's cells, in their order.
            running: The variant that is being measured.
        """
        lines = [
            [plain_line(name), *(self._words((name, position), name == running) for position in range(len(shapes)))]
            for name in variants
        ]
        return tabulate(lines, [self._workload.rate_unit, *shapes], tablefmt="simple", disable_numparse=True)

    def _words(self, cell: tuple[str, int], is_running: bool) -> str:
        rates = self._rates.get(cell)
        fault = self._faults.get(cell)
        words = significant(statistics.median(rates)) if rates else status_words(fault) if fault else None
        return " ".join([*([words] if words else []), *([RUNNING] if is_running else [])]) or UNKNOWN
