"""Programmatic dependent launch (PDL), on NVIDIA's Hopper or newer: a kernel starts while the one before it ends.

Such a kernel can read its weights, which no step writes, before the input that it depends on is there. So the memory
does not rest between two kernels.
"""

from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

HOPPER = 9
"""Major number of Hopper's compute capability."""


@cache
def can_start_early(device: torch.device) -> bool:
    """Whether a kernel can be launched so: on Hopper or newer, and, for Triton's, with a Triton that is not 3.4."""
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    import triton

    # Triton 3.4 has the two calls, but cannot compile them.
    return not triton.__version__.startswith("3.4.") and torch.cuda.get_device_capability(device)[0] >= HOPPER


try:
    import triton
    import triton.language as tl
except ImportError:

    def _as_it_is(*functions: Any, **_: Any) -> Any:
        """A stand-in for `triton.jit`, with arguments or without, and for `tl.constexpr`: what is given, unchanged."""
        return functions[0] if functions else _as_it_is

    triton: Any = SimpleNamespace(jit=_as_it_is)  # type: ignore[no-redef]
    tl: Any = SimpleNamespace(constexpr=_as_it_is)  # type: ignore[no-redef]

__all__ = ["tl", "triton"]


@cache
def arrived(kernel: str, places: int, device: torch.device) -> Tensor:  # noqa: ARG001  Each kernel has its own.
    """How many programs of a kernel have ended at each place, [places], int32: zeros between two launches.

    All launches of the kernel on a device share it, and each leaves zeros. So they must be in one stream, where each
    waits for the one before it to end before it counts. The first call must not be in the capture of a graph.
    """
    return torch.zeros(places, dtype=torch.int32, device=device)


def is_aligned(tensor: Tensor) -> bool:
    """Whether a tensor begins at a multiple of 16 bytes, so that it can be read 16 bytes at a time."""
    return tensor.data_ptr() % 16 == 0


def aligned(tensor: Tensor) -> Tensor:
    """The same numbers one after another, from a multiple of 16 bytes on; a copy only where they lie otherwise."""
    tensor = tensor.contiguous()
    return tensor if is_aligned(tensor) else tensor.clone()
