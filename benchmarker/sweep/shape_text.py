"""What a sweep says, in words."""

from __future__ import annotations

import statistics

from benchmarker.comparison.words import status_words
from benchmarker.core.units import seconds, significant
from benchmarker.schema.experiment import Point
from benchmarker.schema.record import Cell


def shape_words(point: Point) -> str:
    """`26 x 100`, `26 x 100, batch 4`, or a text prompt's beginning."""
    prompt = str(point.prompt_tokens) if point.prompt is None else repr(point.prompt[:24])
    batch = f", batch {point.batch_size}" if point.batch_size > 1 else ""
    depth = f", depth {point.depth}" if point.depth else ""
    return f"{prompt} x {point.new_tokens}{batch}{depth}"


def cell_line(point: Point, cell: Cell) -> str:
    """`26 x 50: 0.1525 s, 327.9 tok/s`, or why there is no number."""
    latency_s, rate = _median_latency_s(cell), rate_of(cell)
    if latency_s is None or rate is None:
        return f"{shape_words(point)}: {status_words(cell.status)}"
    return f"{shape_words(point)}: {seconds(latency_s)}, {significant(rate)} tok/s"


def rate_of(cell: Cell) -> float | None:
    """tok/s of the median run; None where nothing counts."""
    latency_s = _median_latency_s(cell)
    return None if latency_s is None else cell.batch_size * cell.new_tokens / latency_s


def _median_latency_s(cell: Cell) -> float | None:
    if cell.status != "ok" or not cell.samples:
        return None
    return statistics.median(sample.latency_s for sample in cell.samples)
