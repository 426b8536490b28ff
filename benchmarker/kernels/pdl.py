"""Programmatic dependent launch (PDL), on NVIDIA's Hopper or newer: a kernel starts while the one before it ends.

Such a kernel can read its weights, which no step writes, before the input that it depends on is there. So the memory
does not rest between two kernels.
"""

from functools import cache

import torch

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
