"""Ways to split by name, and one rank's share of a call. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarker.core.errors import DeviceError, SpecError, did_you_mean
from benchmarker.workloads.attention.spec import AttentionShape
from benchmarker.workloads.attention.variants.torch_attention import Backend, open_sdpa
from benchmarker.workloads.context_parallel.sequence_split import Order
from benchmarker.workloads.context_parallel.spec import ContextParallelPoint, ContextParallelSubject, KernelName
from benchmarker.workloads.operation.implementation import Kind, Operation

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


FLASH_MULTIPLE = 8
"""Required divisor of head_dim in torch's flash kernel. SDPA pads other widths; a ring does not."""
MAX_HEAD_DIM = 256
NOT_ON_CPU = "torch's context_parallel has no rule for the processor's attention; use zigzag, ring or ulysses"


@dataclass(frozen=True)
class Splitting:
    summary: str
    open: Callable[[Plan], Operation]
    """Prepare a plan. Imports the module of the splitting."""
    order: Order
    """Assignment of positions to ranks."""
    is_ring: bool = False
    """True if keys and values go from rank to rank, one step during each block."""
    splits_heads: bool = False
    is_alone: bool = False
    """True if rank 0 computes the full sequence by itself."""
    is_torchs: bool = False
    """True for torch's context_parallel: its exchanges are not counted, and it does not run on CPUs."""


def _open_ring(plan: Plan) -> Operation:
    from benchmarker.workloads.context_parallel.variants.ring import open_ring

    return open_ring(plan)


def _open_ulysses(plan: Plan) -> Operation:
    from benchmarker.workloads.context_parallel.variants.ulysses import open_ulysses

    return open_ulysses(plan)


def _open_allgather(plan: Plan) -> Operation:
    from benchmarker.workloads.context_parallel.variants.torch_context_parallel import open_torch

    return open_torch(plan, "allgather")


def _open_alltoall(plan: Plan) -> Operation:
    from benchmarker.workloads.context_parallel.variants.torch_context_parallel import open_torch

    return open_torch(plan, "alltoall")


VARIANTS: dict[str, Splitting] = {
    "zigzag": Splitting(
        "our ring over the library's kernels, in zigzag order: all ranks have equal work",
        _open_ring,
        "zigzag",
        is_ring=True,
    ),
    "ring": Splitting(
        "the same ring in contiguous order: the last rank has most of the work",
        _open_ring,
        "contiguous",
        is_ring=True,
    ),
    "ulysses": Splitting(
        "our all-to-all over the heads: each rank has the full sequence for a share of the heads",
        _open_ulysses,
        "contiguous",
        splits_heads=True,
    ),
    "allgather": Splitting(
        "torch's context_parallel, which gathers all keys and values at once (its default)",
        _open_allgather,
        "zigzag",
        is_torchs=True,
    ),
    "alltoall": Splitting(
        "torch's context_parallel, which passes keys and values on by all-to-all",
        _open_alltoall,
        "zigzag",
        is_torchs=True,
    ),
    "single": Splitting("the full sequence on one rank, as the anchor", open_single, "contiguous", is_alone=True),
}


def splitting_of(name: str) -> Splitting:
    """Return the entry of a name. Raises SpecError."""
    if name not in VARIANTS:
        raise SpecError(f"no way to split '{name}'{did_you_mean(name, VARIANTS)}")
    return VARIANTS[name]


def gpus_of(name: str, ranks: int) -> int:
    """Return the GPUs that a variant computes on."""
    return 1 if splitting_of(name).is_alone else ranks


def wrong_shape(name: str, kernel: KernelName, subject: ContextParallelSubject, point: ContextParallelPoint) -> str:
    """Return why a variant cannot split the shape on any device, or ''."""
    splitting, ranks = splitting_of(name), point.ranks
    if splitting.is_alone:
        return ""
    parts = 2 * ranks if splitting.order == "zigzag" else ranks
    if point.seq_len % parts:
        nearest = max(1, point.seq_len // parts) * parts
        return f"seq_len: {point.seq_len} is not a multiple of {parts}, for {ranks} ranks; {nearest} is"
    if splitting.splits_heads and (subject.heads % ranks or subject.shared_heads % ranks):
        return (
            f"heads: {name} splits them over the ranks; {subject.heads} heads and {subject.shared_heads} kv_heads "
            f"are not both multiples of {ranks}"
        )
    if subject.head_dim > MAX_HEAD_DIM or subject.head_dim % FLASH_MULTIPLE:
        allowed = f"a multiple of {FLASH_MULTIPLE} up to {MAX_HEAD_DIM}"
        return f"head_dim: kernel {kernel} takes {allowed}, not {subject.head_dim}"
    if kernel == "cudnn" and subject.dtype == "float32":
        return "dtype: kernel cudnn takes bfloat16 and float16, not float32; use kernel flash"
    return ""


def unsupported(name: str, kernel: KernelName, kind: Kind, dtype: str) -> str | None:
    """Return why a variant cannot run on that kind of device, or None."""
    if splitting_of(name).is_torchs and kind == "cpu":
        return NOT_ON_CPU
    if kernel == "cudnn" and kind != "cuda":
        return "kernel cudnn runs on NVIDIA GPUs only; use kernel flash"
    if kind != "cpu" and dtype == "float32":
        return "the GPU's flash kernel takes bfloat16 and float16, not float32"
    return None
