"""Energy of a generation, from the GPU's own cumulative counter.

The counter is updated about ten times a second, so that a window of ten seconds is off by 2 % at most. The counter
includes other programs on the GPU. Three seconds of work precede the windows, because leakage grows with temperature.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from benchmarker.core.errors import DeviceError
from benchmarker.hardware.gpu import Gpu
from benchmarker.schema.record import Energy, EnergyWindow

WINDOW_S = 10.0
WINDOWS = 3
LEAST_GENERATIONS = 5
SETTLE_S = 3.0
AGREES_WITHIN = 1.3  # Largest accepted ratio between the mean power by the counter and by the power readings.


def measure_energy(
    gpu: Gpu | None, *, generation: Callable[[], object], prefill: Callable[[], object] | None
) -> Energy:
    """Measure the energy of generations and of prefills (one new token), and idle power. Raises DeviceError."""
    count_energy_j(gpu)
    assert gpu is not None
    before, started = count_energy_j(gpu), time.perf_counter()
    time.sleep(WINDOW_S)
    idle_power_w = (count_energy_j(gpu) - before) / (time.perf_counter() - started)
    of_generation, of_prefill = _windows(gpu, generation), _windows(gpu, prefill) if prefill else ()
    return Energy(idle_power_w=idle_power_w, generation=of_generation, prefill=of_prefill)


def _windows(gpu: Gpu, work: Callable[[], object]) -> tuple[EnergyWindow, ...]:
    until = time.perf_counter() + SETTLE_S
    while time.perf_counter() < until:
        work()
    return tuple(_window(gpu, work) for _ in range(WINDOWS))


def _window(gpu: Gpu, work: Callable[[], object]) -> EnergyWindow:
    warm, powers, generations = gpu.temperature_c(), list[float](), 0
    before, started = count_energy_j(gpu), time.perf_counter()
    while generations < LEAST_GENERATIONS or time.perf_counter() < started + WINDOW_S:
        work()
        generations += 1
        if (power := gpu.power_w()) is not None:
            powers.append(power)
    energy_j, seconds = count_energy_j(gpu) - before, time.perf_counter() - started
    if energy_j <= 0:
        raise DeviceError(f"the board's counter did not move in {seconds:.0f} s of work")
    counted, mean_power_w = energy_j / seconds, statistics.fmean(powers) if powers else None
    if mean_power_w and not 1 / AGREES_WITHIN <= counted / mean_power_w <= AGREES_WITHIN:
        powers_w = f"{counted:.0f} W and the power readings {mean_power_w:.0f} W"
        raise DeviceError(f"the energy counter gives {powers_w}; one is wrong")
    return EnergyWindow(
        seconds=seconds,
        energy_j=energy_j,
        generations=generations,
        temperature_before_c=warm,
        temperature_after_c=gpu.temperature_c(),
    )


def count_energy_j(gpu: Gpu | None) -> float:
    """Return the board's cumulative energy counter, whose differences are energies in J. Raises DeviceError."""
    if gpu is None:
        raise DeviceError("no driver library (NVML, or amdsmi on AMD) answers; only GPUs have the counter")
    if (count := gpu.energy_j()) is None:
        raise DeviceError("this board or its driver has no energy counter")
    return count
