"""Specification of context_parallel: one layer's shape, lengths, ranks, and the splittings of a sequence among ranks.

A rank is one process with one GPU. Each rank holds `seq_len / ranks` positions of the sequence.

Importing this file needs no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from benchmarker.core.errors import DeviceError, SpecError, did_you_mean
from benchmarker.schema.job import ExperimentBase, GridBase, Job, Positive, VariantBase
from benchmarker.workloads.attention.spec import AttentionShape
from benchmarker.workloads.context_parallel.zigzag import Order
from benchmarker.workloads.operation.operation_call import Kind
from benchmarker.workloads.operation.spec import AttentionHeads, PassMode

KernelName = Literal["flash", "cudnn"]
SplitDType = Literal["bfloat16", "float16", "float32"]


class ContextParallelSubject(AttentionHeads):
    """One layer of causal attention, without its projections."""

    heads: Positive = 32
    """Query heads."""
    batch_size: Positive = 1
    """Sequences per call."""
    dtype: SplitDType = "bfloat16"
    """Type of queries, keys and values: bfloat16, float16 or float32."""
    seed: int = 0
    """Seed of the random inputs."""


class ContextParallelVariant(VariantBase):
    variant: Annotated[str, Field(min_length=1)]
    """Splitting of the sequence: zigzag, ring, ulysses, allgather, alltoall, or single (one GPU)."""
    kernel: KernelName = "flash"
    """Kernel of each block: flash (FlashAttention 2, or torch's flash attention for CPUs), or cudnn."""


class ContextParallelPoint(NamedTuple):
    ranks: int
    seq_len: int
    mode: PassMode


class ContextParallelGrid(GridBase):
    seq_len: Annotated[tuple[Positive, ...], Field(min_length=1)] = (8192, 16384, 32768, 65536)
    """Positions of the full sequence, all ranks together."""
    ranks: Annotated[tuple[Positive, ...], Field(min_length=1)] = (2,)
    """Number of processes, each with its own GPU."""
    mode: Annotated[tuple[PassMode, ...], Field(min_length=1)] = ("forward", "forward_backward")
    """`forward` as in inference; `forward_backward` adds the gradients of queries, keys and values."""

    def combinations(self) -> list[ContextParallelPoint]:
        """Return every cell, smallest first. Cells with equal `ranks` are adjacent and use the same processes."""
        return sorted({ContextParallelPoint(*cell) for cell in product(self.ranks, self.seq_len, self.mode)})


class ContextParallelExperiment(ExperimentBase):
    workload: Literal["context_parallel"] = "context_parallel"
    subject: ContextParallelSubject = ContextParallelSubject()
    grid: ContextParallelGrid = ContextParallelGrid()
    variants: Annotated[tuple[ContextParallelVariant, ...], Field(min_length=1)]


class ContextParallelJob(Job):
    subject: ContextParallelSubject
    variant: ContextParallelVariant
    grid: ContextParallelGrid

    @property
    def title(self) -> str:
        ranks = " and ".join(str(ranks) for ranks in sorted(set(self.grid.ranks)))
        return f"context parallel attention of {self.subject.text} over {ranks} rank{'s' * (ranks != '1')}"

    @property
    def gpus(self) -> int:
        """Largest number of GPUs that the run uses at once, all ranks together."""
        return splitting_of(self.variant.variant).gpus(max(self.grid.ranks))


def shape_of(subject: ContextParallelSubject, seq_len: int, mode: str) -> AttentionShape:
    return AttentionShape(
        batch_size=subject.batch_size,
        seq_len=seq_len,
        heads=subject.heads,
        kv_heads=subject.shared_heads,
        head_dim=subject.head_dim,
        causal=True,
        window=None,
        dtype=subject.dtype,
        mode=mode,
    )


@dataclass(frozen=True)
class Splitting:
    exchange: Literal["ring", "heads", "torch", "none"]
    """`ring`: each rank sends keys and values to the next rank while it computes a block. `heads`: ranks exchange heads
    for positions. `torch`: torch's context_parallel, whose exchanges are not counted, and which does not run on CPUs.
    `none`: rank 0 alone computes the full sequence."""
    order: Order = "contiguous"

    def gpus(self, ranks: int) -> int:
        return 1 if self.exchange == "none" else ranks


# `rank_work.OPENERS` has the function that prepares each variant.
VARIANTS: dict[str, Splitting] = {
    "zigzag": Splitting("ring", "zigzag"),
    "ring": Splitting("ring"),
    "ulysses": Splitting("heads"),
    "allgather": Splitting("torch", "zigzag"),
    "alltoall": Splitting("torch", "zigzag"),
    "single": Splitting("none"),
}
FLASH_MULTIPLE = 8  # torch's flash kernel requires a multiple as head_dim. SDPA pads other widths; a ring does not.
MAX_HEAD_DIM = 256


def splitting_of(name: str) -> Splitting:
    if name not in VARIANTS:
        raise SpecError(f"no way to split '{name}'{did_you_mean(name, VARIANTS)}")
    return VARIANTS[name]


def wrong_shape(variant: ContextParallelVariant, subject: ContextParallelSubject, point: ContextParallelPoint) -> str:
    splitting, ranks = splitting_of(variant.variant), point.ranks
    if splitting.exchange == "none":
        return ""
    parts = 2 * ranks if splitting.order == "zigzag" else ranks
    if point.seq_len % parts:
        nearest = max(1, point.seq_len // parts) * parts
        return f"seq_len: {point.seq_len} is not a multiple of {parts}, for {ranks} ranks; {nearest} is"
    if splitting.exchange == "heads" and (subject.heads % ranks or subject.shared_heads % ranks):
        return (
            f"heads: {variant.variant} splits them over the ranks; {subject.heads} heads and {subject.shared_heads} "
            f"kv_heads are not both multiples of {ranks}"
        )
    if subject.head_dim > MAX_HEAD_DIM or subject.head_dim % FLASH_MULTIPLE:
        allowed = f"a multiple of {FLASH_MULTIPLE} up to {MAX_HEAD_DIM}"
        return f"head_dim: kernel {variant.kernel} takes {allowed}, not {subject.head_dim}"
    if variant.kernel == "cudnn" and subject.dtype == "float32":
        return "dtype: kernel cudnn takes bfloat16 and float16, not float32; use kernel flash"
    return ""


def unsupported(variant: ContextParallelVariant, kind: Kind, subject: ContextParallelSubject) -> str:
    if splitting_of(variant.variant).exchange == "torch" and kind == "cpu":
        return "torch's context_parallel has no rule for the processor's attention; use zigzag, ring or ulysses"
    if variant.kernel == "cudnn" and kind != "cuda":
        return "kernel cudnn runs on NVIDIA GPUs only; use kernel flash"
    if kind != "cpu" and subject.dtype == "float32":
        return "the GPU's flash kernel takes bfloat16 and float16, not float32"
    return ""


def devices_of(first: str, ranks: int) -> tuple[str, ...]:
    kind, _, index = first.partition(":")
    return tuple(kind if kind == "cpu" else f"{kind}:{int(index or 0) + rank}" for rank in range(ranks))


def check_devices(first: str, ranks: int) -> None:
    """Raise DeviceError if there are fewer GPUs than ranks. `first`: device of rank 0, as the user typed it."""
    import torch

    from benchmarker.hardware.device import CudaDevice, find_device

    if torch.distributed.is_torchelastic_launched():
        from benchmarker.distributed.ranks import world_size

        if ranks > world_size():
            raise DeviceError(f"ranks: torchrun started {world_size()} processes, fewer than {ranks} ranks")
        return
    if not isinstance(device := find_device(first), CudaDevice):
        return
    count = torch.cuda.device_count() - device.indices[0]
    if ranks > count:
        start = f" from {device.torch_name} on" if device.indices[0] else ""
        raise DeviceError(f"ranks: {ranks} need as many GPUs; there are {count}{start}; give --ranks {count} or less")
