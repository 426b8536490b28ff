"""One rank's share of one call, and attention over the full sequence on one GPU. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarker.core.errors import DeviceError
from benchmarker.workloads.attention.spec import AttentionShape
from benchmarker.workloads.attention.variants.torch_attention import Backend, open_sdpa
from benchmarker.workloads.context_parallel.sequence_split import Order
from benchmarker.workloads.context_parallel.spec import KernelName
from benchmarker.workloads.operation.implementation import Operation

SDPA_BACKENDS: dict[KernelName, Backend] = {"flash": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION"}


@dataclass(frozen=True)
class Plan:
    """One rank's share of one call."""

    shape: AttentionShape
    """Shape of the call over all ranks."""
    rank: int
    ranks: int
    device: str
    """Device of the rank, as torch names it."""
    kernel: KernelName
    order: Order
    is_exchanging: bool = True
    """False for the same work without exchange: each rank uses its own tensors, and the result is wrong."""


def devices_of(first: str, ranks: int) -> tuple[str, ...]:
    """Return the device of each rank, with `first` for rank 0: consecutive GPUs, or the CPU for all."""
    kind, _, index = first.partition(":")
    return tuple(kind if kind == "cpu" else f"{kind}:{int(index or 0) + rank}" for rank in range(ranks))


def check_devices(first: str, ranks: int) -> None:
    """Raise DeviceError if there are fewer GPUs than ranks.

    Args:
        first: Device of rank 0, as the user names it.
    """
    from benchmarker.distributed.rank import is_torchrun
    from benchmarker.hardware.device import CudaDevice, find_device

    if is_torchrun():
        from benchmarker.distributed.torchrun import world_size

        if ranks > world_size():
            raise DeviceError(f"ranks: torchrun started {world_size()} processes, fewer than {ranks} ranks")
        return
    device = find_device(first)
    if not isinstance(device, CudaDevice):
        return
    import torch

    count = torch.cuda.device_count() - device.index
    if ranks > count:
        start = f" from {device.torch_name} on" if device.index else ""
        raise DeviceError(f"ranks: {ranks} need as many GPUs; there are {count}{start}; give --ranks {count} or less")


def open_single(plan: Plan) -> Operation:
    return open_sdpa(SDPA_BACKENDS[plan.kernel])(plan.shape, plan.device)
