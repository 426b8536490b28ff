"""Kernel times from a Chrome trace of torch.profiler.

Only kernels, copies and fills count. A trace also contains the span of each user annotation on the device, idle gaps
included; with these spans, a profile would add up to 167 %. Times are whole nanoseconds, so that sums are exact.

A kernel may run in a later section than its launch; it belongs to the section of the launch, which has the same
correlation number in the trace. Annotations can be nested, even on several threads, as when autograd's own thread
recomputes a layer inside the backward pass; the innermost annotation counts.
"""

from __future__ import annotations

import gzip
import json
import zlib
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from benchmarker.core.errors import BenchmarkerError, ResultsError
from benchmarker.profiling.profile_table import shortened
from benchmarker.schema.record import Kernel, KernelTime, Section
from benchmarker.schema.record_io import read_bytes

SECTION_MARK = "benchmarker: section "  # Annotation around a section, before the section's name.
CLOCK_MARK = "benchmarker: clock"  # Annotation around a reading of the host's clock, to convert it to the trace's.
# CUDA and ROCm use the same names.
DEVICE_CATEGORIES = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
CPU_CATEGORY = "cpu_op"
# No clock has larger readings.
_LONGEST_US = 1e18

TraceEvent = dict[str, Any]


class Interval(NamedTuple):
    """Kernel on a stream, or operator on a thread."""

    name: str
    start_ns: int
    end_ns: int
    lane: tuple[int, int]  # Device and stream, or process and thread.
    launch: int | None = None  # Correlation number of the launch; equal for all kernels of a replayed graph.


def read_trace(path: Path) -> list[TraceEvent]:
    """Read the events of a trace file, gzipped or not. Raises ResultsError."""
    raw = read_bytes(path)
    try:
        text = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
        # Kernel names come from compilers: their encoding and control characters are unreliable.
        document = json.loads(text.decode(errors="replace"), strict=False)
    except (EOFError, zlib.error, gzip.BadGzipFile, ValueError) as error:
        raise ResultsError(f"{path}: not a whole trace ({error}); it may have been cut short") from error
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list):
        raise ResultsError(f"{path}: not a trace of torch.profiler (no traceEvents)")
    return [event for event in events if isinstance(event, dict)]


def complete_events(events: Iterable[TraceEvent], categories: Container[str]) -> Iterator[TraceEvent]:
    return (
        event
        for event in events
        if event.get("ph") == "X" and str(event.get("cat")) in categories and event.get("dur") is not None
    )


def device_interval(event: TraceEvent) -> Interval:
    arguments = event.get("args") or {}
    if not isinstance(arguments, dict):
        raise _damaged(event, "args", arguments)
    device, stream = (_whole(event, name, arguments.get(name, 0)) for name in ("device", "stream"))
    correlation = arguments.get("correlation")
    launch = None if correlation is None else _whole(event, "correlation", correlation)
    return _interval(event, (device, stream), launch)


def _interval(event: TraceEvent, lane: tuple[int, int], launch: int | None = None) -> Interval:
    if event.get("name") is None:
        raise _damaged(event, "name", None)
    # A trace is in microseconds with three decimals.
    start_ns = round(number_in(event, "ts") * 1000)
    return Interval(str(event["name"]), start_ns, start_ns + round(duration_us(event) * 1000), lane, launch)


def duration_us(event: TraceEvent) -> float:
    length_us = number_in(event, "dur")
    if length_us < 0:
        raise _damaged(event, "dur", length_us)
    return length_us


def number_in(event: TraceEvent, key: str) -> float:
    value = event.get(key)
    # `not abs(value) <` is True for NaN too.
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _LONGEST_US:
        raise _damaged(event, key, value)
    return value


def _whole(event: TraceEvent, key: str, value: object) -> int:
    try:
        return int(value)  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError, OverflowError):
        raise _damaged(event, key, value) from None


def _damaged(event: TraceEvent, key: str, value: object) -> ResultsError:
    problem = "is missing" if value is None else f"is {shortened(repr(value), 40)}"
    name = shortened(str(event.get("name", "without a name")), 60)
    return ResultsError(f"the profiler's trace is damaged: `{key}` of its event {name} {problem}; profile again")


def launches_ns(events: Iterable[dict[str, Any]]) -> dict[int, int]:
    starts: dict[int, int] = {}
    for event in events:
        arguments = event.get("args")
        # cuda_runtime, cuda_driver, hip_runtime
        is_call = str(event.get("cat")).endswith(("_runtime", "_driver"))
        if event.get("ph") == "X" and is_call and isinstance(arguments, dict):
            correlation, started_us = arguments.get("correlation"), event.get("ts")
            if isinstance(correlation, int) and isinstance(started_us, int | float):
                starts[correlation] = round(started_us * 1000)
    return starts


class Cut(NamedTuple):
    """Start of a section of the profiled repeat; the section ends at the next cut."""

    section: str
    from_ns: int | None
    """Time on the trace's clock. None for the first section, which contains everything before the others."""


class Work(NamedTuple):
    """Totals of a trace, in seconds."""

    kernels: tuple[Kernel, ...]
    kernel_s: float
    busy_s: float
    span_s: float
    sections: dict[str, Section]  # Empty without cuts and annotations, or if all work is in one section.


def device_work(
    events: Sequence[TraceEvent], *, device_indices: Collection[int] = (), cuts: Sequence[Cut] = ()
) -> Work:
    """Return kernel totals, busy time and span of one device, or of several devices that take turns.

    Args:
        device_indices: Devices to use if the trace has several. They count as one device, which is busy while any is.
        cuts: Sections in the order of time. An interval belongs to the section in which it starts.

    Raises:
        BenchmarkerError: The trace has no kernel of the devices, or is damaged.
    """
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
    return _work(intervals, lengths, _sections_of(events, intervals, cuts), may_overlap=True)


def cpu_work(events: Sequence[TraceEvent], *, cuts: Sequence[Cut] = ()) -> Work:
    """Return totals of the operators' self times on the CPU, without called operators. Raises BenchmarkerError."""
    intervals = [
        _interval(event, (_whole(event, "pid", event.get("pid")), _whole(event, "tid", event.get("tid"))))
        for event in complete_events(events, {CPU_CATEGORY})
    ]
    if not intervals:
        raise BenchmarkerError("profile: the trace has no operator; leave the profile out with --no-profile")
    # Longest first if two start together, so a caller precedes its callees.
    intervals.sort(key=lambda interval: (interval.lane, interval.start_ns, -interval.end_ns))
    return _work(intervals, _self_times(intervals), _sections_of(events, intervals, cuts), may_overlap=False)


def on_the_traces_clock(events: Iterable[TraceEvent], cuts: Sequence[Cut], *, marks_ns: Sequence[int]) -> list[Cut]:
    """Convert cuts from the host's clock to the trace's; [] if the trace lacks the annotations CLOCK_MARK."""
    if all(cut.from_ns is None for cut in cuts):
        return list(cuts)
    annotations = (event for event in complete_events(events, {"user_annotation"}) if event.get("name") == CLOCK_MARK)
    marks = sorted((number_in(event, "ts"), duration_us(event)) for event in annotations)
    if not marks or len(marks) != len(marks_ns):
        return []
    # The reading lies inside the annotation, so the shortest annotation is the most accurate.
    (start_us, length_us), mark_ns = min(zip(marks, marks_ns, strict=True), key=lambda pair: pair[0][1])
    ahead_ns = round((start_us + length_us / 2) * 1000) - mark_ns
    return [cut if cut.from_ns is None else cut._replace(from_ns=cut.from_ns + ahead_ns) for cut in cuts]


def _self_times(intervals: list[Interval]) -> list[int]:
    """Return each interval's ns without its children. `intervals` are sorted by lane and start, callers first."""
    lengths_ns = [interval.end_ns - interval.start_ns for interval in intervals]
    callers: list[int] = []
    for index, interval in enumerate(intervals):
        while callers and (
            intervals[callers[-1]].lane != interval.lane or intervals[callers[-1]].end_ns <= interval.start_ns
        ):
            callers.pop()
        if callers:
            lengths_ns[callers[-1]] -= interval.end_ns - interval.start_ns
        callers.append(index)
    # Clock readings are rounded, so children can exceed their parent by a few nanoseconds.
    return [max(0, length_ns) for length_ns in lengths_ns]


def alone_ns(intervals: Sequence[Interval]) -> list[int]:
    """Return, for each interval, the ns in which no earlier interval runs. Their sum is the busy time."""
    alone, reached = [0] * len(intervals), None
    for index in sorted(range(len(intervals)), key=lambda index: (intervals[index].start_ns, intervals[index].end_ns)):
        start, end = intervals[index].start_ns, intervals[index].end_ns
        alone[index] = max(0, end - (start if reached is None else max(start, reached)))
        reached = end if reached is None else max(reached, end)
    return alone


def _work(intervals: list[Interval], lengths_ns: list[int], sections: list[str], *, may_overlap: bool) -> Work:
    together = list(zip(intervals, lengths_ns, sections, strict=True))
    begun = dict.fromkeys(section for _, section in sorted((interval.start_ns, name) for interval, _, name in together))
    facts: dict[str, Section] = {}
    times: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    for section in filter(None, begun) if len(begun) > 1 else ():
        members = [(interval, length_ns) for interval, length_ns, name in together if name == section]
        inside = [interval for interval, _ in members]
        own_times_ns = alone_ns(inside)
        for (interval, length_ns), own_ns in zip(members, own_times_ns, strict=True):
            times[section][interval.name].update(calls=1, ns=length_ns, alone_ns=own_ns)
        launches = {interval.launch for interval in inside}
        facts[section] = Section(
            busy_s=(sum(own_times_ns) if may_overlap else sum(length_ns for _, length_ns in members)) / 1e9,
            span_s=span_of(inside),
            launches=None if None in launches else len(launches),
        )
    totals: dict[str, Counter[str]] = defaultdict(Counter)
    for interval, length_ns, _ in together:
        totals[interval.name].update(calls=1, ns=length_ns)
    kernels = tuple(
        Kernel(
            name=name,
            calls=total["calls"],
            total_s=total["ns"] / 1e9,
            sections={
                section: KernelTime(
                    calls=time["calls"],
                    total_s=time["ns"] / 1e9,
                    alone_s=time["alone_ns"] / 1e9 if may_overlap else None,
                )
                for section, by_name in times.items()
                if (time := by_name.get(name))
            },
        )
        for name, total in sorted(totals.items(), key=lambda item: (-item[1]["ns"], item[0]))
    )
    busy_s = sum(alone_ns(intervals) if may_overlap else lengths_ns) / 1e9
    return Work(kernels, kernel_s=sum(lengths_ns) / 1e9, busy_s=busy_s, span_s=span_of(intervals), sections=facts)


def _sections_of(events: Sequence[TraceEvent], intervals: Sequence[Interval], cuts: Sequence[Cut]) -> list[str]:
    """Return the section of each interval, from the annotation around its launch, else from cuts; '' if neither."""
    annotations = complete_events(events, {"user_annotation"})
    marks = [_interval(event, (0, 0)) for event in annotations if str(event.get("name")).startswith(SECTION_MARK)]
    spans = sorted((mark.start_ns, mark.end_ns, mark.name.removeprefix(SECTION_MARK)) for mark in marks)
    launched_ns = launches_ns(events) if spans else {}
    names = []
    for interval in intervals:
        moment_ns = interval.start_ns
        if interval.launch is not None:
            moment_ns = launched_ns.get(interval.launch, moment_ns)
        # The innermost of nested annotations is the last one to begin.
        before = reversed(spans[: bisect_right(spans, moment_ns, key=itemgetter(0))])
        begun = reversed([cut.section for cut in cuts if cut.from_ns is None or moment_ns >= cut.from_ns])
        around = (section for _, end_ns, section in before if moment_ns <= end_ns) if spans else begun
        names.append(next(iter(around), ""))
    return names


def span_of(intervals: list[Interval]) -> float:
    """Return the seconds from the first start to the last end."""
    return (max(interval.end_ns for interval in intervals) - min(interval.start_ns for interval in intervals)) / 1e9
