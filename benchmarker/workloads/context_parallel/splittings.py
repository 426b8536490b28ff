"""Ways to split one sequence over ranks: the positions of each rank, the blocks of a ring, and the exchanged bytes.

Imports no torch.

contiguous: rank r holds the r-th of N equal chunks. Under a causal mask it computes r + 1 blocks, one on rank 0 and N
on the last rank, so that the other ranks wait: at most N / (2N - 1) of N ranks is used. zigzag: the sequence is cut
into 2N chunks, and rank r holds the chunks r and 2N - 1 - r, an early and a late one, so that all ranks have equal
work (Llama 3, arXiv 2407.21783, section 3.3.2; github.com/zhuzilin/ring-flash-attention).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from benchmarker.core.errors import DeviceError, SpecError, did_you_mean
from benchmarker.workloads.attention.record import demand_of as attention_demand
from benchmarker.workloads.attention.spec import AttentionShape
from benchmarker.workloads.context_parallel.record import ContextParallelDemand
from benchmarker.workloads.context_parallel.spec import ContextParallelPoint, ContextParallelSubject, KernelName
from benchmarker.workloads.operation.operation_call import Kind

Order = Literal["contiguous", "zigzag"]
Rows = Literal["all", "early", "late"]
"""Rows of a rank: all, or those of its early or late chunk."""


class RingStep(NamedTuple):
    source: int
    """Rank that the keys and values come from."""
    queries: Rows = "all"
    keys: Rows = "all"
    is_causal: bool = False
    """True for a block on the diagonal. Other blocks have no mask."""
    is_hidden: bool = False
    """True if the mask hides the whole block, which is then not computed."""


def spans_of(order: Order, rank: int, ranks: int, seq_len: int) -> list[tuple[int, int]]:
    """Return the (first, end) positions of each chunk that a rank holds."""
    chunks = [rank] if order == "contiguous" else [rank, 2 * ranks - 1 - rank]
    length = seq_len // (len(chunks) * ranks)
    return [(chunk * length, (chunk + 1) * length) for chunk in chunks]


def steps_of(order: Order, rank: int, ranks: int) -> tuple[RingStep, ...]:
    """Return the steps of a ring. Keys come from the previous rank, so step s has the keys of rank r - s."""
    steps = [RingStep(rank, is_causal=True)]
    for number in range(1, ranks):
        source = (rank - number) % ranks
        if order == "contiguous":
            steps.append(RingStep(source, is_hidden=source > rank))
        elif source < rank:
            # The source's early chunk precedes both of ours, its late chunk follows both.
            steps.append(RingStep(source, keys="early"))
        else:
            # Both chunks of the source follow our early chunk and precede our late chunk.
            steps.append(RingStep(source, queries="late"))
    return tuple(steps)


def most_of_ideal(ranks: int) -> float:
    """Return the largest share of N ranks that a contiguous causal ring can use: N / (2N - 1)."""
    return ranks / (2 * ranks - 1)


@dataclass(frozen=True)
class Splitting:
    order: Order = "contiguous"
    is_ring: bool = False
    """True if keys and values go from rank to rank, one step during each block."""
    splits_heads: bool = False
    is_alone: bool = False
    """True if rank 0 computes the full sequence by itself."""
    is_torchs: bool = False
    """True for torch's context_parallel: its exchanges are not counted, and it does not run on CPUs."""


# `rank_work` opens them.
VARIANTS: dict[str, Splitting] = {
    "zigzag": Splitting("zigzag", is_ring=True),
    "ring": Splitting("contiguous", is_ring=True),
    "ulysses": Splitting(splits_heads=True),
    "allgather": Splitting("zigzag", is_torchs=True),
    "alltoall": Splitting("zigzag", is_torchs=True),
    "single": Splitting(is_alone=True),
}
FLASH_MULTIPLE = 8
"""Required divisor of head_dim in torch's flash kernel. SDPA pads other widths; a ring does not."""
MAX_HEAD_DIM = 256
FLOAT32_BYTES = 4


def splitting_of(name: str) -> Splitting:
    if name not in VARIANTS:
        raise SpecError(f"no way to split '{name}'{did_you_mean(name, VARIANTS)}")
    return VARIANTS[name]


def gpus_of(name: str, ranks: int) -> int:
    return 1 if splitting_of(name).is_alone else ranks


def wrong_shape(name: str, kernel: KernelName, subject: ContextParallelSubject, point: ContextParallelPoint) -> str:
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


def unsupported(name: str, kernel: KernelName, kind: Kind, dtype: str) -> str:
    if splitting_of(name).is_torchs and kind == "cpu":
        return "torch's context_parallel has no rule for the processor's attention; use zigzag, ring or ulysses"
    if kernel == "cudnn" and kind != "cuda":
        return "kernel cudnn runs on NVIDIA GPUs only; use kernel flash"
    if kind != "cpu" and dtype == "float32":
        return "the GPU's flash kernel takes bfloat16 and float16, not float32"
    return ""


def devices_of(first: str, ranks: int) -> tuple[str, ...]:
    kind, _, index = first.partition(":")
    return tuple(kind if kind == "cpu" else f"{kind}:{int(index or 0) + rank}" for rank in range(ranks))


def check_devices(first: str, ranks: int) -> None:
    """Raise DeviceError if there are fewer GPUs than ranks, given the device of rank 0 as the user names it."""
    from benchmarker.distributed.rank import is_torchrun
    from benchmarker.hardware.device import CudaDevice, find_device

    if is_torchrun():
        from benchmarker.distributed.ranks import world_size

        if ranks > world_size():
            raise DeviceError(f"ranks: torchrun started {world_size()} processes, fewer than {ranks} ranks")
        return
    device = find_device(first)
    if not isinstance(device, CudaDevice):
        return
    import torch

    count = torch.cuda.device_count() - device.indices[0]
    if ranks > count:
        start = f" from {device.torch_name} on" if device.indices[0] else ""
        raise DeviceError(f"ranks: {ranks} need as many GPUs; there are {count}{start}; give --ranks {count} or less")


def demand_of(shape: AttentionShape, ranks: int, splitting: Splitting) -> ContextParallelDemand:
    """Return the work of one call, given the shape of the full sequence: that of attention, divided by the GPUs."""
    gpus = 1 if splitting.is_alone else ranks
    total = attention_demand(shape)
    local = attention_demand(shape._replace(seq_len=max(1, shape.seq_len // ranks)))
    return ContextParallelDemand(
        flops=total.flops // gpus,
        bytes=total.bytes // gpus,
        total_flops=total.flops,
        local_flops=local.flops,
        sent_bytes=sent_bytes(shape, ranks, splitting),
        step_bytes=_step_bytes(shape, ranks) if splitting.is_ring and ranks > 1 else None,
    )


def _kv_bytes(shape: AttentionShape, ranks: int) -> int:
    return 2 * shape.batch_size * shape.seq_len // ranks * shape.kv_heads * shape.head_dim * shape.element_bytes


def _step_bytes(shape: AttentionShape, ranks: int) -> int:
    """Return the bytes that a rank of a ring sends during one block forward and, with gradients, one block backward."""
    keys = _kv_bytes(shape, ranks)
    gradients = keys if ranks == 2 else keys * FLOAT32_BYTES // shape.element_bytes
    return 2 * keys + gradients if shape.is_backward else keys


def sent_bytes(shape: AttentionShape, ranks: int, splitting: Splitting) -> int:
    """Return the bytes that a rank sends in one call, to all other ranks.

    A rank of a ring sends its keys and values N - 1 times forward and N - 1 times backward; also the gradients of one
    block once in the inputs' type, and N - 2 times those of several blocks in float32.
    """
    if splitting.is_alone or ranks == 1:
        return 0
    keys = _kv_bytes(shape, ranks)
    if splitting.splits_heads:
        # A rank sends all but its own share of queries, keys, values and output. The gradients are sent back.
        queries = keys * shape.heads // shape.kv_heads // 2
        return (2 * queries + keys) * (ranks - 1) // ranks * (2 if shape.is_backward else 1)
    if not shape.is_backward:
        return (ranks - 1) * keys
    in_float32 = keys * FLOAT32_BYTES // shape.element_bytes
    if splitting.is_ring:
        return 2 * (ranks - 1) * keys + keys + (ranks - 2) * in_float32
    # torch sends float32 gradients, and once more than there are steps between ranks.
    return 2 * (ranks - 1) * keys + ranks * in_float32
