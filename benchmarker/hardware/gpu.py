"""GPU telemetry from the driver: NVML (package nvidia-ml-py) on NVIDIA, amdsmi (comes with ROCm) on AMD.

torch counts only the memory of its own allocator. The driver counts the whole GPU: the context, the libraries'
workspaces and other programs. Neither library is required, and neither creates a context on the GPU.

NVML and amdsmi number the GPUs in their own order and ignore CUDA_VISIBLE_DEVICES. Therefore a GPU is looked up by its
UUID or its PCI address, never by torch's number.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarker.hardware.device import Device
from benchmarker.schema.record import DeviceFacts


@dataclass(frozen=True)
class GpuState:
    """State of a GPU at one time; None if the driver does not provide a value."""

    time_s: float  # Unix time of the readings.
    clock_mhz: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    throttled_by: frozenset[str] | None = frozenset()  # Reasons that lower the clocks, such as `power_cap`.
    held_ns: Mapping[str, int] = field(default_factory=dict)
    """Nanoseconds with lowered clocks since the driver was loaded, by reason."""
    processes: int | None = None


NVML = "pynvml", "nvmlInit", "NVMLError"
REASONS = {0x4: "power_cap", 0x8: "hardware_slowdown", 0x20: "thermal", 0x40: "hardware_thermal", 0x80: "power_brake"}
"""Throttle reasons by bit of nvmlClocksEventReason* (nvml.h). Other bits, such as idle, do not lower the clocks."""
VIOLATIONS = {"power_cap": 0, "thermal": 1, "reliability": 5}
"""Number in nvmlPerfPolicyType_t (nvml.h) of each throttle reason whose total time the driver counts."""


class NvidiaGpu:
    """NVIDIA GPU or MIG slice. Methods return None, never 0, for a value that the driver does not provide."""

    vendor = "NVIDIA"

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self.name: str | None = self._of_gpu("nvmlDeviceGetName")
        self.uuid: str | None = self._of_gpu("nvmlDeviceGetUUID")
        self.driver: str | None = self._query("nvmlSystemGetDriverVersion")
        version = self._query("nvmlSystemGetCudaDriverVersion_v2")
        # Newest CUDA version that the driver supports, such as `13.0`.
        self.newest_cuda = f"{version // 1000}.{version % 1000 // 10}" if version else None
        mode = self._of_gpu("nvmlDeviceGetMigMode")
        self.is_sliced = bool(mode and mode[0])

    def used_bytes(self) -> int | None:
        # Version 1 of the call: version 2 leaves out the memory that the driver reserves.
        return _rounded(getattr(self._of_gpu("nvmlDeviceGetMemoryInfo"), "used", None))

    def energy_j(self) -> float | None:
        """Return the joules that the board has used since its driver was loaded."""
        return _scaled(self._of_gpu("nvmlDeviceGetTotalEnergyConsumption"), 1e3)

    def power_w(self) -> float | None:
        """Return the power of the whole board in watts, averaged by the board over up to a second."""
        return _scaled(self._of_gpu("nvmlDeviceGetPowerUsage"), 1e3)

    def power_limit_w(self) -> float | None:
        return _scaled(self._of_gpu("nvmlDeviceGetPowerManagementLimit"), 1e3)

    def power_default_w(self) -> float | None:
        return _scaled(self._of_gpu("nvmlDeviceGetPowerManagementDefaultLimit"), 1e3)

    def temperature_c(self) -> float | None:
        return _scaled(self._of_gpu("nvmlDeviceGetTemperature", self._nvml.NVML_TEMPERATURE_GPU), 1)

    def clock_mhz(self) -> int | None:
        return _rounded(self._of_gpu("nvmlDeviceGetClockInfo", self._nvml.NVML_CLOCK_SM))

    def full_clock_mhz(self) -> int | None:
        return _rounded(self._of_gpu("nvmlDeviceGetDefaultApplicationsClock", self._nvml.NVML_CLOCK_SM))

    def memory_bytes_per_s(self) -> float | None:
        bits = self._of_gpu("nvmlDeviceGetMemoryBusWidth")
        megahertz = self._of_gpu("nvmlDeviceGetMaxClockInfo", self._nvml.NVML_CLOCK_MEM)
        # Two transfers a clock: on an H100 5120 bits at 2619 MHz are 3.35 TB/s, as in its data sheet.
        return None if bits is None or megahertz is None else 2 * 1e6 * megahertz * bits / 8

    def process_ids(self) -> tuple[int, ...] | None:
        """Return ids of the processes that use the GPU. In a container the ids are the host's, maybe incomplete."""
        processes = self._of_gpu("nvmlDeviceGetComputeRunningProcesses")
        return None if processes is None else tuple(process.pid for process in processes)

    def state(self) -> GpuState:
        time_s, processes = time.time(), self.process_ids()
        bits = self._of_gpu("nvmlDeviceGetCurrentClocksThrottleReasons")
        held = {reason: self._of_gpu("nvmlDeviceGetViolationStatus", policy) for reason, policy in VIOLATIONS.items()}
        return GpuState(
            time_s=time_s,
            clock_mhz=self.clock_mhz(),
            temperature_c=self.temperature_c(),
            power_w=self.power_w(),
            throttled_by=None if bits is None else frozenset(name for bit, name in REASONS.items() if bits & bit),
            held_ns={reason: answer.violationTime for reason, answer in held.items() if answer is not None},
            processes=None if processes is None else len(processes),
        )

    def _of_gpu(self, function: str, *arguments: Any) -> Any | None:
        return self._query(function, self._handle, *arguments)

    def _query(self, function: str, *arguments: Any) -> Any | None:
        try:
            return getattr(self._nvml, function)(*arguments)
        except self._nvml.NVMLError:
            return None


class AmdGpu:
    vendor = "AMD"
    newest_cuda = None
    is_sliced = False

    def __init__(self, amdsmi: Any, handle: Any) -> None:
        self._amdsmi = amdsmi
        self._handle = handle
        self.name: str | None = self._table("amdsmi_get_gpu_asic_info").get("market_name")
        self.uuid: str | None = self._query("amdsmi_get_gpu_device_uuid")
        self.driver: str | None = self._table("amdsmi_get_gpu_driver_info").get("driver_version")
        self.pci_address = str(self._query("amdsmi_get_gpu_device_bdf") or "").lower()

    def used_bytes(self) -> int | None:
        # Documented as MB, but the library divides by 2^20.
        mebibytes = _number(self._table("amdsmi_get_gpu_vram_usage"), "vram_used")
        return None if mebibytes is None else int(mebibytes) * 2**20

    def energy_j(self) -> float | None:
        count = self._table("amdsmi_get_energy_count")
        # The key is `power` before release 6.4; the resolution is in microjoules.
        ticks = _number(count, "energy_accumulator", "power")
        return None if ticks is None else ticks * count["counter_resolution"] / 1e6

    def power_w(self) -> float | None:
        return self.state().power_w

    def power_limit_w(self) -> float | None:
        return _scaled(_number(self._table("amdsmi_get_power_cap_info"), "power_cap"), 1e6)

    def power_default_w(self) -> float | None:
        return _scaled(_number(self._table("amdsmi_get_power_cap_info"), "default_power_cap"), 1e6)

    def temperature_c(self) -> float | None:
        return self.state().temperature_c

    def clock_mhz(self) -> int | None:
        return self.state().clock_mhz

    def memory_bytes_per_s(self) -> float | None:
        # In GB/s; only in newer releases.
        return _scaled(_number(self._table("amdsmi_get_gpu_vram_info"), "vram_max_bandwidth"), 1e-9)

    def full_clock_mhz(self) -> int | None:
        return None

    def process_ids(self) -> tuple[int, ...] | None:
        return None

    def state(self) -> GpuState:
        # One call, so that all values are of the same time.
        time_s, metrics = time.time(), self._table("amdsmi_get_gpu_metrics_info")
        status = _number(metrics, "throttle_status")
        return GpuState(
            time_s=time_s,
            clock_mhz=_rounded(_number(metrics, "current_gfxclk")),
            temperature_c=_scaled(_number(metrics, "temperature_hotspot"), 1),
            power_w=_scaled(_number(metrics, "current_socket_power", "average_socket_power"), 1),
            # The meaning of the bits differs between generations of GPUs.
            throttled_by=None if status is None else frozenset({"unspecified"} if status else ()),
        )

    def _table(self, function: str) -> dict[str, Any]:
        return dict(self._query(function) or {})

    def _query(self, function: str) -> Any | None:
        try:
            return getattr(self._amdsmi, function)(self._handle)
        except (self._amdsmi.AmdSmiException, AttributeError):
            # A release may lack a function.
            return None


Gpu = NvidiaGpu | AmdGpu


def _number(table: dict[str, Any], *keys: str) -> int | float | None:
    return next((table[key] for key in keys if isinstance(table.get(key), int | float)), None)


def _scaled(number: Any | None, divisor: float) -> float | None:
    return None if number is None else number / divisor


def _rounded(number: Any | None) -> int | None:
    return None if number is None else round(number)


def find_nvidia_gpu(uuid: str) -> NvidiaGpu | None:
    """Return the GPU or MIG slice of a UUID, `GPU-...`, `MIG-...` or CUDA's digits alone; None if there is none."""
    if nvml := _opened(*NVML):
        # CUDA gives the digits of the slice if a GPU is sliced (MIG); NVML requires the prefix.
        for name in [uuid] if uuid.startswith(("GPU-", "MIG-")) else [f"GPU-{uuid}", f"MIG-{uuid}"]:
            with contextlib.suppress(nvml.NVMLError):
                return NvidiaGpu(nvml, nvml.nvmlDeviceGetHandleByUUID(name))
    return None


def find_amd_gpu(identifier: str) -> AmdGpu | None:
    """Return the GPU with this UUID or PCI address (`0000:03:00`); None if there is none or amdsmi is missing."""
    address = f"{identifier.lower()}."
    return next((gpu for gpu in _amd_gpus() if gpu.uuid == identifier or gpu.pci_address.startswith(address)), None)


def find_gpu(device: Device) -> Gpu | None:
    """Return the GPU that torch calls `device`; None for a CPU, or if no driver library works."""
    if device.kind == "cpu":
        return None
    import torch

    # Any: the stubs of a torch built for CPUs lack the PCI address.
    properties: Any = torch.cuda.get_device_properties(device.torch_name)
    if device.kind == "rocm":
        address = f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}"
        return find_amd_gpu(address)
    return find_nvidia_gpu(str(properties.uuid))


def recorded_gpu(facts: DeviceFacts) -> Gpu | None:
    """Return the GPU that a record describes, without torch; None for a CPU, or if no driver library works."""
    finder = {"cuda": find_nvidia_gpu, "rocm": find_amd_gpu}.get(facts.kind or "")
    return finder(facts.uuid) if finder and facts.uuid else None


def all_gpus() -> tuple[Gpu, ...]:
    """Return every GPU that a driver library lists, usable by torch or not; NVIDIA's first."""
    nvidia: list[NvidiaGpu] = []
    if nvml := _opened(*NVML):
        with contextlib.suppress(nvml.NVMLError):
            nvidia = [NvidiaGpu(nvml, nvml.nvmlDeviceGetHandleByIndex(n)) for n in range(nvml.nvmlDeviceGetCount())]
    return (*nvidia, *_amd_gpus())


def _amd_gpus() -> list[AmdGpu]:
    if amdsmi := _opened("amdsmi", "amdsmi_init", "AmdSmiException"):
        with contextlib.suppress(amdsmi.AmdSmiException):
            return [AmdGpu(amdsmi, handle) for handle in amdsmi.amdsmi_get_processor_handles()]
    return []


def _opened(module: str, start: str, error: str) -> Any | None:
    try:
        library = import_module(module)
    except (ImportError, OSError, KeyError, AttributeError):
        # amdsmi loads a library of ROCm, and raises these errors if that library is missing or does not match.
        return None
    try:
        getattr(library, start)()
    except getattr(library, error):
        return None
    return library


def has_amd_driver() -> bool:
    return Path("/dev/kfd").exists()


def has_gpu_driver() -> bool:
    """Return whether the device file of a GPU driver exists: of AMD, WSL (/dev/dxg) or NVIDIA."""
    return has_amd_driver() or Path("/dev/dxg").exists() or any(Path("/dev").glob("nvidia[0-9]*"))


class DeviceMemory:
    """Growth of the memory in use on the whole GPU, contexts and libraries included, since this object was made."""

    def __init__(self, device: Device) -> None:
        self._gpu = find_gpu(device)
        self.before_bytes = self._gpu.used_bytes() if self._gpu else None

    def growth_bytes(self) -> int | None:
        """Return the growth; None if unknown. To be called while torch's allocator still holds its peak."""
        now = self._gpu.used_bytes() if self._gpu else None
        return None if now is None or self.before_bytes is None or now < self.before_bytes else now - self.before_bytes
