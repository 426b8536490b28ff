"""What a record says of the profiled generation: kernels with their times, and how they lie in time."""

from __future__ import annotations

from typing import Literal

from benchmarker.schema.base import Number, Plain, Seconds, Whole


class Kernel(Plain):
    """All launches of one kernel (or, on CPU, all calls of one operator) in the profiled generation."""

    name: str
    calls: Whole
    total_s: Number
    """Summed device time; on CPU the operator's self time."""
    decode_calls: Whole | None = None
    """How many of them came after the first token; the others are prefill. None where the two are not told apart."""
    decode_s: Number | None = None
    """Time of those."""
    decode_alone_s: Number | None = None
    """What of it no kernel that had started before was still running: of two that overlap, the earlier has the time of
    both, so that these add up to `decode_busy_s`. A kernel that is launched while the one before it ends (programmatic
    dependent launch) first waits for it. None on CPU, and in records from before it was kept."""


class Profile(Plain):
    """One generation under torch.profiler, after the timing and in no statistic."""

    by: Literal["device", "cpu"]
    prompt_tokens: Whole
    new_tokens: Whole
    batch_size: Whole
    depth: Whole | None = None
    """Tokens in the cache before the prompt. None in records from before it was kept."""
    latency_s: Seconds
    """With the profiler on: never to be quoted as a speed."""
    kernel_s: Number
    """Sum of all kernels' time: what the percentages are of."""
    busy_s: Number
    """Union of the kernels' intervals over all streams. On CPU the same as `kernel_s`."""
    span_s: Number
    """From the first kernel's start to the last one's end."""
    kernels: tuple[Kernel, ...]
    """Every kernel, longest total first."""
    decode_busy_s: Number | None = None
    """Union of the kernels' intervals after the first token. None where prefill and decode are not told apart."""
    decode_span_s: Number | None = None
    """From the first of those kernels' start to the last one's end."""
    decode_launches: Whole | None = None
    """Times that the host gave the device work after the first token: a replayed graph is one, with all its kernels.
    None on CPU, and where the tracer does not say which launch a kernel is from."""
    peak_allocated_bytes: Whole | None = None
    trace: str | None = None
    """Name of the gzipped Chrome trace beside the record."""
