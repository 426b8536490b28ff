"""The driver's view of a card: NVML on NVIDIA, amdsmi on AMD.

torch counts only what its own allocator took. The driver sees the whole board: the context, the libraries'
workspaces, and other programs. Both libraries number the cards in their own order and know nothing of
CUDA_VISIBLE_DEVICES, so a card is looked up by what it is (UUID or PCI address), never by its number.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Protocol

from benchmarker.device import Device, torch_device


class Board(Protocol):
    """One card."""

    @property
    def uuid(self) -> str | None: ...

    @property
    def driver(self) -> str | None:
        """Version of the kernel driver."""

    def used_bytes(self) -> int | None:
        """Memory in use by all programs together; None where the driver does not say."""


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

    def _ask(self, function: str) -> Any | None:
        try:
            return getattr(self._amdsmi, function)(self._handle)
        except self._amdsmi.AmdSmiException:
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
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    # CUDA gives the digits alone, of the slice where a card is sliced (MIG); NVML wants to know which it is.
    for prefix in ("GPU-", "MIG-"):
        try:
            return NvidiaBoard(pynvml, pynvml.nvmlDeviceGetHandleByUUID(prefix + uuid))
        except pynvml.NVMLError:
            continue
    return None


def amd_board(address: str) -> AmdBoard | None:
    """The card at this PCI address (`0000:03:00`); None without amdsmi."""
    try:
        import amdsmi
    except (ImportError, OSError, KeyError, AttributeError):
        # Importing it loads a library of ROCm, and fails in these ways where that is missing or does not match.
        return None
    try:
        amdsmi.amdsmi_init()
        for handle in amdsmi.amdsmi_get_processor_handles():
            if str(amdsmi.amdsmi_get_gpu_device_bdf(handle)).lower().startswith(f"{address}."):
                return AmdBoard(amdsmi, handle)
    except amdsmi.AmdSmiException:
        return None
    return None
