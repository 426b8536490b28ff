"""The axes and metrics of attention, and its jobs in words."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Protocol

from benchmarker.core.formatting import MIB
from benchmarker.schema.metric import Axis, Metric
from benchmarker.schema.record import RunRecord
from benchmarker.workloads.attention.metrics import share_of_matmul
from benchmarker.workloads.attention.record import AttentionCell, AttentionRecord
from benchmarker.workloads.attention.spec import AttentionJob
from benchmarker.workloads.operation.record import OperationSample, PassMemory

AXES = (
    Axis("seq_len", "S", lambda length: f"{length:,} positions"),
    Axis("batch_size", "batch", lambda sequences: f"batch of {sequences}"),
    Axis("mode", "mode", lambda mode: mode.replace("_", " + "), is_size=False),
)


class OperationCell(Protocol):
    """A cell of any operation whose passes are timed and weighed."""

    @property
    def mode(self) -> str: ...

    @property
    def demand(self) -> Work | None: ...

    @property
    def passes(self) -> PassMemory | None: ...


class Work(Protocol):
    """What one call has to do."""

    @property
    def flops(self) -> int: ...


def flops_per_s(cell: OperationCell, latency_s: float) -> float | None:
    """Operations per second of one call, those of the formula."""
    return cell.demand.flops / latency_s if cell.demand else None


def forward_s(cell: OperationCell, sample: OperationSample) -> float | None:
    """Seconds of the forward pass of one call."""
    return sample.latency_s if cell.mode == "forward" else sample.parts_s.get("forward")


def backward_s(cell: OperationCell, sample: OperationSample) -> float | None:  # noqa: ARG001
    """Seconds of the backward pass of one call; None where it has none."""
    return sample.parts_s.get("backward")


def matmul_share(record: AttentionRecord, cell: AttentionCell) -> float | None:
    """Share of the matmul rate that was measured in the same process and type."""
    if not record.limits or not cell.demand or not cell.samples:
        return None
    # As in any table, the median of a process counts.
    latency_s = median([sample.latency_s for sample in cell.samples])
    return share_of_matmul(cell.demand.flops, latency_s, record.limits.matmul_flops_per_s)


def _passes(read: Callable[[PassMemory], int | None]) -> Callable[[RunRecord, OperationCell], float | None]:
    """A size from the memory of both passes."""

    def of_cell(record: RunRecord, cell: OperationCell) -> float | None:  # noqa: ARG001
        return read(cell.passes) if cell.passes else None

    return of_cell


def _peak(memory: PassMemory) -> int | None:
    return max((size for size in (memory.forward_peak_bytes, memory.backward_peak_bytes) if size), default=None)


# Of any operation whose forward and backward pass are timed and weighed.
FORWARD = Metric(
    name="forward",
    heading="forward ms",
    unit="s",
    scale=1e3,
    better="lower",
    formula="seconds of one forward pass, the mean of calls in a row",
    of_sample=forward_s,
)
BACKWARD = Metric(
    name="backward",
    heading="backward ms",
    unit="s",
    scale=1e3,
    better="lower",
    formula="seconds by which forward and backward take longer than forward alone",
    of_sample=backward_s,
)
PEAK = Metric(
    name="peak",
    heading="call's peak MiB",
    unit="B",
    scale=1 / MIB,
    better="lower",
    formula="most bytes of live tensors beside the inputs, in one untimed call",
    of_cell=_passes(_peak),
    combine="max",
)
KEPT = Metric(
    name="kept",
    heading="kept MiB",
    unit="B",
    scale=1 / MIB,
    better="lower",
    formula="bytes that the forward pass keeps for the backward pass, its output included",
    of_cell=_passes(lambda memory: memory.kept_bytes),
    combine="max",
)
METRICS = (
    Metric(
        name="tflops",
        heading="TFLOP/s",
        unit="FLOP/s",
        scale=1e-12,
        better="higher",
        formula="4 * batch * heads * head_dim * allowed pairs, 3.5 times that with the backward pass, "
        "divided by the seconds of one call",
        of_latency=flops_per_s,
    ),
    FORWARD,
    BACKWARD,
    Metric(
        name="matmul",
        heading="of matmul %",
        unit="",
        scale=100.0,
        better="higher",
        formula="operations per second over those of a large matrix product in the same process and type (on a CPU: "
        "of the fastest product, in that type or float32)",
        of_cell=matmul_share,
    ),
    PEAK,
    KEPT,
    Metric(
        name="error",
        heading="error ppm",
        unit="",
        scale=1e6,
        better="lower",
        is_quality=True,
        formula="largest distance of a result from float64, by Frobenius norms, relative to its size",
        of_cell=lambda record, cell: cell.checked.error if cell.checked else None,
        combine="max",
    ),
)
HEADLINE = "tflops"
PLAIN = "naive"


def title(job: AttentionJob) -> str:
    """`attention of 16 heads of 128, causal`: what is measured, for the first line and the folder."""
    subject = job.subject
    shared = f" sharing {subject.kv_heads}" if subject.kv_heads not in (None, subject.heads) else ""
    mask = f", window {subject.window}" if subject.window else ", causal" if subject.causal else ""
    return f"attention of {subject.heads} heads{shared} of {subject.head_dim}{mask}"


def matmul_dtype(job: AttentionJob) -> str:
    """Type of the tensors as torch names it: TF32 is a setting of products in float32."""
    return "float32" if job.dtype == "tf32" else job.dtype
