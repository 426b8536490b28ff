"""What a record says of the profiled generation: kernels with their times, and how they lie in time."""

from __future__ import annotations

from typing import Literal

from benchmarker.schema.base import Count, Plain, Positive, Seconds, Spent


class Kernel(Plain):
    """All launches of one kernel (or, on CPU, all calls of one operator) in the profiled generation."""

    name: str
    calls: Positive
    total_s: Spent
    """Summed device time; on CPU the operator's self time."""
    decode_calls: Count | None = None
    """How many of them came after the first token; the others are prefill. None where the two are not told apart."""
    decode_s: Spent | None = None
    """Time of those."""
    decode_alone_s: Spent | None = None
    """What of it no kernel that had started before was still running: of two that overlap, the earlier has the time of
    both, so that these add up to `decode_busy_s`. A kernel that is launched while the one before it ends (programmatic
    dependent launch) first waits for it. None on CPU, and in records from before it was kept."""


class Profile(Plain):
    """One generation under torch.profiler, after the timing and in no statistic."""

    by: Literal["device", "cpu"]
    prompt_tokens: Positive
    new_tokens: Positive
    batch_size: Positive
    depth: Count | None = None
    """Tokens in the cache before the prompt. None in records from before it was kept."""
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
    decode_busy_s: Spent | None = None
    """Union of the kernels' intervals after the first token. None where prefill and decode are not told apart."""
    decode_span_s: Spent | None = None
    """From the first of those kernels' start to the last one's end."""
    decode_launches: Count | None = None
    """Times that the host gave the device work after the first token: a replayed graph is one, with all its kernels.
    None on CPU, and where the tracer does not say which launch a kernel is from."""
    peak_allocated_bytes: Count | None = None
    trace: str | None = None
    """Name of the gzipped Chrome trace beside the record."""
