"""From a Chrome trace of torch.profiler to time on the device.

Only what ran on the device counts: kernels, copies and fills. A trace also holds rows that stand for others, such as
the span of a user annotation on the device (idle gaps included), and adding those in is how a profile comes to 167 %.
Times are whole nanoseconds from here on, so that parts add up exactly.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarker.core.errors import BenchmarkerError, ResultsError
from benchmarker.profiling.table import shortened
from benchmarker.schema.record import Kernel

# The same on CUDA and ROCm.
DEVICE_CATEGORIES = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
CPU_CATEGORY = "cpu_op"
# No clock reads as much.
_LONGEST_US = 1e18

TraceEvent = dict[str, Any]


CLOCK_MARK = "benchmarker: clock"
"""An annotation at a known moment, by which the host's clock and the trace's are set against each other."""


class Interval(NamedTuple):
    """One thing that ran: a kernel on a stream, or an operator on a thread."""

    name: str
    start_ns: int
    end_ns: int
    lane: tuple[int, int]
    """Device and stream, or process and thread."""
    launch: int | None = None
    """Number of the launch that it is from; all kernels of a replayed graph share one."""


class Decode(NamedTuple):
    """The part of a trace after the first token."""

    busy_s: float
    span_s: float
    launches: int | None


class Work(NamedTuple):
    """What a trace comes down to, in seconds as a record has them."""

    kernels: tuple[Kernel, ...]
    """Longest total first."""
    kernel_s: float
    busy_s: float
    span_s: float
    decode: Decode | None = None
    """None where no moment was given, or all work is on one side of it."""


def read_trace(path: Path) -> list[TraceEvent]:
    """All events of a trace file, gzipped or not.

    Raises:
        ResultsError: It cannot be read, was cut short, or is no trace.
    """
    try:
        raw = path.read_bytes()
        text = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
        # Kernel names come from compilers: neither their encoding nor their control characters are to be relied on.
        document = json.loads(text.decode(errors="replace"), strict=False)
    except (EOFError, zlib.error, gzip.BadGzipFile, ValueError) as error:
        raise ResultsError(f"{path}: not a whole trace ({error}); it may have been cut short") from error
    except OSError as error:
        raise ResultsError(f"{path}: cannot be read: {error.strerror or error}") from error
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list):
        raise ResultsError(f"{path}: not a trace of torch.profiler (no traceEvents)")
    return [event for event in events if isinstance(event, dict)]


def device_work(
    events: Iterable[TraceEvent], *, device_index: int | None = None, decode_from_ns: int | None = None
) -> Work:
    """Kernel totals, busy time and span of one device.

    Args:
        device_index: Which device, where the trace has several.
        decode_from_ns: When the first token was known, on the trace's clock: what starts later is decoding.

    Raises:
        BenchmarkerError: Nothing ran on the device, as far as the profiler saw.
        ResultsError: The trace is damaged.
    """
    intervals = [_on_device(event) for event in _complete(events, DEVICE_CATEGORIES)]
    devices = {interval.lane[0] for interval in intervals}
    if not devices:
        raise BenchmarkerError(
            "profile: the profiler recorded no kernel (CUPTI on NVIDIA, roctracer on AMD gave none), although work was "
            "done on the GPU; close other profilers, or leave it out with --no-profile"
        )
    # A lone device is ours whatever its number: ROCm has counted the hidden ones in.
    if len(devices) > 1:
        if device_index not in devices:
            numbers = ", ".join(str(device) for device in sorted(devices))
            raise BenchmarkerError(f"profile: the trace has devices {numbers}, none of them is {device_index}")
        intervals = [interval for interval in intervals if interval.lane[0] == device_index]
    lengths = [interval.end_ns - interval.start_ns for interval in intervals]
    return _work(intervals, lengths, decode_from_ns, may_overlap=True)


def cpu_work(events: Iterable[TraceEvent], *, decode_from_ns: int | None = None) -> Work:
    """The same from operators on the CPU: an operator's time is its own, without that of the operators it called.

    Raises:
        BenchmarkerError: The trace has no operator.
        ResultsError: The trace is damaged.
    """
    intervals = [_on_thread(event) for event in _complete(events, {CPU_CATEGORY})]
    if not intervals:
        raise BenchmarkerError("profile: the trace has no operator; leave the profile out with --no-profile")
    # Longest first where two start together, so that a caller comes before what it called.
    intervals.sort(key=lambda interval: (interval.lane, interval.start_ns, -interval.end_ns))
    work = _work(intervals, self_times(intervals), decode_from_ns, may_overlap=False)
    decode = work.decode and work.decode._replace(busy_s=sum(one.decode_s or 0.0 for one in work.kernels))
    return work._replace(busy_s=work.kernel_s, decode=decode)


def on_the_traces_clock(events: Iterable[TraceEvent], moment_ns: int, *, marks_ns: Sequence[int]) -> int | None:
    """A reading of the host's clock as a time of the trace; None where the trace has no such marks.

    Args:
        moment_ns: The reading.
        marks_ns: What the same clock read inside each annotation CLOCK_MARK, in their order.

    Raises:
        ResultsError: The trace is damaged.
    """
    found = (one for one in _complete(events, {"user_annotation"}) if one.get("name") == CLOCK_MARK)
    marks = [(_number(one, "ts"), _duration(one)) for one in found]
    if not marks or len(marks) != len(marks_ns):
        return None
    marks.sort()
    # The reading is somewhere in the annotation: the shortest leaves it least room.
    (start_us, length_us), mark_ns = min(zip(marks, marks_ns, strict=True), key=lambda pair: pair[0][1])
    return round((start_us + length_us / 2) * 1000) + moment_ns - mark_ns


def self_times(intervals: list[Interval]) -> list[int]:
    """Each interval's length less that of the intervals directly inside it, in nanoseconds.

    Args:
        intervals: By lane and start, outer before inner.
    """
    own = [interval.end_ns - interval.start_ns for interval in intervals]
    open_ones: list[int] = []
    for index, interval in enumerate(intervals):
        while open_ones and not _contains(intervals[open_ones[-1]], interval):
            open_ones.pop()
        if open_ones:
            own[open_ones[-1]] -= interval.end_ns - interval.start_ns
        open_ones.append(index)
    # Clock readings are rounded: children can add up to a few nanoseconds more than their parent.
    return [max(0, one) for one in own]


def alone_times(spans: Sequence[tuple[int, int]]) -> list[int]:
    """Of each (start, end), the time in which none that started before it still ran. Together they are the time in
    which at least one ran."""
    alone, reached = [0] * len(spans), None
    for index in sorted(range(len(spans)), key=spans.__getitem__):
        start, end = spans[index]
        alone[index] = max(0, end - (start if reached is None else max(start, reached)))
        reached = end if reached is None else max(reached, end)
    return alone


def _contains(outer: Interval, inner: Interval) -> bool:
    return outer.lane == inner.lane and inner.start_ns < outer.end_ns


def _work(intervals: list[Interval], own_ns: list[int], decode_from_ns: int | None, *, may_overlap: bool) -> Work:
    totals: dict[str, list[int]] = {}
    after = [decode_from_ns is not None and interval.start_ns >= decode_from_ns for interval in intervals]
    is_split = any(after) and not all(after)
    for interval, own, is_decode in zip(intervals, own_ns, after, strict=True):
        total = totals.setdefault(interval.name, [0, 0, 0, 0])
        total[0] += 1
        total[1] += own
        total[2] += is_decode
        total[3] += own * is_decode
    longest_first = sorted(totals.items(), key=lambda item: (-item[1][1], item[0]))
    kernels = tuple(_kernel(name, total, is_split=is_split) for name, total in longest_first)
    decode = [interval for interval, is_decode in zip(intervals, after, strict=True) if is_decode]
    return Work(
        kernels=_with_time_alone(kernels, decode) if is_split and may_overlap else kernels,
        kernel_s=sum(own_ns) / 1e9,
        busy_s=_busy_s(intervals),
        span_s=_span_s(intervals),
        decode=_decode(decode) if is_split else None,
    )


def _kernel(name: str, total: list[int], *, is_split: bool) -> Kernel:
    calls, time_ns, decode_calls, decode_ns = total
    if not is_split:
        return Kernel(name=name, calls=calls, total_s=time_ns / 1e9)
    return Kernel(name=name, calls=calls, total_s=time_ns / 1e9, decode_calls=decode_calls, decode_s=decode_ns / 1e9)


def _with_time_alone(kernels: Iterable[Kernel], decode: list[Interval]) -> tuple[Kernel, ...]:
    alone: Counter[str] = Counter()
    for interval, alone_ns in zip(decode, _alone_ns(decode), strict=True):
        alone[interval.name] += alone_ns
    return tuple(one.model_copy(update={"decode_alone_s": alone[one.name] / 1e9}) for one in kernels)


def _decode(intervals: list[Interval]) -> Decode:
    launches = {interval.launch for interval in intervals}
    return Decode(
        busy_s=_busy_s(intervals),
        span_s=_span_s(intervals),
        launches=None if None in launches else len(launches),
    )


def _busy_s(intervals: list[Interval]) -> float:
    return sum(_alone_ns(intervals)) / 1e9


def _alone_ns(intervals: list[Interval]) -> list[int]:
    return alone_times([(interval.start_ns, interval.end_ns) for interval in intervals])


def _span_s(intervals: list[Interval]) -> float:
    return (max(one.end_ns for one in intervals) - min(one.start_ns for one in intervals)) / 1e9


def _complete(events: Iterable[TraceEvent], categories: Container[str]) -> Iterator[TraceEvent]:
    """Events of these categories with a duration; the others mark moments and name threads."""
    return (
        event
        for event in events
        if event.get("ph") == "X" and str(event.get("cat")) in categories and event.get("dur") is not None
    )


def _on_device(event: TraceEvent) -> Interval:
    arguments = event.get("args") or {}
    if not isinstance(arguments, dict):
        raise _damaged(event, "args", arguments)
    device, stream = (_whole(event, name, arguments.get(name, 0)) for name in ("device", "stream"))
    correlation = arguments.get("correlation")
    launch = None if correlation is None else _whole(event, "correlation", correlation)
    return _interval(event, (device, stream))._replace(launch=launch)


def _on_thread(event: TraceEvent) -> Interval:
    process, thread = (_whole(event, name, event.get(name)) for name in ("pid", "tid"))
    return _interval(event, (process, thread))


def _interval(event: TraceEvent, lane: tuple[int, int]) -> Interval:
    if event.get("name") is None:
        raise _damaged(event, "name", None)
    # A trace is in microseconds with three decimals.
    start_ns = round(_number(event, "ts") * 1000)
    return Interval(str(event["name"]), start_ns, start_ns + round(_duration(event) * 1000), lane)


def _duration(event: TraceEvent) -> float:
    length_us = _number(event, "dur")
    if length_us < 0:
        raise _damaged(event, "dur", length_us)
    return length_us


def _number(event: TraceEvent, key: str) -> float:
    value = event.get(key)
    # Written so that NaN fails it too.
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _LONGEST_US:
        raise _damaged(event, key, value)
    return value


def _whole(event: TraceEvent, key: str, value: object) -> int:
    try:
        return int(value)  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError, OverflowError):
        raise _damaged(event, key, value) from None


def _damaged(event: TraceEvent, key: str, value: object) -> ResultsError:
    found = "is missing" if value is None else f"is {shortened(repr(value), 40)}"
    name = shortened(str(event.get("name", "without a name")), 60)
    return ResultsError(f"the profiler's trace is damaged: `{key}` of its event {name} {found}; profile again")
