"""From a Chrome trace of torch.profiler to time on the device.

Only what ran on the device counts: kernels, copies and fills. A trace also holds rows that stand for others, such as
the span of a user annotation on the device (idle gaps included), and adding those in is how a profile comes to 167 %.
Times are whole nanoseconds from here on, so that parts add up exactly.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarker.errors import BenchmarkerError, ResultsError
from benchmarker.record import Kernel

# The same on CUDA and ROCm.
DEVICE_CATEGORIES = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
CPU_CATEGORY = "cpu_op"

TraceEvent = dict[str, Any]


class Interval(NamedTuple):
    """One thing that ran: a kernel on a stream, or an operator on a thread."""

    name: str
    start_ns: int
    end_ns: int
    lane: tuple[int, int]
    """Device and stream, or process and thread."""


class Work(NamedTuple):
    """What a trace comes down to, in seconds as a record has them."""

    kernels: tuple[Kernel, ...]
    """Longest total first."""
    kernel_s: float
    busy_s: float
    span_s: float


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


def device_work(events: Iterable[TraceEvent], *, device_index: int | None = None) -> Work:
    """Kernel totals, busy time and span of one device.

    Args:
        device_index: Which device, where the trace has several.

    Raises:
        BenchmarkerError: Nothing ran on the device, as far as the profiler saw.
    """
    intervals = [_on_device(event) for event in _complete(events) if event.get("cat") in DEVICE_CATEGORIES]
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
    return _work(intervals, [interval.end_ns - interval.start_ns for interval in intervals])


def cpu_work(events: Iterable[TraceEvent]) -> Work:
    """The same from operators on the CPU: an operator's time is its own, without that of the operators it called.

    Raises:
        BenchmarkerError: The trace has no operator.
    """
    intervals = [_on_thread(event) for event in _complete(events) if event.get("cat") == CPU_CATEGORY]
    if not intervals:
        raise BenchmarkerError("profile: the trace has no operator; leave the profile out with --no-profile")
    # Longest first where two start together, so that a caller comes before what it called.
    intervals.sort(key=lambda interval: (interval.lane, interval.start_ns, -interval.end_ns))
    work = _work(intervals, self_times(intervals))
    return work._replace(busy_s=work.kernel_s)


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


def union_ns(spans: Iterable[tuple[int, int]]) -> int:
    """Time during which at least one of the (start, end) spans runs."""
    total, reached = 0, None
    for start, end in sorted(spans):
        if reached is None or start > reached:
            total += end - start
            reached = end
        elif end > reached:
            total += end - reached
            reached = end
    return total


def _contains(outer: Interval, inner: Interval) -> bool:
    return outer.lane == inner.lane and inner.start_ns < outer.end_ns


def _work(intervals: list[Interval], own_ns: list[int]) -> Work:
    totals: dict[str, list[int]] = {}
    for interval, own in zip(intervals, own_ns, strict=True):
        total = totals.setdefault(interval.name, [0, 0])
        total[0] += 1
        total[1] += own
    longest_first = sorted(totals.items(), key=lambda item: (-item[1][1], item[0]))
    start = min(interval.start_ns for interval in intervals)
    end = max(interval.end_ns for interval in intervals)
    return Work(
        kernels=tuple(Kernel(name=name, calls=calls, total_s=ns / 1e9) for name, (calls, ns) in longest_first),
        kernel_s=sum(own_ns) / 1e9,
        busy_s=union_ns((interval.start_ns, interval.end_ns) for interval in intervals) / 1e9,
        span_s=(end - start) / 1e9,
    )


def _complete(events: Iterable[TraceEvent]) -> Iterator[TraceEvent]:
    """Events with a duration; the others mark moments and name threads."""
    return (event for event in events if event.get("ph") == "X" and isinstance(event.get("dur"), int | float))


def _on_device(event: TraceEvent) -> Interval:
    arguments = event.get("args") or {}
    return _interval(event, (int(arguments.get("device", 0)), int(arguments.get("stream", 0))))


def _on_thread(event: TraceEvent) -> Interval:
    return _interval(event, (int(event["pid"]), int(event["tid"])))


def _interval(event: TraceEvent, lane: tuple[int, int]) -> Interval:
    # A trace is in microseconds with three decimals.
    start_ns = round(event["ts"] * 1000)
    return Interval(str(event["name"]), start_ns, start_ns + round(event["dur"] * 1000), lane)
