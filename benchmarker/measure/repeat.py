"""Warm up at the exact shape, then time n repeats of a step, which reads the clock itself (`measure/clock.py`).

The number of timed repeats is fixed before the first one, and none is dropped: dropping repeats would bias the mean.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Generic, TypeVar

from benchmarker.core.process import no_garbage_collection
from benchmarker.hardware.device import Device, PeakMemory
from benchmarker.schema.record import Flag, Memory, SampleBase

STABLE_WITHIN = 1.02
LEAST_S = 0.020  # Shortest useful repeat. In shorter ones the clock, the launch and the wait for the device dominate.
MOST_CALLS = 10_000

SampleKind = TypeVar("SampleKind", bound=SampleBase)
Step = Callable[[], SampleKind]
"""Function that runs one repeat, reads the clock on a synchronized device, and returns the raw times."""


@dataclass(frozen=True)
class Measured(Generic[SampleKind]):
    warmup: tuple[SampleKind, ...]
    samples: tuple[SampleKind, ...]
    timed_at: tuple[float, float]  # Unix times before the first timed repeat and after the last one.
    memory: Memory  # Peaks over the timed repeats.
    flags: tuple[Flag, ...]


def calls_needed(total_s: Callable[[int], float]) -> int:
    """Return the number of calls that take 20 ms in total, at most 10,000; `total_s(n)` runs and times n calls."""
    total_s(1)
    calls = 1
    while calls < MOST_CALLS:
        taken_s = total_s(calls)
        if taken_s >= LEAST_S:
            break
        # A tenth more than needed, so that the next try is usually the last; no more than ten times, as the first calls
        # are slow.
        calls = min(10 * calls, math.ceil(1.1 * calls * LEAST_S / taken_s), MOST_CALLS)
    return calls


def latency_of(sample: SampleBase) -> tuple[float, ...]:
    return (sample.latency_s,)


def warm_up(
    step: Step[SampleKind],
    *,
    at_least: int,
    limit: int,
    times: Callable[[SampleKind], tuple[float, ...]] = latency_of,
    after_each: Callable[[int, SampleKind], None] = lambda number, sample: None,
) -> tuple[SampleKind, ...]:
    """Run `at_least` to `limit` repeats, until each value of `times` varied by at most 2 % in the last three."""
    samples: list[SampleKind] = []
    while len(samples) < at_least or (not is_stable(samples, times) and len(samples) < limit):
        samples.append(step())
        after_each(len(samples), samples[-1])
    return tuple(samples)


def is_stable(samples: Sequence[SampleKind], times: Callable[[SampleKind], tuple[float, ...]] = latency_of) -> bool:
    last = [times(sample) for sample in samples[-3:]]
    return len(last) == 3 and all(max(values) <= STABLE_WITHIN * min(values) for values in zip(*last, strict=True))


def measure(
    step: Step[SampleKind],
    device: Device,
    *,
    warmup: int,
    warmup_limit: int,
    runs: int,
    times: Callable[[SampleKind], tuple[float, ...]] = latency_of,
    timed: Callable[[], AbstractContextManager[None]] = nullcontext,
    after_each: Callable[[int, SampleKind], None] = lambda number, sample: None,
    after_warmup: Callable[[int, SampleKind], None] = lambda number, sample: None,
) -> Measured[SampleKind]:
    """Warm up until `times` are stable, then time `runs` repeats of the step within the context manager `timed`.

    `after_each` gets number (from 1) and sample of each timed repeat, outside the timed region.
    """
    device.release()
    warmed = warm_up(step, at_least=warmup, limit=warmup_limit, times=times, after_each=after_warmup)
    samples: list[SampleKind] = []
    peaks: list[PeakMemory] = []
    # Python's garbage collection must not run in a timed repeat.
    gc.collect()
    with no_garbage_collection(), timed():
        began_s = time.time()
        for number in range(1, runs + 1):
            device.reset_peak()
            sample = step()
            peaks.append(device.peak_memory())
            samples.append(sample.model_copy(update={"peak_allocated_bytes": peaks[-1].allocated_bytes}))
            after_each(number, samples[-1])
        ended_s = time.time()
    unstable: Flag = "unstable_ttft" if is_stable(warmed) else "unstable_warmup"
    flags = () if is_stable(warmed, times) else (unstable,)
    return Measured(warmed, tuple(samples), (began_s, ended_s), memory_of(peaks), flags)


def memory_of(peaks: Sequence[PeakMemory]) -> Memory:
    """Return the largest peaks of several repeats. Peaks exclude the CUDA context and cuBLAS workspaces."""

    def largest(values: Iterable[int | None]) -> int | None:
        return max((value for value in values if value is not None), default=None)

    return Memory(
        peak_allocated_bytes=largest(peak.allocated_bytes for peak in peaks),
        peak_reserved_bytes=largest(peak.reserved_bytes for peak in peaks),
        peak_resident_bytes=largest(peak.resident_bytes for peak in peaks),
        resident_growth_bytes=largest(peak.growth_bytes for peak in peaks),
    )
