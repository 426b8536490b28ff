"""Events of a Chrome trace that torch.profiler wrote: read, checked, as intervals in nanoseconds, and their sections.

A device runs behind the host, so the time at which a kernel ran does not show which section requested it. Its launch
does: the trace joins both by a number. Annotations may lie inside each other, on other threads too, as when autograd's
own thread recomputes a layer inside the backward pass; the innermost counts.
"""

from __future__ import annotations

import gzip
import json
import zlib
from bisect import bisect_right
from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarker.core.errors import ResultsError, read_problem
from benchmarker.profiling.profile_table import shortened

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
    lane: tuple[int, int]
    """Device and stream, or process and thread."""
    launch: int | None = None
    """Number of its launch, which all kernels of a replayed graph share."""


def read_trace(path: Path) -> list[TraceEvent]:
    """Read the events of a trace file, gzipped or not. Raises ResultsError."""
    try:
        raw = path.read_bytes()
        text = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
        # Kernel names come from compilers: their encoding and control characters are unreliable.
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


_MARK = "benchmarker: section "


class Span(NamedTuple):
    """Annotation of a section, on the trace's clock."""

    start_ns: int
    end_ns: int
    section: str


def section_mark(section: str) -> str:
    return _MARK + section


def spans_of(events: Iterable[TraceEvent]) -> list[Span]:
    """Return the annotated sections of a trace in the order of their starts."""
    spans = []
    for event in complete_events(events, {"user_annotation"}):
        name = str(event.get("name"))
        if name.startswith(_MARK):
            start_ns = round(event["ts"] * 1000)
            spans.append(Span(start_ns, start_ns + round(event["dur"] * 1000), name.removeprefix(_MARK)))
    return sorted(spans)


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


def section_at(spans: Sequence[Span], moment_ns: int) -> str:
    """Return the innermost section at a moment; empty outside all sections, which never overlap in part."""
    # The innermost section is the last one to begin.
    position = bisect_right(spans, moment_ns, key=lambda span: span.start_ns)
    for span in reversed(spans[:position]):
        if moment_ns <= span.end_ns:
            return span.section
    return ""
