"""Profile one repeat with torch.profiler, which slows the host by half or more: only shares of time are valid.

Shapes are not recorded, because recording them keeps tensors alive and changes the memory peak of the repeat.
"""

from __future__ import annotations

import contextlib
import gzip
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarker.core.errors import ResultsError
from benchmarker.hardware.device import Device
from benchmarker.profiling import chrome_trace
from benchmarker.profiling.chrome_trace import Cut, TraceEvent
from benchmarker.schema.record import Profile, SampleBase
from benchmarker.schema.record_io import UNFINISHED

Trace = Callable[[Callable[[], object], Path], None]  # Profiles a function in another process; writes the trace.
MARKS = 5  # Number of clock marks. The first annotation of a trace is slow, and any one can be interrupted.


def profile_step(
    step: Callable[[], SampleBase],
    *,
    device: Device,
    trace_path: Path | None,
    cuts: Callable[[], Sequence[Cut]] = tuple,
    trace: Trace | None = None,
) -> Profile:
    """Profile a warmed-up step. `cuts()` returns its sections, which start at readings of `time.perf_counter_ns`,
    unless they are annotated in the `trace` of another process."""
    marks_ns: list[int] = []
    latencies_s: list[float] = []

    def marked_step() -> None:
        marks_ns.extend(_marks())
        latencies_s.append(step().latency_s)

    if trace is None:
        warm_up_profiler(device)
        device.synchronize()
        device.reset_peak()
    events = trace_of(marked_step, device, kept_at=trace_path, trace=trace)
    sections = chrome_trace.on_the_traces_clock(events, cuts(), marks_ns=marks_ns)
    on_cpu = device.kind == "cpu"
    if on_cpu:
        work = chrome_trace.cpu_work(events, cuts=sections)
    else:
        work = chrome_trace.device_work(events, device_indices=device.indices, cuts=sections)
    return Profile(
        by="cpu" if on_cpu else "device",
        latency_s=latencies_s[0],
        **work._asdict(),
        peak_allocated_bytes=None if trace else device.peak_memory().allocated_bytes,
        trace=trace_path.name if trace_path else None,
    )


def count_kernels(work: Callable[[], object], device: Device) -> int:
    kernels = chrome_trace.device_work(trace_of(work, device), device_indices=device.indices).kernels
    return sum(kernel.calls for kernel in kernels)


def trace_of(
    work: Callable[[], object], device: Device, *, kept_at: Path | None = None, trace: Trace | None = None
) -> list[TraceEvent]:
    with tempfile.TemporaryDirectory(prefix="benchmarker-") as folder:
        exported = Path(folder) / "trace.json"
        if trace:
            trace(work, exported)
        else:
            device.synchronize()
            with _profiler(device) as profiler:
                work()
                device.synchronize()
            profiler.export_chrome_trace(str(exported))
        events = chrome_trace.read_trace(exported)
        if kept_at is not None:
            _keep(exported, kept_at)
    return events


def _profiler(device: Device) -> profile:
    # torch names ROCm's tracer CUDA too.
    on_device = [] if device.kind == "cpu" else [ProfilerActivity.CUDA]
    return profile(activities=[ProfilerActivity.CPU, *on_device])


def warm_up_profiler(device: Device) -> None:
    """Set up the tracer in advance; otherwise the profiled step would include its set-up, up to seconds."""
    with _profiler(device):
        _marks()
        torch.ones(1, device=device.torch_name).add_(1)
        device.synchronize()


def _marks() -> list[int]:
    readings_ns = []
    for _ in range(MARKS):
        with record_function(chrome_trace.CLOCK_MARK):
            readings_ns.append(time.perf_counter_ns())
    return readings_ns


def _keep(trace: Path, destination: Path) -> None:
    partial = destination.with_name(f".{destination.name}{UNFINISHED}")
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        # Level 5: a trace is tens of megabytes of repetition, and 9 takes several times as long for little gain.
        with trace.open("rb") as source, gzip.open(partial, "wb", compresslevel=5) as target:
            shutil.copyfileobj(source, target)
        partial.replace(destination)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise ResultsError(f"{destination}: trace not saved: {error.strerror or error}") from error
