"""Kernels that start while the one before them ends: NVIDIA's programmatic dependent launch.

What a step reads and never writes, its weights, such a kernel can fetch before what it depends on is there; the memory
does not rest between one product and the next.
"""

from functools import cache

import torch

HOPPER = 9


@cache
def can_start_early(device: torch.device) -> bool:
    """Whether a kernel of Triton's can: on Hopper or newer."""
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    import triton

    # Triton 3.4 has the two calls, but cannot compile them.
    return not triton.__version__.startswith("3.4.") and torch.cuda.get_device_capability(device)[0] >= HOPPER
