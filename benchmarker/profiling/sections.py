"""Sections of a profiled repeat by annotations: work is in the section in which the host launched it.

A device runs behind the host, so that the time at which a kernel ran says little of what asked for it. Its launch does:
the trace joins both by a number. Annotations may lie inside each other, on other threads too, as when autograd's own
thread recomputes a layer inside the backward pass; the innermost counts. On a CPU the operator's own start counts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

_MARK = "benchmarker: section "


class Span(NamedTuple):
    """One annotation, on the trace's clock."""

    start_ns: int
    end_ns: int
    section: str


def section_mark(section: str) -> str:
    """Name of the annotation (`record_function`) around work of a section."""
    return _MARK + section


def spans_of(events: Iterable[dict[str, Any]]) -> list[Span]:
    """The annotated sections of a trace, in the order in which they began."""
    spans = []
    for event in events:
        if event.get("ph") == "X" and event.get("cat") == "user_annotation":
            name = str(event.get("name"))
            if name.startswith(_MARK):
                start_ns = round(event["ts"] * 1000)
                spans.append(Span(start_ns, start_ns + round(event["dur"] * 1000), name.removeprefix(_MARK)))
    return sorted(spans)


def launches_ns(events: Iterable[dict[str, Any]]) -> dict[int, int]:
    """When the host launched what, by the number that joins a launch and its work."""
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
    """The innermost section that a moment is in; empty outside of all.

    Args:
        spans: As `spans_of` returns them. Annotations that overlap lie inside each other.
    """
    # Of those that hold the moment the one that began last is the innermost.
    position = bisect_right(spans, moment_ns, key=lambda span: span.start_ns)
    for span in reversed(spans[:position]):
        if moment_ns <= span.end_ns:
            return span.section
    return ""
