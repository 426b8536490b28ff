"""Helpers for kernel launches: optional Triton, programmatic dependent launch (PDL), counters and alignment.

With PDL (Hopper and newer), a kernel starts while the previous kernel ends, reads its weights, and then waits for its
input. Weights must therefore not be written by a kernel that runs just before. If Triton is not installed (torch on a
CPU), stand-ins make the files importable.
"""

from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

HOPPER = 9  # Major compute capability of Hopper.


@cache
def supports_pdl(device: torch.device) -> bool:
    """Return True if PDL is available: Hopper or newer, and a version of Triton other than 3.4."""
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    import triton

    # Triton 3.4 has both calls of PDL but cannot compile them.
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
def arrival_counters(kernel: str, places: int, device: torch.device) -> Tensor:  # noqa: ARG001  Each kernel has its own.
    """Return counters of programs that have ended, [places], int32, which are zero between launches.

    All launches of a kernel on a device share them, so they must be in one stream. The first call must not be captured.
    """
    return torch.zeros(places, dtype=torch.int32, device=device)


def is_aligned(tensor: Tensor) -> bool:
    return tensor.data_ptr() % 16 == 0


def aligned(tensor: Tensor) -> Tensor:
    """Return the tensor contiguous and aligned to 16 bytes, copied if necessary."""
    tensor = tensor.contiguous()
    return tensor if is_aligned(tensor) else tensor.clone()
