"""Specification of the context_parallel workload: one layer's shape, lengths and ranks, and the ways to split.

A rank is one process with one GPU. Each rank holds `seq_len / ranks` positions of the sequence.
"""

from __future__ import annotations

from itertools import product
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from benchmarker.schema.job import ExperimentBase, GridBase, Job, Positive, VariantBase
from benchmarker.workloads.attention.spec import AttentionShape
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
    """One way to split the sequence, over one library's kernel."""

    variant: Annotated[str, Field(min_length=1)]
    """A name of the registry: zigzag, ring, ulysses, allgather, alltoall, single."""
    kernel: KernelName = "flash"
    """Kernel of each block: flash (FlashAttention 2, or torch's flash attention for CPUs), or cudnn."""


class ContextParallelPoint(NamedTuple):
    ranks: int
    seq_len: int
    mode: PassMode


class ContextParallelGrid(GridBase):
    seq_len: Annotated[tuple[Positive, ...], Field(min_length=1)] = (8192, 16384, 32768, 65536)
    """Positions of the full sequence, over all ranks."""
    ranks: Annotated[tuple[Positive, ...], Field(min_length=1)] = (2,)
    """Processes, each with its own GPU."""
    mode: Annotated[tuple[PassMode, ...], Field(min_length=1)] = ("forward", "forward_backward")
    """`forward` as in inference; `forward_backward` adds the gradients of queries, keys and values."""

    def points(self) -> list[ContextParallelPoint]:
        """Return every cell, smallest first. Cells with equal ranks are adjacent and share the processes."""
        cells = product(self.ranks, self.seq_len, self.mode)
        return sorted({ContextParallelPoint(*cell) for cell in cells})


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
        return f"context parallel attention of {self.subject.text} over {ranks} ranks"

    @property
    def gpus(self) -> int:
        """GPUs that one process uses at once, including those of the ranks that it starts."""
        from benchmarker.workloads.context_parallel.splittings import gpus_of

        return gpus_of(self.variant.variant, max(self.grid.ranks))


def shape_of(subject: ContextParallelSubject, seq_len: int, mode: str) -> AttentionShape:
    """Return the shape of causal attention over that many positions."""
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
