"""Peak memory of one cell.

torch's allocator reports two marks: *allocated*, the live tensors, and *reserved*, the memory that it holds from the
driver. Formats that unpack weights on the fly (NF4) differ mostly in the first. Memory outside the allocator, such as
the CUDA context and cuBLAS workspaces, is in neither. Only the growth of the whole GPU includes it, together with other
programs on the same GPU.
"""

from __future__ import annotations

from typing import Any

from benchmarker.hardware.device import Device
from benchmarker.hardware.find_gpu import find_gpu
from benchmarker.measure.repeat import Measured
from benchmarker.schema.record import Memory


class DeviceMemory:
    """Memory in use on the whole GPU. Make one before the process uses the GPU."""

    def __init__(self, device: Device) -> None:
        self._gpu = find_gpu(device)
        self.before_bytes = self._gpu.used_bytes() if self._gpu else None
        """Bytes in use when this object was made; None on CPU, and if the driver does not report it."""

    def growth_bytes(self) -> int | None:
        """Return the growth of the GPU's used memory since this object was made.

        None if unknown, and if another program released memory meanwhile. Call it before the allocator releases memory,
        while it still holds its peak.
        """
        now = self._gpu.used_bytes() if self._gpu else None
        if now is None or self.before_bytes is None:
            return None
        growth = now - self.before_bytes
        return growth if growth >= 0 else None


def memory_of(measured: Measured[Any], growth_bytes: int | None, *, graph_pool_bytes: int | None = None) -> Memory:
    """Return the peaks over the timed repeats of a cell, with the growth that `DeviceMemory` measured."""
    allocated = [sample.peak_allocated_bytes for sample in measured.samples if sample.peak_allocated_bytes is not None]
    return Memory(
        peak_allocated_bytes=max(allocated, default=None),
        peak_reserved_bytes=measured.reserved_bytes,
        device_used_bytes=growth_bytes,
        peak_resident_bytes=measured.resident_bytes,
        resident_growth_bytes=measured.growth_bytes,
        graph_pool_bytes=graph_pool_bytes,
    )
