"""The measuring core: warm up at the exact shape, then time n repeats, and leave the clock to the step.

The number of timed repeats is fixed before the first one, and none is dropped: a mean over chosen repeats is a wish.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from benchmarker.core.gc_guard import no_garbage_collection
from benchmarker.hardware.device import Device
from benchmarker.schema.record import Sample
from benchmarker.workloads.base import Step

STABLE_WITHIN = 1.02


@dataclass(frozen=True)
class Measured:
    """The raw repeats of one cell."""

    warmup: tuple[Sample, ...]
    samples: tuple[Sample, ...]
    timed_at: tuple[float, float]
    """Unix times before the first of them and after the last."""
    reserved_bytes: int | None
    resident_bytes: int | None
    flags: tuple[str, ...]


def warm_up(step: Step, *, at_least: int, limit: int) -> tuple[Sample, ...]:
    """Repeat until the last three latencies lie within 2 %, at least `at_least` times, no further than `limit`.

    Extending stops before timing starts: some workloads never settle, and a cell says so with a flag.
    """
    samples: list[Sample] = []
    while len(samples) < at_least or (not is_stable(samples) and len(samples) < limit):
        samples.append(step())
    return tuple(samples)


def is_stable(samples: list[Sample] | tuple[Sample, ...]) -> bool:
    """Whether the last three latencies differ by no more than 2 %."""
    last = [sample.latency_s for sample in samples[-3:]]
    return len(last) == 3 and max(last) <= STABLE_WITHIN * min(last)


def measure(
    step: Step,
    device: Device,
    *,
    warmup: int,
    warmup_limit: int,
    runs: int,
    timed: Callable[[], AbstractContextManager[None]] = nullcontext,
    after_each: Callable[[int, Sample], None] = lambda number, sample: None,
) -> Measured:
    """Time `runs` repeats of the step.

    Args:
        step: Runs once and reads the clock itself, with the device drained at both ends.
        timed: Surrounds the timed repeats; the runtime's guard against what must not happen there.
        after_each: Called between repeats, outside the timed region, with the repeat's number from 1.
    """
    device.release()
    warmed = warm_up(step, at_least=warmup, limit=warmup_limit)
    samples: list[Sample] = []
    reserved = resident = 0
    # A collection in a timed repeat would be ours, not the model's.
    gc.collect()
    with no_garbage_collection(), timed():
        began_s = time.time()
        for number in range(1, runs + 1):
            device.reset_peak()
            sample = step()
            peak = device.peak()
            reserved = max(reserved, peak.reserved_bytes or 0)
            resident = max(resident, peak.resident_bytes or 0)
            sample = sample.model_copy(update={"peak_allocated_bytes": peak.allocated_bytes})
            samples.append(sample)
            after_each(number, sample)
        ended_s = time.time()
    flags = () if is_stable(warmed) else ("unstable_warmup",)
    return Measured(warmed, tuple(samples), (began_s, ended_s), reserved or None, resident or None, flags)
