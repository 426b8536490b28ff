"""Lookups of a GPU's telemetry: by torch's device, by a record's, or all that there are.

NVML and amdsmi number the GPUs in their own order and know nothing of CUDA_VISIBLE_DEVICES. So a GPU is looked up by
its UUID or its PCI address, never by torch's number.
"""

from __future__ import annotations

from typing import Any

from benchmarker.hardware.amd import amd_gpus, find_amd_gpu
from benchmarker.hardware.device import Device, torch_device
from benchmarker.hardware.gpu import Gpu
from benchmarker.hardware.nvidia import find_nvidia_gpu, nvidia_gpus
from benchmarker.schema.environment import DeviceFacts

FINDERS = {"cuda": find_nvidia_gpu, "rocm": find_amd_gpu}


def find_gpu(device: Device) -> Gpu | None:
    """The GPU that torch calls `device`; None on CPU, and where no driver library answers."""
    if device.kind == "cpu":
        return None
    import torch

    # Any: the stubs of torch built for CPUs do not know the PCI address.
    properties: Any = torch.cuda.get_device_properties(torch_device(device))
    if device.kind == "rocm":
        address = f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}"
        return find_amd_gpu(address)
    return find_nvidia_gpu(str(properties.uuid))


def recorded_gpu(facts: DeviceFacts) -> Gpu | None:
    """The GPU that a record names, without torch; None on CPU, and where no driver library answers."""
    finder = FINDERS.get(facts.kind or "")
    return finder(facts.uuid) if finder and facts.uuid else None


def all_gpus() -> tuple[Gpu, ...]:
    """Every GPU that a driver library shows, whether or not torch can use it; NVIDIA's first."""
    return (*nvidia_gpus(), *amd_gpus())
