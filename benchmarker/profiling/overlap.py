"""What of the device's time is only one kind of work, such as communication that nothing else hides.

Kernels of several streams run at once, so that their sums say nothing of the time that they cost. Here each moment of
the span counts once: for the kinds of work that run in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from benchmarker.profiling.categories import Category, category
from benchmarker.profiling.trace_events import DEVICE_CATEGORIES, TraceEvent, complete_events, device_interval


class KindTime(NamedTuple):
    """Seconds of one kind of work."""

    busy_s: float
    """In which at least one kernel of it ran."""
    alone_s: float
    """In which nothing of another kind ran."""


class Overlap(NamedTuple):
    """The span of some work on one device."""

    span_s: float
    """From the first kernel's start to the last one's end."""
    busy_s: float
    """In which at least one kernel ran."""
    kinds: Mapping[Category, KindTime]


def overlap_of(events: Iterable[TraceEvent], *, device_index: int | None = None) -> Overlap | None:
    """The kinds of work of one device; None where nothing ran on it.

    Args:
        device_index: Which device, where the trace has several.
    """
    intervals = [device_interval(event) for event in complete_events(events, DEVICE_CATEGORIES)]
    if len({interval.lane[0] for interval in intervals}) > 1:
        intervals = [interval for interval in intervals if interval.lane[0] == device_index]
    return overlap([(interval.start_ns, interval.end_ns, category(interval.name)) for interval in intervals])


def overlap(intervals: Iterable[tuple[int, int, Category]]) -> Overlap | None:
    """The same of (start, end, kind) in nanoseconds."""
    changes: list[tuple[int, int, Category]] = []
    for start_ns, end_ns, kind in intervals:
        changes += [(start_ns, 1, kind), (end_ns, -1, kind)]
    if not changes:
        return None
    changes.sort()
    running: Counter[Category] = Counter()
    busy: Counter[Category] = Counter()
    alone: Counter[Category] = Counter()
    any_ns, before_ns = 0, changes[0][0]
    for moment_ns, change, kind in changes:
        kinds = [name for name, count in running.items() if count]
        length_ns, before_ns = moment_ns - before_ns, moment_ns
        any_ns += length_ns if kinds else 0
        for name in kinds:
            busy[name] += length_ns
        if len(kinds) == 1:
            alone[kinds[0]] += length_ns
        running[kind] += change
    span_ns = changes[-1][0] - changes[0][0]
    return Overlap(
        span_ns / 1e9,
        any_ns / 1e9,
        {name: KindTime(busy_ns / 1e9, alone[name] / 1e9) for name, busy_ns in busy.items()},
    )
