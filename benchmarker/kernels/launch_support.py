"""Helpers for kernel launches: optional Triton, programmatic dependent launch (PDL), counters and alignment.

With PDL, on NVIDIA's Hopper and newer, a kernel starts while the previous kernel ends and reads its weights, which no
step writes, before it waits for its input. So all kernels here require that weights are not written just before on the
same device. Without Triton (torch on a CPU) stand-ins let the files be imported.
"""

from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

HOPPER = 9  # Major compute capability of Hopper.


@cache
def can_start_early(device: torch.device) -> bool:
    """Return whether PDL is available: Hopper or newer, and a Triton other than 3.4."""
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    import triton

    # Triton 3.4 has both calls but cannot compile them.
    return not triton.__version__.startswith("3.4.") and torch.cuda.get_device_capability(device)[0] >= HOPPER


try:
    import triton
    import triton.language as tl
except ImportError:

    def _as_it_is(*functions: Any, **_: Any) -> Any:
        return functions[0] if functions else _as_it_is

    triton: Any = SimpleNamespace(jit=_as_it_is)  # type: ignore[no-redef]
    tl: Any = SimpleNamespace(constexpr=_as_it_is)  # type: ignore[no-redef]

__all__ = ["tl", "triton"]


@cache
def arrived(kernel: str, places: int, device: torch.device) -> Tensor:  # noqa: ARG001  Each kernel has its own.
    """Return counters of programs that have ended, [places], int32, zero between launches.

    All launches of a kernel on a device share them, so they must be in one stream. The first call must not be captured.
    """
    return torch.zeros(places, dtype=torch.int32, device=device)


def is_aligned(tensor: Tensor) -> bool:
    return tensor.data_ptr() % 16 == 0


def aligned(tensor: Tensor) -> Tensor:
    """Return a contiguous tensor at a multiple of 16 bytes, copied if necessary."""
    tensor = tensor.contiguous()
    return tensor if is_aligned(tensor) else tensor.clone()
