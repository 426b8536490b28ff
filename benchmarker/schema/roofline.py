"""What the device does at best, and what a call cannot do without: the two sides of a roofline.

The limits are measured in the very process that measures the workload, not taken from a data sheet: a board that is
shared, capped or hot has other ones.
"""

from __future__ import annotations

from benchmarker.schema.base import Count, Number, Plain, Rate, Whole


class Limits(Plain):
    """What the device does at best, measured in this process before it loaded a model."""

    read_bytes_per_s: Rate
    """Summing an array."""
    copy_bytes_per_s: Rate
    """Copying one half of the array over the other: bytes read plus bytes written."""
    array_bytes: Whole
    """Size of that array: several times the cache, on a GPU 2 GiB."""
    matmul_flops_per_s: Rate
    """Of square matrices in the type that is measured, 2 * n^3 operations each. On a CPU of the fastest of some sizes,
    in that type and in float32."""
    matmul_dtype: str
    """Of those matrices."""
    matmul_size: Whole
    """n."""
    cache_bytes: Whole | None = None
    """The device's last cache before its memory. None where nothing says."""
    launch_s: Number | None = None
    """Host time to launch one empty kernel, many back to back, outside torch's operators. None on CPU."""
    operator_s: Number | None = None
    """The same for torch's smallest operator, with Python and the dispatcher. None on CPU."""
    graph_kernel_s: Number | None = None
    """Time of one empty kernel inside a replayed graph: what is left of a launch there. None on CPU."""

    @property
    def bytes_per_s(self) -> float:
        """The bandwidth: the higher of the two, as decoding reads much more than it writes."""
        return max(self.read_bytes_per_s, self.copy_bytes_per_s)


class Demand(Plain):
    """What one call cannot do without, counted from its shapes and tensors."""

    flops: Count | None = None
    """Floating-point operations. None in records from before it was kept."""
    bytes: Count | None = None
    """Read from and written to the device's memory at least. None in records from before it was kept."""
