"""What is asked of context parallel attention: one layer's shapes, the lengths and ranks, and the ways to split.

A rank is one process with one GPU. Every rank holds `seq_len / ranks` positions of the sequence. Frozen values, checked
when they are made, before torch is imported.
"""

from __future__ import annotations

from itertools import product
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from benchmarker.schema.base import Plain
from benchmarker.schema.experiment import ExperimentBase, GridBase, Positive, VariantBase
from benchmarker.schema.job import Job
from benchmarker.workloads.attention.spec import Mode, Shape

KernelName = Literal["flash", "cudnn"]
SplitDType = Literal["bfloat16", "float16", "float32"]


class ContextParallelSubject(Plain):
    """One layer of causal attention, without its projections."""

    heads: Positive = 32
    """Query heads."""
    kv_heads: Positive | None = None
    """Heads of keys and values, each shared by heads / kv_heads query heads. As many as heads if not said."""
    head_dim: Positive = 128
    """Numbers of one head."""
    batch_size: Positive = 1
    """Sequences at once."""
    dtype: SplitDType = "bfloat16"
    """Type of queries, keys and values: bfloat16, float16 or float32."""
    seed: int = 0
    """Of the random inputs."""

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise ValueError(f"kv_heads: {self.heads} heads cannot share {self.kv_heads} evenly; give a divisor")
        return self

    @property
    def shared_heads(self) -> int:
        """Heads of keys and values."""
        return self.kv_heads or self.heads


class ContextParallelVariant(VariantBase):
    """One way to split the sequence, over one library's kernel."""

    variant: Annotated[str, Field(min_length=1)]
    """A name of the registry: zigzag, ring, ulysses, allgather, alltoall, single."""
    kernel: KernelName = "flash"
    """The kernel of each block: flash (FlashAttention 2, or the processor's own), or cudnn."""


class ContextParallelPoint(NamedTuple):
    """One cell of the grid."""

    ranks: int
    seq_len: int
    mode: Mode


class ContextParallelGrid(GridBase):
    """Which lengths are measured, over how many ranks, forward or with the backward pass."""

    seq_len: Annotated[tuple[Positive, ...], Field(min_length=1)] = (8192, 16384, 32768, 65536)
    """Positions of the whole sequence, over all ranks."""
    ranks: Annotated[tuple[Positive, ...], Field(min_length=1)] = (2,)
    """Processes, each with a GPU of its own."""
    mode: Annotated[tuple[Mode, ...], Field(min_length=1)] = ("forward", "forward_backward")
    """`forward` as in inference; `forward_backward` with the gradients of queries, keys and values."""

    def points(self) -> list[ContextParallelPoint]:
        """Every cell, smallest first. Cells of as many ranks are neighbours: they share the processes."""
        cells = product(self.ranks, self.seq_len, self.mode)
        return sorted({ContextParallelPoint(*cell) for cell in cells})


class ContextParallelExperiment(ExperimentBase):
    """A whole comparison, as a config file holds it."""

    workload: Literal["context_parallel"] = "context_parallel"
    subject: ContextParallelSubject = ContextParallelSubject()
    grid: ContextParallelGrid = ContextParallelGrid()
    variants: Annotated[tuple[ContextParallelVariant, ...], Field(min_length=1)]


class ContextParallelJob(Job):
    """Everything that one run is told."""

    subject: ContextParallelSubject
    variant: ContextParallelVariant
    grid: ContextParallelGrid

    @property
    def gpus(self) -> int:
        """GPUs that a process of it uses at once, with those of the ranks that it starts."""
        from benchmarker.workloads.context_parallel.variants.registry import splitting_of

        return 1 if splitting_of(self.variant.variant).is_alone else max(self.grid.ranks)


def shape_of(subject: ContextParallelSubject, seq_len: int, mode: Mode) -> Shape:
    """Causal attention over so many positions."""
    return Shape(
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
