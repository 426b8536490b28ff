"""What a sweep says of a cell, in words."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from benchmarker.core.formatting import seconds, significant
from benchmarker.schema.record import CellBase
from benchmarker.schema.status_words import status_words

if TYPE_CHECKING:
    from benchmarker.workloads.base import Workload


def cell_line(workload: Workload, point: Any, cell: CellBase) -> str:
    """`26 x 50: 0.1525 s, 327.9 tok/s`, or why there is no number."""
    words, rate = workload.point_text(point), rate_of(workload, cell)
    if rate is None:
        return f"{words}: {status_words(cell.status)}"
    latency_s = statistics.median(sample.latency_s for sample in cell.samples)
    return f"{words}: {seconds(latency_s)}, {significant(rate)} {workload.rate_unit}"


def rate_of(workload: Workload, cell: CellBase) -> float | None:
    """Headline metric of the median repeat; None where nothing counts."""
    if cell.status != "ok":
        return None
    rates = [rate for sample in cell.samples if (rate := workload.rate(cell, sample)) is not None]
    return statistics.median(rates) if rates else None
