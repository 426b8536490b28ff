"""The events of a Chrome trace as torch.profiler writes it: read, checked, and as intervals in nanoseconds."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarker.core.errors import ResultsError, read_problem
from benchmarker.profiling.table import shortened

# The same on CUDA and ROCm.
DEVICE_CATEGORIES = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
CPU_CATEGORY = "cpu_op"
# No clock reads as much.
_LONGEST_US = 1e18

TraceEvent = dict[str, Any]


class Interval(NamedTuple):
    """One thing that ran: a kernel on a stream, or an operator on a thread."""

    name: str
    start_ns: int
    end_ns: int
    lane: tuple[int, int]
    """Device and stream, or process and thread."""
    launch: int | None = None
    """Number of the launch that it is from; all kernels of a replayed graph share one."""


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
        raise ResultsError(read_problem(path, error)) from error
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list):
        raise ResultsError(f"{path}: not a trace of torch.profiler (no traceEvents)")
    return [event for event in events if isinstance(event, dict)]


def complete_events(events: Iterable[TraceEvent], categories: Container[str]) -> Iterator[TraceEvent]:
    """Events of these categories with a duration; the others mark moments and name threads."""
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
    return _interval(event, (device, stream))._replace(launch=launch)


def operator_interval(event: TraceEvent) -> Interval:
    process, thread = (_whole(event, name, event.get(name)) for name in ("pid", "tid"))
    return _interval(event, (process, thread))


def _interval(event: TraceEvent, lane: tuple[int, int]) -> Interval:
    if event.get("name") is None:
        raise _damaged(event, "name", None)
    # A trace is in microseconds with three decimals.
    start_ns = round(number_in(event, "ts") * 1000)
    return Interval(str(event["name"]), start_ns, start_ns + round(duration_us(event) * 1000), lane)


def duration_us(event: TraceEvent) -> float:
    length_us = number_in(event, "dur")
    if length_us < 0:
        raise _damaged(event, "dur", length_us)
    return length_us


def number_in(event: TraceEvent, key: str) -> float:
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
    problem = "is missing" if value is None else f"is {shortened(repr(value), 40)}"
    name = shortened(str(event.get("name", "without a name")), 60)
    return ResultsError(f"the profiler's trace is damaged: `{key}` of its event {name} {problem}; profile again")
