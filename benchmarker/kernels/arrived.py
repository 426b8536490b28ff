"""Counters for kernels whose program that ends last adds up what all have left."""

from functools import cache

import torch
from torch import Tensor


@cache
def arrived(kernel: str, places: int, device: torch.device) -> Tensor:  # noqa: ARG001  Each kernel has its own.
    """How many programs of a kernel have ended at each place, [places], int32: zeros between two launches.

    All launches of the kernel on a device share it, and each leaves zeros. So they must be in one stream, where each
    waits for the one before it to end before it counts. The first call must not be in the capture of a graph.
    """
    return torch.zeros(places, dtype=torch.int32, device=device)
