"""How the board is while something is measured on it: clock, temperature, power, and what holds it back.

Sampled ten times a second through the driver, from another process than the one that is measured: a call inside it
would be part of what is timed. A board that throttles makes its variant look slow, and says so here.

Neither NVML nor amdsmi is required; without an answer there is no monitor.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

from benchmarker.record import Conditions, Environment

PERIOD_S = 0.1
KEPT = 10 * 3600 * 2
"""Samples: two hours of them."""

COOL_DOWN_S = 120.0
COOL_STEP_S = 1.0
COOL_WITHIN_C = 5.0

NVIDIA_REASONS = {
    0x4: "power_cap",
    0x8: "hardware_slowdown",
    0x20: "thermal",
    0x40: "hardware_thermal",
    0x80: "power_brake",
}
"""nvml.h, nvmlClocksEventReason*. Idle, application clocks, sync boost and display are no one's slowdown."""
HELD_BACK = frozenset({"hardware_slowdown", "thermal", "hardware_thermal", "power_brake"})
"""What makes a measurement invalid. A power cap does not: it is how the board is built."""
LOW_CLOCK = 0.75
"""Below this part of the default clock a measurement is invalid, as NVBench has it."""


@dataclass(frozen=True)
class Reading:
    """The board at one moment. None for what it does not say."""

    at_s: float
    """Unix time."""
    sm_clock_mhz: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    throttled_by: frozenset[str] = frozenset()


class Gauge(Protocol):
    """A board that can be read."""

    @property
    def full_clock_mhz(self) -> int | None:
        """The clock that it runs at by default."""

    def read(self) -> Reading: ...


class NvidiaGauge:
    """A card through NVML."""

    def __init__(self, nvml: ModuleType, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self.full_clock_mhz: int | None = self._ask("nvmlDeviceGetDefaultApplicationsClock", nvml.NVML_CLOCK_SM)

    def read(self) -> Reading:
        nvml = self._nvml
        milliwatts = self._ask("nvmlDeviceGetPowerUsage")
        reasons = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons") or 0
        return Reading(
            at_s=time.time(),
            sm_clock_mhz=self._ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
            temperature_c=self._ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
            power_w=None if milliwatts is None else milliwatts / 1000,
            throttled_by=frozenset(word for bit, word in NVIDIA_REASONS.items() if reasons & bit),
        )

    def _ask(self, function: str, *arguments: Any) -> Any | None:
        try:
            return getattr(self._nvml, function)(self._handle, *arguments)
        except self._nvml.NVMLError:
            return None


class AmdGauge:
    """A card through amdsmi, all from its one table of metrics."""

    full_clock_mhz = None

    def __init__(self, amdsmi: ModuleType, handle: Any) -> None:
        self._amdsmi = amdsmi
        self._handle = handle

    def read(self) -> Reading:
        now = time.time()
        try:
            metrics = self._amdsmi.amdsmi_get_gpu_metrics_info(self._handle)
        except self._amdsmi.AmdSmiException:
            return Reading(now)
        return Reading(
            at_s=now,
            sm_clock_mhz=_number(metrics, "current_gfxclk"),
            temperature_c=_number(metrics, "temperature_hotspot"),
            power_w=_number(metrics, "current_socket_power", "average_socket_power"),
            # Which bit means what differs between generations of cards.
            throttled_by=frozenset({"unspecified"} if _number(metrics, "throttle_status") else ()),
        )


class Monitor:
    """Readings of one board, taken in the background."""

    def __init__(self, gauge: Gauge) -> None:
        self._gauge = gauge
        self._readings: deque[Reading] = deque(maxlen=KEPT)
        self._stop = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Take readings meanwhile."""
        self._stop.clear()
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def between(self, start_s: float, end_s: float) -> Conditions | None:
        """How the board was from one Unix time to another; None if it was never read meanwhile."""
        return conditions(
            [one for one in list(self._readings) if start_s <= one.at_s <= end_s],
            full_clock_mhz=self._gauge.full_clock_mhz,
        )

    def cool_down(self, *, limit_s: float = COOL_DOWN_S) -> None:
        """Wait until the board is no more than 5 degrees warmer than when it was first read."""
        first = next((one.temperature_c for one in list(self._readings) if one.temperature_c is not None), None)
        until = time.monotonic() + limit_s
        while first is not None and time.monotonic() < until:
            now = self._gauge.read().temperature_c
            if now is None or now <= first + COOL_WITHIN_C:
                return
            time.sleep(COOL_STEP_S)

    def _run(self) -> None:
        while not self._stop.wait(PERIOD_S):
            self._readings.append(self._gauge.read())


def conditions(readings: Iterable[Reading], *, full_clock_mhz: int | None) -> Conditions | None:
    """Many readings in one; None of none."""
    taken = list(readings)
    if not taken:
        return None
    clocks = [one.sm_clock_mhz for one in taken if one.sm_clock_mhz is not None]
    temperatures = [one.temperature_c for one in taken if one.temperature_c is not None]
    powers = [one.power_w for one in taken if one.power_w is not None]
    return Conditions(
        samples=len(taken),
        sm_clock_mhz=round(statistics.median(clocks)) if clocks else None,
        sm_clock_full_mhz=full_clock_mhz,
        temperature_c=float(max(temperatures)) if temperatures else None,
        power_w=statistics.fmean(powers) if powers else None,
        throttled_by=tuple(sorted(frozenset().union(*(one.throttled_by for one in taken)))),
    )


def why_invalid(seen: Conditions) -> str | None:
    """Why a measurement under these conditions says nothing of its variant; None if it does."""
    held = [reason for reason in seen.throttled_by if reason in HELD_BACK]
    if held:
        return f"the board was throttled meanwhile ({', '.join(held).replace('_', ' ')})"
    if seen.sm_clock_mhz and seen.sm_clock_full_mhz and seen.sm_clock_mhz < LOW_CLOCK * seen.sm_clock_full_mhz:
        return f"the clock was {seen.sm_clock_mhz} MHz of {seen.sm_clock_full_mhz}"
    return None


def find_monitor(environment: Environment) -> Monitor | None:
    """A monitor of the device; None on CPU, and where no library answers."""
    device = environment.device
    if device.kind == "cuda" and device.uuid:
        return _nvidia_monitor(device.uuid)
    if device.kind == "rocm" and device.uuid:
        return _amd_monitor(device.uuid)
    return None


def _nvidia_monitor(uuid: str) -> Monitor | None:
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        return Monitor(NvidiaGauge(pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid)))
    except pynvml.NVMLError:
        return None


def _amd_monitor(uuid: str) -> Monitor | None:
    try:
        import amdsmi
    except (ImportError, OSError, KeyError, AttributeError):
        # Importing it loads a library of ROCm, and fails in these ways where that is missing or does not match.
        return None
    try:
        amdsmi.amdsmi_init()
        for handle in amdsmi.amdsmi_get_processor_handles():
            if str(amdsmi.amdsmi_get_gpu_device_uuid(handle)) == uuid:
                return Monitor(AmdGauge(amdsmi, handle))
    except amdsmi.AmdSmiException:
        return None
    return None


def _number(metrics: dict[str, Any], *names: str) -> Any | None:
    """The first of these that the card gives; amdsmi writes `N/A` for the others."""
    return next((metrics[name] for name in names if isinstance(metrics.get(name), int | float)), None)
