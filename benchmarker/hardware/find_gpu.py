"""Lookup of a GPU's telemetry: by torch's device, by a record's device, or all GPUs.

NVML and amdsmi number the GPUs in their own order and ignore CUDA_VISIBLE_DEVICES. Therefore a GPU is looked up by its
UUID or its PCI address, never by torch's number.
"""

from __future__ import annotations

from typing import Any

from benchmarker.hardware.amd import amd_gpus, find_amd_gpu
from benchmarker.hardware.device import Device, torch_device
from benchmarker.hardware.gpu import Gpu
from benchmarker.hardware.nvidia import find_nvidia_gpu, nvidia_gpus
from benchmarker.schema.record import DeviceFacts

FINDERS = {"cuda": find_nvidia_gpu, "rocm": find_amd_gpu}


def find_gpu(device: Device) -> Gpu | None:
    """Return the GPU that torch calls `device`; None for a CPU, or if no driver library works."""
    if device.kind == "cpu":
        return None
    import torch

    # Any: the stubs of a torch built for CPUs lack the PCI address.
    properties: Any = torch.cuda.get_device_properties(torch_device(device))
    if device.kind == "rocm":
        address = f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}"
        return find_amd_gpu(address)
    return find_nvidia_gpu(str(properties.uuid))


def recorded_gpu(facts: DeviceFacts) -> Gpu | None:
    """Return the GPU in a record, without torch; None for a CPU, or if no driver library works."""
    finder = FINDERS.get(facts.kind or "")
    return finder(facts.uuid) if finder and facts.uuid else None


def all_gpus() -> tuple[Gpu, ...]:
    """Return every GPU that a driver library lists, usable by torch or not; NVIDIA's first."""
    return (*nvidia_gpus(), *amd_gpus())


class DeviceMemory:
    """Memory in use on the whole GPU, with contexts, libraries and other programs. Make one before using the GPU."""

    def __init__(self, device: Device) -> None:
        self._gpu = find_gpu(device)
        self.before_bytes = self._gpu.used_bytes() if self._gpu else None
        """Bytes in use when this object was made; None on CPU, and if the driver does not report it."""

    def growth_bytes(self) -> int | None:
        """Return the growth since this object was made; None if unknown, and if another program released memory.

        Call it before the allocator releases memory, while it still holds its peak.
        """
        now = self._gpu.used_bytes() if self._gpu else None
        if now is None or self.before_bytes is None:
            return None
        growth = now - self.before_bytes
        return growth if growth >= 0 else None
