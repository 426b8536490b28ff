"""Instruments compared with reference values: if one of them is wrong, no number from this machine is reliable.

- Clock: the system's raw clock on the host; a kernel that spins for a given number of clock cycles on a GPU.
- Memory: an allocation of given size.
- Energy: mean power times the time, both from the driver.
- Bandwidth: the limit from the memory clock and the bus width.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from benchmarker.core.formatting import GIB
from benchmarker.hardware.device import Device
from benchmarker.hardware.gpu import Gpu, find_gpu
from benchmarker.measure.device_limits import measure_limits

SLEEP_S = 0.2
CLOCK_TRIES = 20
SPIN_S = 0.2
CPU_BLOCK_BYTES = 2**28
GPU_BLOCK_BYTES = 2**30
ENERGY_WINDOW_S = 5.0
POWER_STEP_S = 0.1


@dataclass(frozen=True)
class Reading:
    """Value that an instrument measured, and the expected value. None for a value that this machine does not have."""

    instrument: str
    unit: str
    expected: float | None
    measured: float | None
    within: tuple[float, float]  # Limits of measured / expected.
    remark: str

    @property
    def is_right(self) -> bool | None:
        if self.expected is None or self.measured is None:
            return None
        low, high = self.within
        return low <= self.measured / self.expected <= high


def readings(device: Device) -> Iterator[Reading]:
    gpu = find_gpu(device)
    yield _clock(device, gpu)
    yield _memory(device)
    yield _bandwidth(device, gpu)
    yield _energy(device, gpu)


def _clock(device: Device, gpu: Gpu | None) -> Reading:
    if device.kind == "cpu":
        return _host_clock()
    reading = partial(Reading, "clock", "ms", within=(0.97, 1.03))
    if device.kind == "rocm":
        return reading(None, None, remark="the cycles of a spinning kernel differ between AMD cards")
    with torch.cuda.device(device.torch_name):
        # An idle GPU has a lower clock than one on which a kernel spins.
        torch.cuda._sleep(int(5e8))
        torch.cuda._sleep(int(5e8))
        time.sleep(0.1)
        clock_mhz = gpu.clock_mhz() if gpu else None
        device.synchronize()
        if clock_mhz is None:
            return reading(None, None, remark="the driver does not report the clock")
        # The host times the kernel like every repeat, with the device synchronized before and after.
        started_ns = time.perf_counter_ns()
        torch.cuda._sleep(int(SPIN_S * 1e6 * clock_mhz))
        device.synchronize()
        spun_ms = (time.perf_counter_ns() - started_ns) / 1e6
    return reading(1e3 * SPIN_S, spun_ms, remark="a kernel of known cycles")


def _host_clock() -> Reading:
    within, remark = (0.999, 1.001), "the system's raw clock over a sleep"
    started_ns, raw_started_ns = _both_clocks_ns()
    time.sleep(SLEEP_S)
    ended_ns, raw_ended_ns = _both_clocks_ns()
    return Reading("clock", "ms", (raw_ended_ns - raw_started_ns) / 1e6, (ended_ns - started_ns) / 1e6, within, remark)


def _both_clocks_ns() -> tuple[int, int]:
    raw_ns = partial(time.clock_gettime_ns, time.CLOCK_MONOTONIC_RAW)
    tries = [(raw_ns(), time.perf_counter_ns(), raw_ns()) for _ in range(CLOCK_TRIES)]
    # The shortest of several tries reads both clocks nearly at the same moment.
    before, clock_ns, after = min(tries, key=lambda three: three[2] - three[0])
    return clock_ns, (before + after) // 2


def _memory(device: Device) -> Reading:
    """Compare the growth of the peak memory with the size of an allocated tensor."""
    size = CPU_BLOCK_BYTES if device.kind == "cpu" else GPU_BLOCK_BYTES
    device.release()
    device.reset_peak()
    before = _mark(device)
    block = torch.ones(size, dtype=torch.uint8, device=device.torch_name)
    device.synchronize()
    after = _mark(device)
    del block
    device.release()
    taken_gib = None if before is None or after is None else (after - before) / GIB
    within = (0.95, 1.1) if device.kind == "cpu" else (0.999, 1.001)
    return Reading("memory", "GiB", size / GIB, taken_gib, within, "one tensor")


def _mark(device: Device) -> int | None:
    peak = device.peak_memory()
    return peak.resident_bytes if peak.allocated_bytes is None else peak.allocated_bytes


def _bandwidth(device: Device, gpu: Gpu | None) -> Reading:
    limits = measure_limits(device, "float32" if device.kind == "cpu" else "float16")
    expected = gpu.memory_bytes_per_s() if gpu else None
    remark = "the memory's clock and bus width" if expected else "the limit of the memory is unknown"
    # No program reaches the limit; a higher value is an error of benchmarker.
    measured = limits.read_bytes_per_s / 1e9
    return Reading("bandwidth", "GB/s", expected and expected / 1e9, measured, (0.6, 1.02), remark)


def _energy(device: Device, gpu: Gpu | None) -> Reading:
    within = (0.8, 1.2)
    if gpu is None:
        why = "no counter on a processor" if device.kind == "cpu" else "no NVML or amdsmi"
        return Reading("energy", "J", None, None, within, why)
    first, second = (torch.randn(4096, 4096, device=device.torch_name, dtype=torch.float16) for _ in range(2))

    def work() -> None:
        until = time.perf_counter() + POWER_STEP_S
        while time.perf_counter() < until:
            for _ in range(20):
                torch.mm(first, second)
            device.synchronize()

    expected, measured = energy_and_power(gpu, work, window_s=ENERGY_WINDOW_S)
    return Reading("energy", "J", expected, measured, within, "mean power times the time, under load")


def energy_and_power(
    gpu: Gpu, work: Callable[[], Any], *, window_s: float, clock: Callable[[], float] = time.perf_counter
) -> tuple[float | None, float | None]:
    """Return two energies in J: mean power times the time, and the counter's growth; None if not reported."""
    work()
    before, started = gpu.energy_j(), clock()
    powers: list[float] = []
    while clock() < started + window_s:
        work()
        if (power := gpu.power_w()) is not None:
            powers.append(power)
    after, elapsed = gpu.energy_j(), clock() - started
    expected = statistics.fmean(powers) * elapsed if powers else None
    return expected, None if before is None or after is None else after - before
