"""What a record says of the profiled repeat: kernels with their times, and how they lie in time.

A workload may cut the repeat into named sections, such as `prefill` and `decode`, each of which ends where the next one
begins.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from benchmarker.schema.base import Count, Plain, Positive, Seconds, Spent, Whole


class KernelTime(Plain):
    """One kernel's launches in one section."""

    calls: Positive
    total_s: Spent
    alone_s: Spent | None = None
    """What of `total_s` no kernel that had started before was still running: of two that overlap, the earlier has the
    time of both, so that these add up to the section's `busy_s`. A kernel that is launched while the one before it ends
    (programmatic dependent launch) first waits for it. None on CPU, and in records from before it was kept."""


class Kernel(Plain):
    """All launches of one kernel (or, on CPU, all calls of one operator) in the profiled repeat."""

    name: str
    calls: Positive
    total_s: Spent
    """Summed device time; on CPU the operator's self time."""
    sections: dict[str, KernelTime] = Field(default_factory=dict)
    """What of it is in each section, by the section's name; a section in which it did not run is left out. Empty where
    the sections are not told apart."""


class Section(Plain):
    """A part of the profiled repeat."""

    busy_s: Spent
    """Union of the intervals of the kernels that started in it. On CPU the sum of the operators' self times."""
    span_s: Spent | None = None
    """From the first of those kernels' start to the last one's end. None in records from before it was kept."""
    launches: Count | None = None
    """Times that the host gave the device work in it: a replayed graph is one, with all its kernels. None on CPU, where
    the tracer does not say which launch a kernel is from, and in records from before it was kept."""


class Profile(Plain):
    """One repeat under torch.profiler, after the timing and in no statistic."""

    by: Literal["device", "cpu"]
    latency_s: Seconds
    """With the profiler on: never to be quoted as a speed."""
    kernel_s: Spent
    """Sum of all kernels' time: what the percentages are of."""
    busy_s: Spent
    """Union of the kernels' intervals over all streams. On CPU the same as `kernel_s`."""
    span_s: Spent
    """From the first kernel's start to the last one's end."""
    kernels: tuple[Kernel, ...]
    """Every kernel, longest total first."""
    sections: dict[str, Section] = Field(default_factory=dict)
    """By name, in the order of time. Empty where they are not told apart."""
    peak_allocated_bytes: Whole | None = None
    trace: str | None = None
    """Name of the gzipped Chrome trace beside the record."""

    @property
    def subject(self) -> str:
        """Name of what was profiled."""
        return "one call"
