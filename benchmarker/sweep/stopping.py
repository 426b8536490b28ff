"""Enough rounds? It is the width of the intervals that says so, never a verdict.

To go on until a difference is found would find differences that are not there. Rows that wait for the host stay as
wide as the host makes them, and hold nobody up.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from benchmarker.comparison.results import results_of_records
from benchmarker.core.console import Terminal
from benchmarker.core.errors import ResultsError
from benchmarker.core.formatting import percent
from benchmarker.core.stats import MIN_ROUNDS
from benchmarker.schema.collect import collect
from benchmarker.sweep.folder import write_sweep_file
from benchmarker.sweep.state import SweepContext

NARROW = 0.04
"""Width of a speed-up's interval, as a part of the speed-up, below which no more rounds are needed."""
WAITS_FOR_HOST = "eager"
"""Engine whose steps wait for Python on a GPU."""


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
    widths = Widths({}, {})
    try:
        collected = collect([context.folder])
        records = [record for record in collected.records if record.sweep == context.sweep.started_at]
        if not records:
            return widths
        results = results_of_records(records, sweep_baseline=context.request.baseline, force=True)
    except ResultsError:
        return widths
    for row in results.rows:
        ratio = row.speed_up.ratio if row.speed_up else None
        if ratio is None or ratio.low is None or ratio.high is None:
            continue
        variant = results.members[row.variant][0].variant.name
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


def _waits_for_host(context: SweepContext, variant: str) -> bool:
    is_eager = getattr(context.job(variant).variant, "engine", None) == WAITS_FOR_HOST
    return is_eager and context.environment.device.kind != "cpu"
