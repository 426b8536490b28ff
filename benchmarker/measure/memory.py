"""Peak memory of one cell.

torch's allocator reports two marks: *allocated*, the tensors alive at once, and *reserved*, what it holds from the
driver. Formats that unpack weights on the fly (nf4) differ mostly in the first. Memory taken outside the allocator,
such as the context and cuBLAS workspaces, is in neither: only the growth of the whole board shows it, and that counts
other programs on the same card too.
"""

from __future__ import annotations

from typing import Any

from benchmarker.hardware.device import Device
from benchmarker.hardware.find_gpu import find_gpu
from benchmarker.measure.repeat import Measured
from benchmarker.schema.record import Memory


class DeviceMemory:
    """Memory in use on the whole board. Make one before the process touches the card."""

    def __init__(self, device: Device) -> None:
        self._gpu = find_gpu(device)
        self.before_bytes = self._gpu.used_bytes() if self._gpu else None
        """Bytes in use on the board when this object was made; None on CPU, and where the driver does not say."""

    def growth_bytes(self) -> int | None:
        """Bytes that the board's use has grown by since this object was made.

        None where that is not known, also because another program gave memory back meanwhile.

        Read it while the allocator still holds what the repeats needed: what it has is its peak until it is told to
        release.
        """
        now = self._gpu.used_bytes() if self._gpu else None
        if now is None or self.before_bytes is None:
            return None
        growth = now - self.before_bytes
        return growth if growth >= 0 else None


def memory_of(measured: Measured[Any], growth_bytes: int | None, *, graph_pool_bytes: int | None = None) -> Memory:
    """Peaks over the timed repeats of a cell, with the board's growth as `DeviceMemory` gave it."""
    allocated = [sample.peak_allocated_bytes for sample in measured.samples if sample.peak_allocated_bytes is not None]
    return Memory(
        peak_allocated_bytes=max(allocated, default=None),
        peak_reserved_bytes=measured.reserved_bytes,
        device_used_bytes=growth_bytes,
        peak_resident_bytes=measured.resident_bytes,
        resident_growth_bytes=measured.growth_bytes,
        graph_pool_bytes=graph_pool_bytes,
    )
