"""One NVIDIA GPU through NVML (package nvidia-ml-py, module `pynvml`)."""

from __future__ import annotations

import time
from typing import Any

from benchmarker.hardware.gpu import GpuState

REASONS = {
    0x4: "power_cap",
    0x8: "hardware_slowdown",
    0x20: "thermal",
    0x40: "hardware_thermal",
    0x80: "power_brake",
}
"""Bits of nvml.h, nvmlClocksEventReason*. Idle, application clocks, sync boost and display do not lower the clocks."""
VIOLATIONS = {"power_cap": 0, "thermal": 1, "reliability": 5}
"""Numbers of nvml.h, nvmlPerfPolicyType_t: policies whose time is counted, also between two readings."""


class NvidiaGpu:
    """NVIDIA GPU, or one slice of it, as a `Gpu`."""

    vendor = "NVIDIA"

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle

    @property
    def name(self) -> str | None:
        return self._text("nvmlDeviceGetName")

    @property
    def uuid(self) -> str | None:
        return self._text("nvmlDeviceGetUUID")

    @property
    def driver(self) -> str | None:
        version = self._query("nvmlSystemGetDriverVersion")
        return None if version is None else str(version)

    @property
    def newest_cuda(self) -> str | None:
        version = self._query("nvmlSystemGetCudaDriverVersion_v2")
        # 13000 for 13.0.
        return f"{version // 1000}.{version % 1000 // 10}" if version else None

    @property
    def is_sliced(self) -> bool:
        mode = self._of_gpu("nvmlDeviceGetMigMode")
        return bool(mode and mode[0])

    def used_bytes(self) -> int | None:
        # Version 1 of the call: version 2 leaves out the memory that the driver reserves.
        memory = self._of_gpu("nvmlDeviceGetMemoryInfo")
        return None if memory is None else int(memory.used)

    def total_bytes(self) -> int | None:
        memory = self._of_gpu("nvmlDeviceGetMemoryInfo")
        return None if memory is None else int(memory.total)

    def energy_j(self) -> float | None:
        return self._from_milli("nvmlDeviceGetTotalEnergyConsumption")

    def power_w(self) -> float | None:
        return self._from_milli("nvmlDeviceGetPowerUsage")

    def power_limit_w(self) -> float | None:
        return self._from_milli("nvmlDeviceGetPowerManagementLimit")

    def power_default_w(self) -> float | None:
        return self._from_milli("nvmlDeviceGetPowerManagementDefaultLimit")

    def temperature_c(self) -> float | None:
        celsius = self._of_gpu("nvmlDeviceGetTemperature", self._nvml.NVML_TEMPERATURE_GPU)
        return None if celsius is None else float(celsius)

    def clock_mhz(self) -> int | None:
        megahertz = self._of_gpu("nvmlDeviceGetClockInfo", self._nvml.NVML_CLOCK_SM)
        return None if megahertz is None else int(megahertz)

    def full_clock_mhz(self) -> int | None:
        megahertz = self._of_gpu("nvmlDeviceGetDefaultApplicationsClock", self._nvml.NVML_CLOCK_SM)
        return None if megahertz is None else int(megahertz)

    def memory_bytes_per_s(self) -> float | None:
        bits = self._of_gpu("nvmlDeviceGetMemoryBusWidth")
        megahertz = self._of_gpu("nvmlDeviceGetMaxClockInfo", self._nvml.NVML_CLOCK_MEM)
        # Two transfers a clock: on an H100 5120 bits at 2619 MHz are 3.35 TB/s, as in its data sheet.
        return None if bits is None or megahertz is None else 2 * 1e6 * megahertz * bits / 8

    def process_ids(self) -> tuple[int, ...] | None:
        processes = self._of_gpu("nvmlDeviceGetComputeRunningProcesses")
        return None if processes is None else tuple(process.pid for process in processes)

    def state(self) -> GpuState:
        processes = self.process_ids()
        return GpuState(
            time_s=time.time(),
            clock_mhz=self.clock_mhz(),
            temperature_c=self.temperature_c(),
            power_w=self.power_w(),
            throttled_by=self._throttled_by(),
            held_ns=self._held_ns(),
            processes=None if processes is None else len(processes),
        )

    def _throttled_by(self) -> frozenset[str] | None:
        bits = self._of_gpu("nvmlDeviceGetCurrentClocksThrottleReasons")
        return None if bits is None else frozenset(reason for bit, reason in REASONS.items() if bits & bit)

    def _held_ns(self) -> dict[str, int]:
        answers = {
            reason: self._of_gpu("nvmlDeviceGetViolationStatus", policy) for reason, policy in VIOLATIONS.items()
        }
        return {reason: answer.violationTime for reason, answer in answers.items() if answer is not None}

    def _text(self, function: str) -> str | None:
        answer = self._of_gpu(function)
        return None if answer is None else str(answer)

    def _from_milli(self, function: str) -> float | None:
        answer = self._of_gpu(function)
        return None if answer is None else answer / 1000

    def _of_gpu(self, function: str, *arguments: Any) -> Any | None:
        return self._query(function, self._handle, *arguments)

    def _query(self, function: str, *arguments: Any) -> Any | None:
        """Return NVML's result; None if this GPU or its driver does not provide it."""
        try:
            return getattr(self._nvml, function)(*arguments)
        except self._nvml.NVMLError:
            return None


def find_nvidia_gpu(uuid: str) -> NvidiaGpu | None:
    """Return the GPU, or slice of one, with this UUID; None if there is none or no NVML.

    Args:
        uuid: As NVML writes it (`GPU-...`, `MIG-...`), or the digits alone, as CUDA gives them.
    """
    nvml = open_nvml()
    if nvml is None:
        return None
    # CUDA gives the digits alone, those of the slice if a GPU is sliced (MIG); NVML requires the prefix.
    names = [uuid] if uuid.startswith(("GPU-", "MIG-")) else [f"GPU-{uuid}", f"MIG-{uuid}"]
    for name in names:
        try:
            return NvidiaGpu(nvml, nvml.nvmlDeviceGetHandleByUUID(name))
        except nvml.NVMLError:
            continue
    return None


def nvidia_gpus() -> tuple[NvidiaGpu, ...]:
    nvml = open_nvml()
    if nvml is None:
        return ()
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError:
        return ()
    return tuple(NvidiaGpu(nvml, handle) for handle in handles)


def open_nvml() -> Any | None:
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml
