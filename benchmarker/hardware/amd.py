"""One AMD GPU through amdsmi, the Python package that comes with ROCm."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from benchmarker.hardware.gpu import GpuState

KFD = Path("/dev/kfd")


class AmdGpu:
    vendor = "AMD"
    newest_cuda = None
    is_sliced = False

    def __init__(self, amdsmi: Any, handle: Any) -> None:
        self._amdsmi = amdsmi
        self._handle = handle

    @property
    def name(self) -> str | None:
        return _text(self._table("amdsmi_get_gpu_asic_info").get("market_name"))

    @property
    def uuid(self) -> str | None:
        return _text(self._query("amdsmi_get_gpu_device_uuid"))

    @property
    def driver(self) -> str | None:
        return _text(self._table("amdsmi_get_gpu_driver_info").get("driver_version"))

    @property
    def pci_address(self) -> str | None:
        """Domain, bus, device and function, such as `0000:03:00.0`."""
        return _text(self._query("amdsmi_get_gpu_device_bdf"))

    def used_bytes(self) -> int | None:
        return self._memory_bytes("vram_used")

    def total_bytes(self) -> int | None:
        return self._memory_bytes("vram_total")

    def energy_j(self) -> float | None:
        count = self._table("amdsmi_get_energy_count")
        # `power` in releases before 6.4; the resolution is in microjoules.
        ticks = _number(count, "energy_accumulator", "power")
        return None if ticks is None else ticks * count["counter_resolution"] / 1e6

    def power_w(self) -> float | None:
        return _float(_number(self._metrics(), "current_socket_power", "average_socket_power"))

    def power_limit_w(self) -> float | None:
        return self._power_cap_w("power_cap")

    def power_default_w(self) -> float | None:
        return self._power_cap_w("default_power_cap")

    def temperature_c(self) -> float | None:
        return _float(_number(self._metrics(), "temperature_hotspot"))

    def clock_mhz(self) -> int | None:
        return _rounded(_number(self._metrics(), "current_gfxclk"))

    def full_clock_mhz(self) -> int | None:
        return None

    def memory_bytes_per_s(self) -> float | None:
        # In GB/s; only in newer releases.
        gigabytes = _number(self._table("amdsmi_get_gpu_vram_info"), "vram_max_bandwidth")
        return None if gigabytes is None else 1e9 * gigabytes

    def process_ids(self) -> tuple[int, ...] | None:
        return None

    def state(self) -> GpuState:
        time_s, metrics = time.time(), self._metrics()
        status = _number(metrics, "throttle_status")
        return GpuState(
            time_s=time_s,
            clock_mhz=_rounded(_number(metrics, "current_gfxclk")),
            temperature_c=_float(_number(metrics, "temperature_hotspot")),
            power_w=_float(_number(metrics, "current_socket_power", "average_socket_power")),
            # The meaning of the bits differs between generations of GPUs.
            throttled_by=None if status is None else frozenset({"unspecified"} if status else ()),
        )

    def _metrics(self) -> dict[str, Any]:
        return self._table("amdsmi_get_gpu_metrics_info")

    def _memory_bytes(self, key: str) -> int | None:
        # Documented as MB, but the library divides by 2^20.
        mebibytes = _number(self._table("amdsmi_get_gpu_vram_usage"), key)
        return None if mebibytes is None else int(mebibytes) * 2**20

    def _power_cap_w(self, key: str) -> float | None:
        microwatts = _number(self._table("amdsmi_get_power_cap_info"), key)
        return None if microwatts is None else microwatts / 1e6

    def _table(self, function: str) -> dict[str, Any]:
        return dict(self._query(function) or {})

    def _query(self, function: str) -> Any | None:
        """Return amdsmi's result; None if this GPU or its driver does not provide it."""
        try:
            return getattr(self._amdsmi, function)(self._handle)
        except (self._amdsmi.AmdSmiException, AttributeError):
            # A release may lack a function.
            return None


def find_amd_gpu(identifier: str) -> AmdGpu | None:
    """Return the GPU with this UUID or PCI address (`0000:03:00`); None if there is none or no amdsmi."""
    for gpu in amd_gpus():
        address = (gpu.pci_address or "").lower()
        if gpu.uuid == identifier or address.startswith(f"{identifier.lower()}."):
            return gpu
    return None


def amd_gpus() -> tuple[AmdGpu, ...]:
    amdsmi = open_amdsmi()
    if amdsmi is None:
        return ()
    try:
        handles = amdsmi.amdsmi_get_processor_handles()
    except amdsmi.AmdSmiException:
        return ()
    return tuple(AmdGpu(amdsmi, handle) for handle in handles)


def has_amd_driver() -> bool:
    return KFD.exists()


def open_amdsmi() -> Any | None:
    try:
        import amdsmi
    except (ImportError, OSError, KeyError, AttributeError):
        # The import loads a library of ROCm and fails in these ways if that is missing or does not match.
        return None
    try:
        amdsmi.amdsmi_init()
    except amdsmi.AmdSmiException:
        return None
    return amdsmi


def _number(table: dict[str, Any], *keys: str) -> int | float | None:
    """Return the first of these values that is a number; amdsmi writes `N/A` for the others."""
    return next((table[key] for key in keys if isinstance(table.get(key), int | float)), None)


def _float(number: int | float | None) -> float | None:
    return None if number is None else float(number)


def _rounded(number: int | float | None) -> int | None:
    return None if number is None else round(number)


def _text(answer: Any | None) -> str | None:
    return None if answer is None else str(answer)
