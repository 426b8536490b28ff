"""The cards as their driver sees them, whether or not torch can use them: NVML on NVIDIA, amdsmi on AMD."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarker.hardware.drivers import open_amdsmi, open_nvml

KFD = Path("/dev/kfd")
"""The device file of AMD's compute driver."""


@dataclass(frozen=True)
class Card:
    """One card. None for what the driver does not say."""

    name: str
    driver: str | None = None
    supports: str | None = None
    """The newest CUDA that its driver runs, as `13.0`."""
    used_bytes: int | None = None
    """By all programs together."""
    memory_bytes: int | None = None
    programs: int | None = None
    """That compute on it now; in a container perhaps fewer than there are."""
    power_limit_w: float | None = None
    power_default_w: float | None = None
    is_sliced: bool = False
    """Whether it is divided into instances (MIG)."""


def nvidia_cards() -> tuple[Card, ...]:
    """None of them without NVML or its driver."""
    nvml = open_nvml()
    if nvml is None:
        return ()
    try:
        return tuple(nvidia_card(nvml, at) for at in range(nvml.nvmlDeviceGetCount()))
    except nvml.NVMLError:
        return ()


def nvidia_card(nvml: ModuleType | Any, index: int) -> Card:
    """What NVML says of one card."""
    handle = nvml.nvmlDeviceGetHandleByIndex(index)

    def ask(function: str, *arguments: Any) -> Any | None:
        try:
            return getattr(nvml, function)(*arguments)
        except nvml.NVMLError:
            return None

    memory = ask("nvmlDeviceGetMemoryInfo", handle)
    version = ask("nvmlSystemGetCudaDriverVersion_v2")
    programs = ask("nvmlDeviceGetComputeRunningProcesses", handle)
    mig = ask("nvmlDeviceGetMigMode", handle)
    return Card(
        name=str(ask("nvmlDeviceGetName", handle) or "an NVIDIA card"),
        driver=_text(ask("nvmlSystemGetDriverVersion")),
        # 13000 for 13.0.
        supports=f"{version // 1000}.{version % 1000 // 10}" if version else None,
        used_bytes=memory and int(memory.used),
        memory_bytes=memory and int(memory.total),
        programs=None if programs is None else len([one for one in programs if one.pid != os.getpid()]),
        power_limit_w=_watts(ask("nvmlDeviceGetPowerManagementLimit", handle)),
        power_default_w=_watts(ask("nvmlDeviceGetPowerManagementDefaultLimit", handle)),
        is_sliced=bool(mig and mig[0]),
    )


def amd_cards() -> tuple[Card, ...]:
    """None of them without amdsmi; an AMD driver alone gives one card without a name."""
    amdsmi = open_amdsmi()
    nameless = (Card("an AMD card"),) if KFD.exists() else ()
    if amdsmi is None:
        return nameless
    try:
        return tuple(amd_card(amdsmi, handle) for handle in amdsmi.amdsmi_get_processor_handles())
    except amdsmi.AmdSmiException:
        return nameless


def amd_card(amdsmi: ModuleType | Any, handle: Any) -> Card:
    """What amdsmi says of one card."""

    def ask(function: str) -> dict[str, Any]:
        try:
            return dict(getattr(amdsmi, function)(handle))
        except (amdsmi.AmdSmiException, AttributeError):
            return {}

    usage, power = ask("amdsmi_get_gpu_vram_usage"), ask("amdsmi_get_power_cap_info")
    mebibytes: Callable[[str], int | None] = lambda key: usage[key] * 2**20 if isinstance(usage.get(key), int) else None  # noqa: E731
    return Card(
        name=str(ask("amdsmi_get_gpu_asic_info").get("market_name") or "an AMD card"),
        driver=_text(ask("amdsmi_get_gpu_driver_info").get("driver_version")),
        used_bytes=mebibytes("vram_used"),
        memory_bytes=mebibytes("vram_total"),
        # amdsmi gives microwatts.
        power_limit_w=_micro(power.get("power_cap")),
        power_default_w=_micro(power.get("default_power_cap")),
    )


def _text(value: Any | None) -> str | None:
    return None if value is None else str(value)


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _micro(value: Any | None) -> float | None:
    return value / 1e6 if isinstance(value, int) else None
