"""What a run of context parallel attention records, beside what every workload's record has."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from benchmarker.schema.base import Count, Plain, Positive, Rate, Seconds, Spent, Whole
from benchmarker.schema.record import CellBase, RunRecord, VariantFacts
from benchmarker.schema.roofline import Demand
from benchmarker.workloads.attention.record import (
    AttentionChecked,
    AttentionSample,
    SeenKernel,
    TensorName,
)
from benchmarker.workloads.attention.spec import Mode
from benchmarker.workloads.context_parallel.spec import ContextParallelSubject, KernelName


class ContextParallelDemand(Demand):
    """What one call cannot do without, by formula. The work of all ranks, and the part of one of them."""

    flops: Positive
    """Of one GPU, if all have the same: `total_flops` over the GPUs that compute."""
    bytes: Positive
    """Of one GPU: inputs read and outputs written once."""
    total_flops: Positive
    """Of all ranks: 4 * batch * heads * head_dim * allowed pairs forward, 2.5 times that backward."""
    local_flops: Positive
    """Of the same layer over seq_len / ranks positions: what the single GPU is measured with."""
    sent_bytes: Count
    """That a rank sends in one call. 0 for a rank by itself."""
    step_bytes: Count | None = None
    """That a rank of a ring sends beside one block, forward and backward together. None for what is no ring."""


class ContextParallelSample(AttentionSample):
    """One timed repeat of all ranks: several calls in a row after a barrier."""

    ranks_s: tuple[Seconds, ...] = ()
    """Each rank's own seconds of one call, from the barrier until its device was drained. `latency_s` is the largest,
    and `event_s` the largest of the devices' own clocks."""
    rank_peak_bytes: tuple[Whole, ...] = ()
    """Most bytes of live tensors on each rank. Empty on CPU."""


class TensorDistance(Plain):
    """How far one result is from the single GPU's, which computed the whole with the same kernel."""

    tensor: TensorName
    distance: Spent
    """Frobenius norm of the difference over that of the single GPU's result. All rows are compared."""
    single_error: Spent | None = None
    """The single GPU's own distance from float64. None for what is not compared with float64."""


class ContextParallelChecked(AttentionChecked):
    """What the result of all ranks, put together, was held against before anything was timed."""

    distances: tuple[TensorDistance, ...] = ()
    """From the single GPU. Empty where rank 0 is the single GPU."""
    order_error: Spent | None = None
    """Largest relative error of an output whose values are positions: it says which positions each row saw."""


class WorkKind(Plain):
    """One purpose of kernels in one profiled call on one rank."""

    kind: str
    busy_s: Spent
    """In which at least one kernel of it ran."""
    alone_s: Spent
    """In which nothing of another kind ran."""


class RankTrace(Plain):
    """One call on one rank."""

    span_s: Seconds
    """From its first kernel's start to its last one's end; on a processor the call's time."""
    busy_s: Spent
    """In which at least one kernel ran."""
    kinds: tuple[WorkKind, ...]


class ContextParallelCell(CellBase):
    """One length, number of ranks and mode."""

    ranks: Positive
    seq_len: Positive
    mode: Mode
    gpus: Positive
    """Ranks that compute: 1 for the single GPU."""
    inputs_sha256: str | None = None
    """Of the shapes, the seed and the first numbers of each input before they are rounded to the type."""
    demand: ContextParallelDemand | None = None
    checked: ContextParallelChecked | None = None
    kernels: tuple[SeenKernel, ...] = ()
    """What ran on rank 0 in one profiled call, longest first."""
    input_copies: Count | None = None
    """Copies of the inputs that the calls take turns over."""
    warmup: tuple[ContextParallelSample, ...] = ()
    samples: tuple[ContextParallelSample, ...] = ()
    sent_bytes: Count | None = None
    """That rank 0 handed over for others in one call, counted. None for torch's own exchanges. `demand` has it by
    formula."""
    alone_s: tuple[Seconds, ...] = ()
    """Each rank's seconds of one call of the same work without exchange: the median of a few. Empty where there is no
    exchange, or it cannot be left out."""
    no_alone: str | None = None
    """Why it cannot."""
    single_s: Seconds | None = None
    """Seconds of one call over seq_len / ranks positions, on every GPU by itself at the same time: the slowest's median
    of a few. None for the single GPU."""
    link_bytes_per_s: Rate | None = None
    """What each rank sends to the next while it receives as much: the slowest, the best of a few. None for one rank."""
    link_bytes: Positive | None = None
    """Of one message of that."""
    traces: tuple[RankTrace, ...] = ()
    """One call on each rank: on a GPU by the profiler; on a processor by the rank's clock, which tells waiting for an
    exchange from the rest. Empty there for one rank."""


class ContextParallelFacts(Plain):
    """How the ranks are joined."""

    backend: Literal["nccl", "gloo"]
    collectives: str | None = None
    """Version of NCCL. None for gloo."""
    devices: tuple[str, ...] = ()
    """Of each rank, as torch names it."""
    hosts: Positive = 1
    """On which torchrun started processes; 1 without it."""
    device_names: tuple[str, ...] = ()
    """What they are."""
    peer_access: bool | None = None
    """Whether the first GPU reaches the second one's memory. None on CPU, and for one GPU."""
    variables: dict[str, str] = Field(default_factory=dict)
    """Environment variables that NCCL and gloo read, as they were."""


class ContextParallelVariantFacts(VariantFacts):
    """Which way to split."""

    variant: str
    kernel: KernelName


class ContextParallelRecord(RunRecord):
    """One process with its ranks, one way to split."""

    workload: Literal["context_parallel"] = "context_parallel"
    subject: ContextParallelSubject
    variant: ContextParallelVariantFacts
    built: ContextParallelFacts | None = None
    """None where no cell was begun."""
    cells: tuple[ContextParallelCell, ...] = ()
