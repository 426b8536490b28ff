"""Which kernels does a call run? A short profile, whose names prove the implementation."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from benchmarker.workloads.attention.record import SeenKernel
from benchmarker.workloads.attention.variants.base import Implementation, Kind
from benchmarker.workloads.attention.variants.registry import VARIANTS

if TYPE_CHECKING:
    from benchmarker.hardware.device import Device

KEPT = 20
"""Kernels in a record."""
_OF_ATTENTION = re.compile(r"(?i)attention|softmax|flex|CompiledFxGraph")


def kernels_of(
    work: Callable[[], object], device: Device, *, operators: re.Pattern[str] = _OF_ATTENTION
) -> tuple[SeenKernel, ...]:
    """Run something once with the profiler on.

    Args:
        operators: What on a CPU are the names of those that count.

    Returns:
        Kernels on the device, longest first; on a CPU those operators with all that they called.
    """
    from torch._C._autograd import DeviceType

    on_cpu = device.kind == "cpu"
    device.synchronize()
    with _profiler(on_cpu=on_cpu) as profiler:
        work()
        device.synchronize()
    calls: dict[str, int] = defaultdict(int)
    total_us: dict[str, float] = defaultdict(float)
    wanted = DeviceType.CPU if on_cpu else DeviceType.CUDA
    for event in (profiler.function_events if on_cpu else profiler.events()) or ():
        if event.device_type != wanted or (on_cpu and not _is_forward_operator(event.name, operators)):
            continue
        calls[event.name] += 1
        total_us[event.name] += event.time_range.elapsed_us()
    names = sorted(calls, key=lambda name: -total_us[name])
    return tuple(SeenKernel(name=name, calls=calls[name], total_s=total_us[name] / 1e6) for name in names)


def _profiler(*, on_cpu: bool) -> Any:
    """On a CPU torch's older one: entering the newer imports torch's compiler, a third of the time of a short run."""
    if on_cpu:
        from torch.autograd.profiler import profile as host_profile

        return host_profile()
    from torch.profiler import ProfilerActivity, profile

    return profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])


def _is_forward_operator(name: str, operators: re.Pattern[str]) -> bool:
    return bool(operators.search(name)) and not name.startswith("autograd::") and not name.endswith("Backward0")


def not_its_own(implementation: Implementation, kernels: tuple[SeenKernel, ...], kind: Kind) -> str | None:
    """Why what ran is not the implementation; None where one of its kernels ran."""
    if implementation.matches((kernel.name for kernel in kernels), kind):
        return None
    ran = implementations_of(kernels, kind)
    what = " and ".join(ran) if ran else kernels[0].name if kernels else "no kernel"
    return f"{what} ran instead: no kernel of it was seen in a profiled call"


def implementations_of(kernels: tuple[SeenKernel, ...], kind: Kind) -> tuple[str, ...]:
    """Names of the registry whose kernels these may be; what says nothing, as a plain softmax, comes last."""
    matches = [
        name
        for name, implementation in VARIANTS.items()
        if implementation.kernels.get(kind) and implementation.matches((kernel.name for kernel in kernels), kind)
    ]
    fused = [name for name in matches if name not in ("naive", "math")]
    return tuple(fused or matches)
