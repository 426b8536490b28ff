"""Enough rounds? It is the width of the intervals that says so, never a verdict.

To go on until a difference is found would find differences that are not there. Rows that wait for the host stay as
wide as the host makes them, and hold nobody up.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from benchmarker.core.console import Terminal
from benchmarker.core.errors import ResultsError
from benchmarker.core.formatting import percent
from benchmarker.core.stats import MIN_ROUNDS, paired_ratio
from benchmarker.schema.collect import collect
from benchmarker.schema.record import RunRecord
from benchmarker.sweep.folder import write_sweep_file
from benchmarker.sweep.state import SweepContext

NARROW = 0.04
"""Width of a speed-up's interval, as a part of the speed-up, below which no more rounds are needed."""
WAITS_FOR_HOST = "eager"
"""Engine whose steps wait for Python on a GPU."""

Times = Mapping[int, float]
"""Median latency by round, in seconds."""


@dataclass(frozen=True)
class Widths:
    """How wide the intervals of the speed-ups are, as parts of the speed-ups, by variant: the widest of its cells."""

    device: dict[str, float]
    host: dict[str, float]
    """Of rows that wait for the host."""

    @property
    def widest(self) -> float | None:
        """None where nothing can be said, as below three rounds."""
        return max(self.device.values(), default=None)


def widths_of(context: SweepContext) -> Widths:
    """From the records in the sweep's folder."""
    records: Iterable[RunRecord] = ()
    with contextlib.suppress(ResultsError):
        records = collect([context.folder]).records
    times = _times(context, records)
    widths = Widths({}, {})
    for (variant, position), by_round in times.items():
        ratio = paired_ratio(times.get((context.request.baseline, position), {}), by_round) if by_round else None
        if variant == context.request.baseline or ratio is None or ratio.low is None or ratio.high is None:
            continue
        side = widths.host if _waits_for_host(context, variant) else widths.device
        side[variant] = max(side.get(variant, 0.0), (ratio.high - ratio.low) / ratio.value)
    return widths


def with_more_rounds(context: SweepContext, count: int, terminal: Terminal) -> SweepContext | None:
    """The sweep with the rounds that are still to be added; None where there are enough, or no more are allowed."""
    most = context.request.max_rounds
    if most is None or context.request.rounds < MIN_ROUNDS:
        return None
    widths = widths_of(context)
    is_wide = widths.widest is not None and widths.widest >= NARROW
    is_late = context.added_until_s is not None and time.monotonic() > context.added_until_s
    rounds = min(most, context.request.rounds + count)
    if not is_wide or is_late or rounds <= context.request.rounds:
        for variant, width in widths.host.items():
            terminal.line(f"{variant}: host-bound, ±{percent(width / 2, places=1)}")
        if widths.widest is not None:
            why = f"; --max-time {context.settings.max_time_s:g} is up" if is_wide and is_late else ""
            half = percent(widths.widest / 2, places=1)
            terminal.line(f"{context.request.rounds} rounds: the widest interval is ±{half}{why}")
        return None
    terminal.line(f"the widest interval is ±{percent((widths.widest or 0.0) / 2, places=1)}: on to {rounds} rounds")
    sweep = context.sweep.model_copy(update={"rounds": rounds})
    write_sweep_file(context.folder, sweep)
    return replace(context, request=replace(context.request, rounds=rounds), sweep=sweep)


def _times(context: SweepContext, records: Iterable[RunRecord]) -> dict[tuple[str, int], dict[int, float]]:
    """By variant and position in the grid."""
    positions = {name: {key: position for position, key in enumerate(keys)} for name, keys in context.keys().items()}
    times: dict[tuple[str, int], dict[int, float]] = defaultdict(dict)
    for record in records:
        for cell in record.cells if record.sweep == context.sweep.started_at else ():
            position = positions.get(record.variant.name, {}).get(cell.key or "")
            if cell.status == "ok" and cell.samples and position is not None:
                median_s = statistics.median(sample.latency_s for sample in cell.samples)
                times[record.variant.name, position][record.round] = median_s
    return times


def _waits_for_host(context: SweepContext, variant: str) -> bool:
    is_eager = getattr(context.job(variant).variant, "engine", None) == WAITS_FOR_HOST
    return is_eager and context.environment.device.kind != "cpu"
