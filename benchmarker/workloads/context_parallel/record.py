"""Record of the context_parallel workload, exposed communication, and the FLOPs and bytes of one call by formula."""

from __future__ import annotations

from statistics import mean
from typing import Literal

from pydantic import Field

from benchmarker.schema.base import Count, Plain, Positive, Rate, Seconds, Spent, Whole
from benchmarker.schema.record import DISTURBING, RunRecord, VariantFacts, median_latency_s
from benchmarker.workloads.attention.attention_flops import attention_flops_and_bytes
from benchmarker.workloads.attention.record import AttentionChecked
from benchmarker.workloads.attention.spec import AttentionShape
from benchmarker.workloads.context_parallel.spec import ContextParallelSubject, KernelName, Splitting
from benchmarker.workloads.operation.record import OperationCell, OperationDemand, OperationSample, TensorName
from benchmarker.workloads.operation.spec import PassMode

FLOAT32_BYTES = 4


class ContextParallelDemand(OperationDemand):
    flops: Positive
    """FLOPs per GPU: `total_flops` divided by the GPUs that compute."""
    bytes: Positive
    """Bytes of inputs and outputs per GPU, each read or written once."""
    total_flops: Positive
    """FLOPs of all ranks: 4 * batch * heads * head_dim * allowed pairs forward, 2.5 times that backward."""
    local_flops: Positive
    """FLOPs of the same layer over seq_len / ranks positions, the work that `single_s` times on one GPU."""
    sent_bytes: Count
    """Bytes that a rank sends in one call. 0 for a single rank."""
    step_bytes: Count | None = None
    """Bytes that a rank of a ring sends per block, forward and backward together. None without a ring."""


class ContextParallelSample(OperationSample):
    """One timed repeat of all ranks: several calls in a row after a barrier."""

    ranks_s: tuple[Seconds, ...] = ()
    """Seconds of one call on each rank, from the barrier until its device has finished. `latency_s` is the largest."""
    rank_peak_bytes: tuple[Whole, ...] = ()
    """Peak of live tensors on each rank. Empty on CPU."""


class TensorDistance(Plain):
    """Difference between one result tensor and the result of a single GPU with the same kernel."""

    tensor: TensorName
    distance: Spent
    """Frobenius norm of the difference divided by the norm of the single GPU's result, over all rows."""
    single_error: Spent | None = None
    """Error of the single GPU's result relative to float64. None for a tensor that is not compared with float64."""


class ContextParallelChecked(AttentionChecked):
    distances: tuple[TensorDistance, ...] = ()
    """Differences from a single GPU's result. Empty if one GPU computes the whole sequence."""
    order_error: Spent | None = None
    """Largest relative error for inputs whose values encode positions: it shows if rows attend to wrong positions."""


class WorkKind(Plain):
    kind: str
    busy_s: Spent
    """Seconds in which at least one kernel of the category ran."""
    alone_s: Spent
    """Seconds in which only kernels of the category ran."""


class RankTrace(Plain):
    span_s: Seconds
    """Seconds from the first kernel's start to the last kernel's end; on CPU the time of the call."""
    busy_s: Spent
    """Seconds in which at least one kernel ran."""
    kinds: tuple[WorkKind, ...]


class ContextParallelCell(OperationCell):
    ranks: Positive
    mode: PassMode
    gpus: Positive
    """Number of ranks that compute: 1 for the variant `single`."""
    demand: ContextParallelDemand | None = None
    checked: ContextParallelChecked | None = None
    warmup: tuple[ContextParallelSample, ...] = ()
    samples: tuple[ContextParallelSample, ...] = ()
    sent_bytes: Count | None = None
    """Bytes that rank 0 sent to other ranks in one call, as counted. None for torch's own exchanges."""
    alone_s: tuple[Seconds, ...] = ()
    """Seconds of one call without exchange on each rank, median of three. Empty if the exchange cannot be left out."""
    no_alone: str | None = None
    """Reason why the exchange cannot be left out."""
    single_s: Seconds | None = None
    """Seconds of one call over seq_len / ranks positions, which every GPU runs by itself at the same time: median of
    three on the slowest GPU. None for the variant `single`."""
    link_bytes_per_s: Rate | None = None
    """Rate of the slowest rank if each rank sends to the next rank while it receives, best of five exchanges."""
    link_bytes: Positive | None = None
    """Bytes of one message in the measurement of the link."""
    traces: tuple[RankTrace, ...] = ()
    """Trace of one call on each rank: by the profiler on a GPU, by the clock around each exchange on a CPU."""


class ContextParallelFacts(Plain):
    backend: Literal["nccl", "gloo"]
    collectives: str | None = None
    """Version of NCCL. None for gloo."""
    devices: tuple[str, ...] = ()
    """Device of each rank, as torch names it."""
    hosts: Positive = 1
    """Hosts on which torchrun started processes; 1 without torchrun."""
    device_names: tuple[str, ...] = ()
    """Product name of each rank's device."""
    peer_access: bool | None = None
    """True if the first GPU can access the memory of the second GPU. None on CPU, and for one GPU."""
    variables: dict[str, str] = Field(default_factory=dict)
    """Environment variables of NCCL and gloo."""


class ContextParallelVariantFacts(VariantFacts):
    variant: str
    kernel: KernelName


class ContextParallelRecord(RunRecord):
    baseline_family = "single"

    workload: Literal["context_parallel"] = "context_parallel"
    subject: ContextParallelSubject
    variant: ContextParallelVariantFacts
    built: ContextParallelFacts | None = None
    """Facts about the execution. None if no cell was begun."""
    cells: tuple[ContextParallelCell, ...] = ()

    @property
    def form(self) -> dict[str, str]:
        return {"split": self.variant.variant, "kernel": self.variant.kernel}

    @property
    def family(self) -> str:
        return self.variant.variant


MAX_NOISE = 0.05  # Largest share by which noise can make a call without the exchange longer than one with it.


def critical_trace(cell: ContextParallelCell) -> RankTrace | None:
    """Return the trace of the rank that computes longest; in other traces, communication includes waiting for it."""
    return max(cell.traces, key=lambda trace: trace.busy_s - exposed_s(trace), default=None)


def exposed_s(trace: RankTrace) -> float:
    return next((work.alone_s for work in trace.kinds if work.kind == "communication"), 0.0)


def exposed_communication(cell: ContextParallelCell) -> float | None:
    """Return 1 - (time without exchange) / latency; None if unmeasured, disturbed or below -MAX_NOISE."""
    if not (cell.samples and cell.alone_s and DISTURBING.isdisjoint(cell.flags)):
        return None
    share = 1 - max(cell.alone_s) / median_latency_s(cell)
    return share if share >= -MAX_NOISE else None


def traced_exposed_communication(cell: ContextParallelCell) -> float | None:
    trace = critical_trace(cell)
    return exposed_s(trace) / trace.span_s if trace else None


def hidden_communication(cell: ContextParallelCell) -> float | None:
    """Return 1 - (exposed seconds) / (sent bytes / link rate), at least 0; None if unmeasured or nothing is sent."""
    exposed = exposed_communication(cell)
    if exposed is None or not cell.demand or not cell.link_bytes_per_s:
        return None
    exchange_s = cell.demand.sent_bytes / cell.link_bytes_per_s
    return max(0.0, 1 - max(0.0, exposed) * median_latency_s(cell) / exchange_s) if exchange_s else None


def imbalance(cell: ContextParallelCell) -> float | None:
    return max(cell.alone_s) / mean(cell.alone_s) if cell.alone_s else None


def demand_of(shape: AttentionShape, ranks: int, splitting: Splitting) -> ContextParallelDemand:
    """Return FLOPs and bytes of one call: attention over the full sequence `shape`, divided by the number of GPUs."""
    gpus = splitting.gpus(ranks)
    total = attention_flops_and_bytes(shape)
    local = attention_flops_and_bytes(shape._replace(seq_len=max(1, shape.seq_len // ranks)))
    # Per block, a rank of a ring sends keys and values forward, and keys, values and their gradients backward.
    step_bytes = keys = _kv_bytes(shape, ranks)
    if shape.is_backward:
        step_bytes += keys + (keys if ranks == 2 else keys * FLOAT32_BYTES // shape.element_bytes)
    return ContextParallelDemand(
        flops=total.flops // gpus,
        bytes=total.bytes // gpus,
        total_flops=total.flops,
        local_flops=local.flops,
        sent_bytes=sent_bytes(shape, ranks, splitting),
        step_bytes=step_bytes if splitting.exchange == "ring" and ranks > 1 else None,
    )


def _kv_bytes(shape: AttentionShape, ranks: int) -> int:
    return 2 * shape.batch_size * shape.seq_len // ranks * shape.kv_heads * shape.head_dim * shape.element_bytes


def sent_bytes(shape: AttentionShape, ranks: int, splitting: Splitting) -> int:
    """Return the bytes that a rank sends in one call, to all other ranks.

    In a ring of N ranks, a rank sends keys and values N - 1 times forward and N - 1 times backward. It also sends the
    gradients of one block once in the inputs' type, and N - 2 times sums of gradients in float32.
    """
    if splitting.exchange == "none" or ranks == 1:
        return 0
    keys = _kv_bytes(shape, ranks)
    if splitting.exchange == "heads":
        # A rank keeps 1 / ranks of queries, keys, values and output, and sends the rest; gradients likewise.
        queries = keys * shape.heads // shape.kv_heads // 2
        return (2 * queries + keys) * (ranks - 1) // ranks * (2 if shape.is_backward else 1)
    if not shape.is_backward:
        return (ranks - 1) * keys
    in_float32 = keys * FLOAT32_BYTES // shape.element_bytes
    if splitting.exchange == "ring":
        return 2 * (ranks - 1) * keys + keys + (ranks - 2) * in_float32
    # torch sends gradients in float32, N times instead of N - 1.
    return 2 * (ranks - 1) * keys + ranks * in_float32
