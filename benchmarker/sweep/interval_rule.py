"""Rule by which a sweep adds rounds: the width of the intervals, never a verdict.

Continuing until a difference is found would find differences that do not exist. Variants whose steps wait for the host
keep intervals as wide as the host makes them, and do not extend the sweep.
"""

from __future__ import annotations

from benchmarker.comparison.results import results_of_records
from benchmarker.core.console import Terminal
from benchmarker.core.errors import ResultsError
from benchmarker.core.formatting import percent
from benchmarker.core.stats import MIN_ROUNDS
from benchmarker.engines.registry import HOST_BOUND_ENGINES
from benchmarker.schema.record_io import collect
from benchmarker.sweep.sweep_state import Sweep

NARROW = 0.04
"""Relative width of a speed-up's interval below which no more rounds are needed."""


def widths_of(sweep: Sweep, baseline: str | None) -> tuple[dict[str, float], dict[str, float]]:
    """Compute the relative width of each variant's widest interval of a speed-up.

    Returns:
        The widths of variants that the device limits, and of those whose steps wait for the host.
    """
    device: dict[str, float] = {}
    host: dict[str, float] = {}
    try:
        records = [record for record in collect([sweep.folder]).records if record.sweep == sweep.started_at]
        results = results_of_records(records, sweep_baseline=baseline, force=True) if records else None
    except ResultsError:
        results = None
    for row in results.rows if results else ():
        ratio = row.speed_up.ratio if row.speed_up else None
        if results is None or ratio is None or ratio.low is None or ratio.high is None:
            continue
        variant = results.members[row.variant][0].variant.name
        job = sweep.jobs[variant]
        is_gpu = job.origin is not None and job.origin.environment.device.kind != "cpu"
        waits_for_host = is_gpu and getattr(job.variant, "engine", None) in HOST_BOUND_ENGINES
        side = host if waits_for_host else device
        side[variant] = max(side.get(variant, 0.0), (ratio.high - ratio.low) / ratio.value)
    return device, host


def more_rounds(
    sweep: Sweep, baseline: str | None, rounds: int, limit: int | None, terminal: Terminal, *, count: int, is_late: bool
) -> int:
    """Return the new number of rounds; the present one if that is enough, or no more are allowed.

    Args:
        limit: Largest number of rounds; None if none are added.
        count: Rounds that are added at once.
    """
    if limit is None or rounds < MIN_ROUNDS:
        return rounds
    widths, host_widths = widths_of(sweep, baseline)
    widest = max(widths.values(), default=None)
    is_wide = widest is not None and widest >= NARROW
    increased = min(limit, rounds + count)
    if is_wide and not is_late and increased > rounds:
        terminal.line(f"the widest interval is {_half(widest)}: adding rounds, up to {increased}")
        return increased
    for variant, width in host_widths.items():
        terminal.line(f"{variant}: host-bound, {_half(width)}")
    if widest is not None:
        reason = f"; --max-time {sweep.settings.max_time_s:g} is up" if is_wide and is_late else ""
        terminal.line(f"{rounds} rounds: the widest interval is {_half(widest)}{reason}")
    return rounds


def _half(width: float | None) -> str:
    return f"±{percent((width or 0.0) / 2, places=1)}"
