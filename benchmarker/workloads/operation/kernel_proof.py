"""Kernels of one call, by a short profile: their names prove which implementation ran."""

from __future__ import annotations

import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from benchmarker.core.errors import UnsupportedError
from benchmarker.workloads.operation.record import SeenKernel

if TYPE_CHECKING:
    from benchmarker.hardware.device import Device

RECORDED_KERNELS = 20
"""Kernels that a record keeps."""
NO_BACKEND = (
    "no available kernel",
    "no viable backend",
    "no valid engine configs",
    "no valid execution plans",
    "no valid triton configs",
    "not implemented for",
    "does not support",
    "does not require grad",
    "forward unsupported",
    "backward unsupported",
)
"""Parts of torch's messages (lower case) if an operator has no kernel for a shape, type, device or backward pass."""
GENERIC_WARNINGS = ("not used because", "runtime disabled")
"""Parts of torch's warnings that give no reason."""
_ATTENTION_OPERATORS = re.compile(r"(?i)attention|softmax|flex|CompiledFxGraph")


def kernels_of(
    work: Callable[[], object], device: Device, *, operators: re.Pattern[str] = _ATTENTION_OPERATORS
) -> tuple[SeenKernel, ...]:
    """Run the work once under the profiler.

    Args:
        operators: Pattern of the operators that count on a CPU.

    Returns:
        Kernels on the device, longest first; on a CPU the matching operators with the time of their callees.
    """
    from torch._C._autograd import DeviceType

    on_cpu = device.kind == "cpu"
    device.synchronize()
    with _profiler(on_cpu=on_cpu) as profiler:
        work()
        device.synchronize()
    calls: dict[str, int] = defaultdict(int)
    total_us: dict[str, float] = defaultdict(float)
    device_type = DeviceType.CPU if on_cpu else DeviceType.CUDA
    for event in (profiler.function_events if on_cpu else profiler.events()) or ():
        if event.device_type == device_type and not (on_cpu and not _is_forward_operator(event.name, operators)):
            calls[event.name] += 1
            total_us[event.name] += event.time_range.elapsed_us()
    names = sorted(calls, key=lambda name: -total_us[name])
    return tuple(SeenKernel(name=name, calls=calls[name], total_s=total_us[name] / 1e6) for name in names)


def _profiler(*, on_cpu: bool) -> Any:
    """Return a profiler. On a CPU the older one: the newer one imports torch's compiler, a third of a short run."""
    if on_cpu:
        from torch.autograd.profiler import profile as host_profile

        return host_profile()
    from torch.profiler import ProfilerActivity, profile

    return profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])


def _is_forward_operator(name: str, operators: re.Pattern[str]) -> bool:
    return bool(operators.search(name)) and not name.startswith("autograd::") and not name.endswith("Backward0")


@contextmanager
def missing_kernel_is_unsupported() -> Iterator[None]:
    """Turn torch's refusal into UnsupportedError, in one line with the reason that torch only warns about."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield
        except (RuntimeError, NotImplementedError) as error:
            text = str(error)
            if not any(phrase in text.lower() for phrase in NO_BACKEND):
                raise
            reasons = [str(warning.message).split(" (Triggered")[0] for warning in caught]
            reason = next((line for line in reasons if not any(part in line for part in GENERIC_WARNINGS)), None)
            raise UnsupportedError(f"torch: {(reason or text).strip().splitlines()[0][:300]}") from error
