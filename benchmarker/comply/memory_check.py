"""Check of the memory counters by a block of 1 GiB."""

from __future__ import annotations

from benchmarker.core.formatting import gib, percent
from benchmarker.hardware.device import Device
from benchmarker.hardware.gpu import DeviceMemory
from benchmarker.schema.comply_file import Finding, judged

BLOCK_BYTES = 2**30
WITHIN = 0.025


def check_memory(device: Device) -> Finding:
    """Check the growth that allocator, driver and operating system report for a block of 1 GiB."""
    import torch

    torch.ones(1, device=device.torch_name)  # Creates the CUDA context, whose memory must not count.
    device.release()
    on_device = DeviceMemory(device)
    device.begin_growth()
    device.reset_peak()
    block = torch.ones(BLOCK_BYTES, dtype=torch.uint8, device=device.torch_name)
    device.synchronize()
    peak = device.peak_memory()
    growths = {
        "the allocator": peak.allocated_bytes,
        "the operating system": peak.growth_bytes,
        "the driver": on_device.growth_bytes(),
    }
    del block
    ratios = {name: growth / BLOCK_BYTES for name, growth in growths.items() if growth is not None}
    text = "; ".join(f"{ratio:.4f} of them by {name}" for name, ratio in ratios.items())
    holds = bool(ratios) and all(abs(ratio - 1) <= WITHIN for ratio in ratios.values())
    return judged("memory", f"{gib(BLOCK_BYTES)} allocated; {text}; limit {percent(WITHIN)}", holds=holds)
