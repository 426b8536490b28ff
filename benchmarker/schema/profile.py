"""Kernels of the profiled repeat with their times.

A workload may divide the repeat into named sections, such as `prefill` and `decode`; each ends at the start of the
next.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from benchmarker.schema.base import Count, Plain, Positive, Seconds, Spent, Whole


class KernelTime(Plain):
    """Launches of one kernel in one section."""

    calls: Positive
    total_s: Spent
    alone_s: Spent | None = None
    """Part of `total_s` during which no earlier kernel was running, s. Overlap counts for the earlier kernel, so that
    the times add up to `busy_s`. None on CPU and in older records."""


class Kernel(Plain):
    """All launches of one kernel (on CPU: calls of one operator) in the profiled repeat."""

    name: str
    calls: Positive
    total_s: Spent
    """Sum of device times, s; on CPU the operator's self time."""
    sections: dict[str, KernelTime] = Field(default_factory=dict)
    """Times by section. Empty if the repeat has no sections."""


class Section(Plain):
    """One section of the profiled repeat."""

    busy_s: Spent
    """Union of the intervals of the kernels that started in it, s. On CPU the sum of self times."""
    span_s: Spent | None = None
    """Time from the first kernel's start to the last kernel's end, s. None in older records."""
    launches: Count | None = None
    """Number of launches by the host; a replayed graph is one. None on CPU and in older records."""


class Profile(Plain):
    """One repeat under torch.profiler, after the timing and excluded from statistics."""

    by: Literal["device", "cpu"]
    latency_s: Seconds
    """Latency with the profiler on, s. Not a speed."""
    kernel_s: Spent
    """Sum of all kernel times, s. Percentages are relative to it."""
    busy_s: Spent
    """Union of the kernels' intervals over all streams, s. On CPU equal to `kernel_s`."""
    span_s: Spent
    """Time from the first kernel's start to the last kernel's end, s."""
    kernels: tuple[Kernel, ...]
    """All kernels, the longest total first."""
    sections: dict[str, Section] = Field(default_factory=dict)
    """Sections by name, in order of time. Empty if the repeat has none."""
    peak_allocated_bytes: Whole | None = None
    trace: str | None = None
    """Name of the gzipped Chrome trace beside the record."""

    @property
    def subject(self) -> str:
        """Subject of the profile, in words."""
        return "one call"
