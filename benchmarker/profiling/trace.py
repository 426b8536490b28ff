"""Time on the device from a Chrome trace of torch.profiler.

Only kernels, copies and fills count. A trace also contains the span of each user annotation on the device, idle gaps
included; a profile that adds those comes to 167 %. Times are whole nanoseconds, so parts add up exactly.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from benchmarker.core.errors import BenchmarkerError
from benchmarker.profiling.categories import Category, category
from benchmarker.profiling.trace_events import (
    CPU_CATEGORY,
    DEVICE_CATEGORIES,
    Interval,
    TraceEvent,
    complete_events,
    device_interval,
    duration_us,
    launches_ns,
    number_in,
    operator_interval,
    section_at,
    spans_of,
)
from benchmarker.schema.record import Kernel, KernelTime, Section

CLOCK_MARK = "benchmarker: clock"
"""Annotation at a known moment, which relates the host's clock to the trace's."""


class Cut(NamedTuple):
    """Start of a section of the profiled repeat, which ends at the next cut."""

    section: str
    from_ns: int | None
    """Time on the trace's clock. None for the first section, which contains everything before the others."""


class Work(NamedTuple):
    """Totals of a trace, in seconds."""

    kernels: tuple[Kernel, ...]
    """Longest total first."""
    kernel_s: float
    busy_s: float
    span_s: float
    sections: dict[str, Section]
    """Empty without cuts and annotations, or if all work is in one section."""


def device_work(
    events: Iterable[TraceEvent], *, device_indices: Collection[int] = (), cuts: Sequence[Cut] = ()
) -> Work:
    """Return kernel totals, busy time and span of one device, or of several devices that take turns.

    Args:
        device_indices: Devices to use if the trace has several. They count as one device, which is busy while any is.
        cuts: Sections in the order of time. An interval belongs to the section in which it starts.

    Raises:
        BenchmarkerError: The trace has no kernel of the devices.
        ResultsError: The trace is damaged.
    """
    events = list(events)
    intervals = [device_interval(event) for event in complete_events(events, DEVICE_CATEGORIES)]
    devices = {interval.lane[0] for interval in intervals}
    if not devices:
        raise BenchmarkerError(
            "profile: the profiler recorded no kernel (CUPTI on NVIDIA, roctracer on AMD gave none), although work was "
            "done on the GPU; close other profilers, or leave it out with --no-profile"
        )
    # A single device is used whatever its number, because ROCm also counts hidden devices.
    if len(devices) > 1:
        if not devices.intersection(device_indices):
            numbers, required = (", ".join(map(str, sorted(group))) for group in (devices, device_indices))
            raise BenchmarkerError(f"profile: the trace has devices {numbers}, none of them is {required}")
        intervals = [interval for interval in intervals if interval.lane[0] in device_indices]
    lengths = [interval.end_ns - interval.start_ns for interval in intervals]
    launched_ns = launches_ns(events)
    moments = [
        interval.start_ns if interval.launch is None else launched_ns.get(interval.launch, interval.start_ns)
        for interval in intervals
    ]
    return _work(intervals, lengths, _sections_of(events, moments) or _cut(intervals, cuts), may_overlap=True)


def cpu_work(events: Iterable[TraceEvent], *, cuts: Sequence[Cut] = ()) -> Work:
    """Return totals of the operators on the CPU, each without the time of the operators that it called.

    Raises:
        BenchmarkerError: The trace has no operator.
        ResultsError: The trace is damaged.
    """
    events = list(events)
    intervals = [operator_interval(event) for event in complete_events(events, {CPU_CATEGORY})]
    if not intervals:
        raise BenchmarkerError("profile: the trace has no operator; leave the profile out with --no-profile")
    # Longest first if two start together, so a caller precedes its callees.
    intervals.sort(key=lambda interval: (interval.lane, interval.start_ns, -interval.end_ns))
    sections = _sections_of(events, [interval.start_ns for interval in intervals]) or _cut(intervals, cuts)
    work = _work(intervals, self_times(intervals), sections, may_overlap=False)
    return work._replace(busy_s=work.kernel_s)


def on_the_traces_clock(events: Iterable[TraceEvent], moment_ns: int, *, marks_ns: Sequence[int]) -> int | None:
    """Convert a reading of the host's clock to the trace's clock; None if the trace has no marks.

    Args:
        moment_ns: Reading of the host's clock.
        marks_ns: Readings of the same clock inside the annotations CLOCK_MARK, in order.

    Raises:
        ResultsError: The trace is damaged.
    """
    annotations = (event for event in complete_events(events, {"user_annotation"}) if event.get("name") == CLOCK_MARK)
    marks = [(number_in(event, "ts"), duration_us(event)) for event in annotations]
    if not marks or len(marks) != len(marks_ns):
        return None
    marks.sort()
    # The reading lies inside the annotation, so the shortest annotation is the most accurate.
    (start_us, length_us), mark_ns = min(zip(marks, marks_ns, strict=True), key=lambda pair: pair[0][1])
    return round((start_us + length_us / 2) * 1000) + moment_ns - mark_ns


def self_times(intervals: list[Interval]) -> list[int]:
    """Return each interval's length without the intervals directly inside it, in nanoseconds.

    Args:
        intervals: Sorted by lane and start, outer before inner.
    """
    lengths_ns = [interval.end_ns - interval.start_ns for interval in intervals]
    callers: list[int] = []
    for index, interval in enumerate(intervals):
        while callers and not _contains(intervals[callers[-1]], interval):
            callers.pop()
        if callers:
            lengths_ns[callers[-1]] -= interval.end_ns - interval.start_ns
        callers.append(index)
    # Clock readings are rounded, so children can exceed their parent by a few nanoseconds.
    return [max(0, length_ns) for length_ns in lengths_ns]


def alone_times(spans: Sequence[tuple[int, int]]) -> list[int]:
    """Return for each (start, end) the time without an earlier one. The sum is the time with at least one."""
    alone, reached = [0] * len(spans), None
    for index in sorted(range(len(spans)), key=spans.__getitem__):
        start, end = spans[index]
        alone[index] = max(0, end - (start if reached is None else max(start, reached)))
        reached = end if reached is None else max(reached, end)
    return alone


def _contains(outer: Interval, inner: Interval) -> bool:
    return outer.lane == inner.lane and inner.start_ns < outer.end_ns


def _work(intervals: list[Interval], lengths_ns: list[int], sections: list[str], *, may_overlap: bool) -> Work:
    totals: dict[str, Counter[str]] = {}
    times: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    for interval, length_ns, section in zip(intervals, lengths_ns, sections, strict=True):
        totals.setdefault(interval.name, Counter()).update(calls=1, ns=length_ns)
        times[section][interval.name].update(calls=1, ns=length_ns)
    if len(times) < 2:
        times.clear()
    inside: dict[str, list[Interval]] = {name: [] for name in times}
    for interval, section in zip(intervals, sections, strict=True):
        if section in inside:
            inside[section].append(interval)
    if may_overlap:
        for name, members in inside.items():
            for interval, alone_ns in zip(members, _alone_ns(members), strict=True):
                times[name][interval.name].update(alone_ns=alone_ns)
    longest_first = sorted(totals.items(), key=lambda item: (-item[1]["ns"], item[0]))
    begun = sorted((interval.start_ns, section) for interval, section in zip(intervals, sections, strict=True))
    in_order = [section for section in dict.fromkeys(section for _, section in begun) if section and section in times]
    return Work(
        kernels=tuple(
            Kernel(
                name=name,
                calls=total["calls"],
                total_s=total["ns"] / 1e9,
                sections={
                    section: _kernel_time(times[section][name], may_overlap=may_overlap)
                    for section in in_order
                    if name in times[section]
                },
            )
            for name, total in longest_first
        ),
        kernel_s=sum(lengths_ns) / 1e9,
        busy_s=_busy_s(intervals),
        span_s=_span_s(intervals),
        sections={
            name: _section(inside[name], sum(time["ns"] for time in times[name].values()), may_overlap=may_overlap)
            for name in in_order
        },
    )


def _sections_of(events: Iterable[TraceEvent], moments_ns: Iterable[int]) -> list[str]:
    """Return the annotated section of each moment; an empty list without annotations."""
    spans = spans_of(events)
    return [section_at(spans, moment_ns) for moment_ns in moments_ns] if spans else []


def _cut(intervals: Iterable[Interval], cuts: Sequence[Cut]) -> list[str]:
    """Return the section of each interval by cuts; one section without a name if there are none."""
    names = []
    for interval in intervals:
        begun = [cut.section for cut in cuts if cut.from_ns is None or interval.start_ns >= cut.from_ns]
        names.append(begun[-1] if begun else "")
    return names


def _kernel_time(time: Counter[str], *, may_overlap: bool) -> KernelTime:
    return KernelTime(
        calls=time["calls"], total_s=time["ns"] / 1e9, alone_s=time["alone_ns"] / 1e9 if may_overlap else None
    )


def _section(intervals: list[Interval], total_ns: int, *, may_overlap: bool) -> Section:
    launches = {interval.launch for interval in intervals}
    return Section(
        busy_s=_busy_s(intervals) if may_overlap else total_ns / 1e9,
        span_s=_span_s(intervals),
        launches=None if None in launches else len(launches),
    )


def _busy_s(intervals: list[Interval]) -> float:
    return sum(_alone_ns(intervals)) / 1e9


def _alone_ns(intervals: list[Interval]) -> list[int]:
    return alone_times([(interval.start_ns, interval.end_ns) for interval in intervals])


def _span_s(intervals: list[Interval]) -> float:
    first_ns = min(interval.start_ns for interval in intervals)
    return (max(interval.end_ns for interval in intervals) - first_ns) / 1e9


class KindTime(NamedTuple):
    """Seconds of one category of kernels."""

    busy_s: float
    """Time with at least one of its kernels."""
    alone_s: float
    """Time without kernels of other categories."""


class Overlap(NamedTuple):
    """Overlap of the categories of kernels on one device."""

    span_s: float
    """Time from the first kernel's start to the last kernel's end."""
    busy_s: float
    """Time with at least one kernel."""
    kinds: Mapping[Category, KindTime]


def overlap_of(events: Iterable[TraceEvent], *, device_index: int | None = None) -> Overlap | None:
    """Return the overlap of the kernels of one device; None without kernels.

    Args:
        device_index: Device to use if the trace has several.
    """
    intervals = [device_interval(event) for event in complete_events(events, DEVICE_CATEGORIES)]
    if len({interval.lane[0] for interval in intervals}) > 1:
        intervals = [interval for interval in intervals if interval.lane[0] == device_index]
    return overlap([(interval.start_ns, interval.end_ns, category(interval.name)) for interval in intervals])


def overlap(intervals: Iterable[tuple[int, int, Category]]) -> Overlap | None:
    """Return the overlap of intervals (start, end, category) in nanoseconds."""
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
