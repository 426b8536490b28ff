"""A board that can be read while something is measured on it: NVIDIA's through NVML, AMD's through amdsmi."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Protocol

from benchmarker.hardware.drivers import open_amdsmi, open_nvml
from benchmarker.schema.record import DeviceFacts

NVIDIA_REASONS = {
    0x4: "power_cap",
    0x8: "hardware_slowdown",
    0x20: "thermal",
    0x40: "hardware_thermal",
    0x80: "power_brake",
}
"""nvml.h, nvmlClocksEventReason*. Idle, application clocks, sync boost and display are no one's slowdown."""
NVIDIA_VIOLATIONS = {"power_cap": 0, "thermal": 1, "reliability": 5}
"""nvml.h, nvmlPerfPolicyType_t: time that a policy held the clocks down, also between two readings."""


@dataclass(frozen=True)
class Reading:
    """The board at one moment. None for what it does not say."""

    at_s: float
    """Unix time."""
    sm_clock_mhz: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    throttled_by: frozenset[str] | None = frozenset()
    """None where the driver does not say."""
    held_ns: Mapping[str, int] = field(default_factory=dict)
    """Time for which clocks were held down since the driver started, by what held them."""
    processes: int | None = None
    """That compute on the board."""


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
        reasons = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        return Reading(
            at_s=time.time(),
            sm_clock_mhz=self._ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
            temperature_c=self._ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
            power_w=None if milliwatts is None else milliwatts / 1000,
            throttled_by=None
            if reasons is None
            else frozenset(word for bit, word in NVIDIA_REASONS.items() if reasons & bit),
            held_ns={
                word: violation.violationTime
                for word, policy in NVIDIA_VIOLATIONS.items()
                if (violation := self._ask("nvmlDeviceGetViolationStatus", policy)) is not None
            },
            # Only their number: in a container their ids are the host's.
            processes=None if (found := self._ask("nvmlDeviceGetComputeRunningProcesses")) is None else len(found),
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
            return Reading(now, throttled_by=None)
        status = _number(metrics, "throttle_status")
        return Reading(
            at_s=now,
            sm_clock_mhz=_number(metrics, "current_gfxclk"),
            temperature_c=_number(metrics, "temperature_hotspot"),
            power_w=_number(metrics, "current_socket_power", "average_socket_power"),
            # Which bit means what differs between generations of cards.
            throttled_by=None if status is None else frozenset({"unspecified"} if status else ()),
        )


def find_gauge(device: DeviceFacts) -> Gauge | None:
    """The board that a device is on; None on CPU, and where no library answers."""
    if device.kind == "cuda" and device.uuid:
        return _nvidia_gauge(device.uuid)
    if device.kind == "rocm" and device.uuid:
        return _amd_gauge(device.uuid)
    return None


def _nvidia_gauge(uuid: str) -> Gauge | None:
    nvml = open_nvml()
    if nvml is None:
        return None
    try:
        return NvidiaGauge(nvml, nvml.nvmlDeviceGetHandleByUUID(uuid))
    except nvml.NVMLError:
        return None


def _amd_gauge(uuid: str) -> Gauge | None:
    amdsmi = open_amdsmi()
    if amdsmi is None:
        return None
    try:
        for handle in amdsmi.amdsmi_get_processor_handles():
            if str(amdsmi.amdsmi_get_gpu_device_uuid(handle)) == uuid:
                return AmdGauge(amdsmi, handle)
    except amdsmi.AmdSmiException:
        return None
    return None


def _number(metrics: dict[str, Any], *names: str) -> Any | None:
    """The first of these that the card gives; amdsmi writes `N/A` for the others."""
    return next((metrics[name] for name in names if isinstance(metrics.get(name), int | float)), None)
