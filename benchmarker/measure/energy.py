"""Energy of a generation, from the board's own cumulative counter.

The counter is updated about ten times a second, so a window of one second may be off by a fifth; at ten seconds the
edges cost 2 % at most. Whole generations are repeated back to back for a window, after some seconds of the same work,
because a board that warms up leaks more. It is the whole board that is counted, other programs on it included, and
nothing but the board: no processor, no main memory, no power supply.

Generations of one token stand for the prefill, and what is over for the decoding.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarker.core.errors import DeviceError
from benchmarker.hardware.gpu import Gpu
from benchmarker.schema.record import Energy, EnergyWindow

WINDOW_S = 10.0
"""Least length of a window."""
WINDOWS = 3
LEAST_GENERATIONS = 5
SETTLE_S = 3.0
"""Seconds of work before the first window, in which the board warms up."""
AGREES_WITHIN = 1.3
"""The counter's mean power may differ from the mean of the board's power readings by this factor: some boards count
wrongly."""


@dataclass(frozen=True)
class Stopwatch:
    """Time as it passes; a test has its own."""

    now: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], None] = time.sleep


REAL = Stopwatch()


def measure_energy(
    gpu: Gpu | None,
    *,
    generation: Callable[[], object],
    prefill: Callable[[], object] | None,
    watch: Stopwatch = REAL,
) -> Energy:
    """Count the energy of a generation, of its prefill, and of doing nothing; takes a good minute.

    Args:
        gpu: None where no driver library answers.
        generation: Runs one whole generation and returns when the device is drained.
        prefill: The same with a single new token; None where the generation has no more.

    Raises:
        DeviceError: The counter cannot say.
    """
    if gpu is None:
        raise DeviceError("no driver library (NVML, or amdsmi on AMD) answers; only GPUs have the counter")
    _count(gpu)
    idle = _idle_power_w(gpu, watch)
    windows = _windows(gpu, generation, watch)
    return Energy(idle_power_w=idle, generation=windows, prefill=_windows(gpu, prefill, watch) if prefill else ())


def _idle_power_w(gpu: Gpu, watch: Stopwatch) -> float:
    """Mean power of the board in watts, with the model loaded and nothing to do."""
    before, started = _count(gpu), watch.now()
    watch.sleep(WINDOW_S)
    return (_count(gpu) - before) / (watch.now() - started)


def _windows(gpu: Gpu, work: Callable[[], object], watch: Stopwatch) -> tuple[EnergyWindow, ...]:
    """Some windows of work, after some seconds of it in which the board warms up."""
    until = watch.now() + SETTLE_S
    while watch.now() < until:
        work()
    return tuple(_window(gpu, work, watch) for _ in range(WINDOWS))


def _window(gpu: Gpu, work: Callable[[], object], watch: Stopwatch) -> EnergyWindow:
    """Energy of whole generations, back to back for at least ten seconds.

    Raises:
        DeviceError: The counter stands still, or contradicts the board's power readings.
    """
    warm, powers, generations = gpu.temperature_c(), list[float](), 0
    before, started = _count(gpu), watch.now()
    while generations < LEAST_GENERATIONS or watch.now() < started + WINDOW_S:
        work()
        generations += 1
        if (power := gpu.power_w()) is not None:
            powers.append(power)
    counted, lasted = _count(gpu) - before, watch.now() - started
    _check(counted, lasted, powers)
    return EnergyWindow(
        seconds=lasted,
        energy_j=counted,
        generations=generations,
        temperature_before_c=warm,
        temperature_after_c=gpu.temperature_c(),
    )


def _count(gpu: Gpu) -> float:
    """The board's energy counter, in joules since some start.

    Raises:
        DeviceError: There is no counter.
    """
    count = gpu.energy_j()
    if count is None:
        raise DeviceError("this board or its driver has no energy counter")
    return count


def _check(energy_j: float, seconds: float, powers: list[float]) -> None:
    """Refuse a counter that stands still or contradicts the board's power readings."""
    if energy_j <= 0:
        raise DeviceError(f"the board's counter did not move in {seconds:.0f} s of work")
    counted, mean_power_w = energy_j / seconds, statistics.fmean(powers) if powers else None
    if mean_power_w and not 1 / AGREES_WITHIN <= counted / mean_power_w <= AGREES_WITHIN:
        raise DeviceError(
            f"the board's counter says {counted:.0f} W and its power readings {mean_power_w:.0f} W; one is wrong"
        )
