"""The driver's view of a card: NVML on NVIDIA, amdsmi on AMD.

torch counts only what its own allocator took. The driver sees the whole board: the context, the libraries'
workspaces, and other programs. Both libraries number the cards in their own order and know nothing of
CUDA_VISIBLE_DEVICES, so a card is looked up by what it is (UUID or PCI address), never by its number.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Protocol

from benchmarker.hardware.device import Device, torch_device
from benchmarker.hardware.drivers import open_amdsmi, open_nvml


class Board(Protocol):
    """One card."""

    @property
    def uuid(self) -> str | None: ...

    @property
    def driver(self) -> str | None:
        """Version of the kernel driver."""

    def used_bytes(self) -> int | None:
        """Memory in use by all programs together; None where the driver does not say, here as below."""

    def energy_j(self) -> float | None:
        """Energy that the whole board has used since its driver was loaded: a counter, to be differenced."""

    def power_w(self) -> float | None:
        """The board's own reading, averaged over up to a second."""

    def temperature_c(self) -> float | None: ...

    def clock_mhz(self) -> float | None:
        """Of the compute units, now."""

    def memory_bytes_per_s(self) -> float | None:
        """What the memory's fastest clock and the width of its bus allow."""


class NvidiaBoard:
    """A card through NVML, all readings by version 1 of its memory call: version 2 counts differently."""

    def __init__(self, nvml: ModuleType, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle

    @property
    def uuid(self) -> str | None:
        found = self._ask("nvmlDeviceGetUUID", self._handle)
        return None if found is None else str(found)

    @property
    def driver(self) -> str | None:
        found = self._ask("nvmlSystemGetDriverVersion")
        return None if found is None else str(found)

    def used_bytes(self) -> int | None:
        found = self._ask("nvmlDeviceGetMemoryInfo", self._handle)
        return None if found is None else int(found.used)

    def energy_j(self) -> float | None:
        millijoules = self._ask("nvmlDeviceGetTotalEnergyConsumption", self._handle)
        return None if millijoules is None else millijoules / 1000

    def power_w(self) -> float | None:
        milliwatts = self._ask("nvmlDeviceGetPowerUsage", self._handle)
        return None if milliwatts is None else milliwatts / 1000

    def temperature_c(self) -> float | None:
        found = self._ask("nvmlDeviceGetTemperature", self._handle, self._nvml.NVML_TEMPERATURE_GPU)
        return None if found is None else float(found)

    def clock_mhz(self) -> float | None:
        found = self._ask("nvmlDeviceGetClockInfo", self._handle, self._nvml.NVML_CLOCK_SM)
        return None if found is None else float(found)

    def memory_bytes_per_s(self) -> float | None:
        bits = self._ask("nvmlDeviceGetMemoryBusWidth", self._handle)
        megahertz = self._ask("nvmlDeviceGetMaxClockInfo", self._handle, self._nvml.NVML_CLOCK_MEM)
        # Two transfers a clock: on an H100 5120 bits at 2619 MHz are 3.35 TB/s, as its data sheet says.
        return None if bits is None or megahertz is None else 2 * 1e6 * megahertz * bits / 8

    def _ask(self, function: str, *arguments: Any) -> Any | None:
        """The answer, or None where this card or driver cannot say."""
        try:
            return getattr(self._nvml, function)(*arguments)
        except self._nvml.NVMLError:
            return None


class AmdBoard:
    """A card through amdsmi."""

    def __init__(self, amdsmi: ModuleType, handle: Any) -> None:
        self._amdsmi = amdsmi
        self._handle = handle

    @property
    def uuid(self) -> str | None:
        found = self._ask("amdsmi_get_gpu_device_uuid")
        return None if found is None else str(found)

    @property
    def driver(self) -> str | None:
        found = self._ask("amdsmi_get_gpu_driver_info")
        return None if found is None else str(found["driver_version"])

    def used_bytes(self) -> int | None:
        # The documentation says MB; the library divides by 2^20.
        found = self._ask("amdsmi_get_gpu_vram_usage")
        return None if found is None else int(found["vram_used"]) * 2**20

    def energy_j(self) -> float | None:
        found = self._ask("amdsmi_get_energy_count")
        if found is None:
            return None
        # `power` in releases before 6.4; the resolution is in microjoules.
        count = found.get("energy_accumulator", found.get("power"))
        return None if count is None else count * found["counter_resolution"] / 1e6

    def power_w(self) -> float | None:
        return self._metric("current_socket_power", "average_socket_power")

    def temperature_c(self) -> float | None:
        return self._metric("temperature_hotspot")

    def clock_mhz(self) -> float | None:
        return self._metric("current_gfxclk")

    def memory_bytes_per_s(self) -> float | None:
        found = self._ask("amdsmi_get_gpu_vram_info")
        # In GB/s, and only from newer releases.
        bandwidth = found.get("vram_max_bandwidth") if found else None
        return 1e9 * bandwidth if isinstance(bandwidth, int | float) else None

    def _metric(self, *names: str) -> float | None:
        """The first of these that the card gives; amdsmi writes `N/A` for the others."""
        found = self._ask("amdsmi_get_gpu_metrics_info") or {}
        return next((float(found[name]) for name in names if isinstance(found.get(name), int | float)), None)

    def _ask(self, function: str) -> Any | None:
        try:
            return getattr(self._amdsmi, function)(self._handle)
        except (self._amdsmi.AmdSmiException, AttributeError):
            # A release may lack a question.
            return None


def find_board(device: Device) -> Board | None:
    """The card that the device is on, without creating a context there; None on CPU, or where no library answers."""
    if device.kind == "cpu":
        return None
    import torch

    # Any: the stubs of torch built for CPUs do not know the PCI address.
    properties: Any = torch.cuda.get_device_properties(torch_device(device))
    if device.kind == "rocm":
        address = f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}"
        return amd_board(address)
    return nvidia_board(str(properties.uuid))


def nvidia_board(uuid: str) -> NvidiaBoard | None:
    """The card, or slice of one, with this UUID; None without NVML."""
    nvml = open_nvml()
    if nvml is None:
        return None
    # CUDA gives the digits alone, of the slice where a card is sliced (MIG); NVML wants to know which it is.
    for prefix in ("GPU-", "MIG-"):
        try:
            return NvidiaBoard(nvml, nvml.nvmlDeviceGetHandleByUUID(prefix + uuid))
        except nvml.NVMLError:
            continue
    return None


def amd_board(address: str) -> AmdBoard | None:
    """The card at this PCI address (`0000:03:00`); None without amdsmi."""
    amdsmi = open_amdsmi()
    if amdsmi is None:
        return None
    try:
        for handle in amdsmi.amdsmi_get_processor_handles():
            if str(amdsmi.amdsmi_get_gpu_device_bdf(handle)).lower().startswith(f"{address}."):
                return AmdBoard(amdsmi, handle)
    except amdsmi.AmdSmiException:
        return None
    return None
