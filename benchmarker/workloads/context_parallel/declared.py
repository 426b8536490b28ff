"""The axes and metrics of context parallel attention, and its jobs in words."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, median
from typing import Any

from benchmarker.core.formatting import MIB
from benchmarker.schema.metric import Axis, Metric
from benchmarker.workloads.attention.declared import BACKWARD, FORWARD, flops_per_s
from benchmarker.workloads.context_parallel.record import ContextParallelCell, ContextParallelRecord, RankTrace
from benchmarker.workloads.context_parallel.spec import ContextParallelJob, ContextParallelPoint
from benchmarker.workloads.context_parallel.variants.registry import splitting_of

AXES = (
    Axis("ranks", "ranks", lambda ranks: f"{ranks} ranks", is_size=False),
    Axis("seq_len", "S", lambda length: f"{length:,} positions"),
    Axis("mode", "mode", lambda mode: mode.replace("_", " + "), is_size=False),
)


def all_flops_per_s(cell: ContextParallelCell, latency_s: float) -> float | None:
    """Operations per second of all GPUs together."""
    return cell.demand.total_flops / latency_s if cell.demand else None


def scaling(cell: ContextParallelCell, latency_s: float) -> float | None:
    """Operations per second and GPU over those of a single GPU with a rank's positions."""
    if cell.demand is None or cell.single_s is None:
        return None
    single_flops_per_s = cell.demand.local_flops / cell.single_s
    return cell.demand.total_flops / (cell.gpus * latency_s) / single_flops_per_s


def latency_of(cell: ContextParallelCell) -> float | None:
    """The median of the process's repeats; None for a cell that was not timed."""
    return median(sample.latency_s for sample in cell.samples) if cell.samples else None


def exposed_by_difference(record: ContextParallelRecord, cell: ContextParallelCell) -> float | None:  # noqa: ARG001
    """Share of the time that leaving the exchange out saves. Below 0 where that did not pay, within the noise."""
    latency_s = latency_of(cell)
    if latency_s is None or not cell.alone_s:
        return None
    return 1 - max(cell.alone_s) / latency_s


def exposed_by_trace(record: ContextParallelRecord, cell: ContextParallelCell) -> float | None:  # noqa: ARG001
    """Share of the span in which only communication ran, on the rank that computes longest."""
    trace = critical_trace(cell)
    return exposed_s(trace) / trace.span_s if trace else None


def hidden(record: ContextParallelRecord, cell: ContextParallelCell) -> float | None:
    """Share of the time of the exchange by itself that computing hides: none of it where it costs more than that."""
    exposed, latency_s = exposed_by_difference(record, cell), latency_of(cell)
    if exposed is None or latency_s is None or cell.demand is None or not cell.link_bytes_per_s:
        return None
    exchange_s = cell.demand.sent_bytes / cell.link_bytes_per_s
    return max(0.0, 1 - max(0.0, exposed) * latency_s / exchange_s) if exchange_s else None


def critical_trace(cell: ContextParallelCell) -> RankTrace | None:
    """Of the rank that computes longest: what others wait for is no communication of theirs. None where none is."""
    return max(cell.traces, key=lambda trace: trace.busy_s - exposed_s(trace), default=None)


def exposed_s(trace: RankTrace) -> float:
    """Seconds in which only communication ran."""
    return next((work.alone_s for work in trace.kinds if work.kind == "communication"), 0.0)


def imbalance(record: ContextParallelRecord, cell: ContextParallelCell) -> float | None:  # noqa: ARG001
    """The slowest rank's time over the mean of all, without exchange."""
    return max(cell.alone_s) / mean(cell.alone_s) if cell.alone_s else None


def needed_bytes_per_s(record: ContextParallelRecord, cell: ContextParallelCell) -> float | None:  # noqa: ARG001
    """What a ring must send in a second to hide its exchange beside a block: N blocks are a call."""
    if cell.demand is None or cell.demand.step_bytes is None or not cell.alone_s:
        return None
    return cell.demand.step_bytes * cell.ranks / mean(cell.alone_s)


def rank_peak(record: ContextParallelRecord, cell: ContextParallelCell) -> float | None:  # noqa: ARG001
    """Most bytes of live tensors on the fullest rank."""
    return max((peak for sample in cell.samples for peak in sample.rank_peak_bytes), default=None)


def error_ratio(record: ContextParallelRecord, cell: ContextParallelCell) -> float | None:  # noqa: ARG001
    """The largest of the tensors' errors over the single GPU's."""
    if cell.checked is None:
        return None
    errors = {tensor.tensor: tensor.error for tensor in cell.checked.tensors}
    ratios = [
        errors[distance.tensor] / distance.single_error
        for distance in cell.checked.distances
        if distance.single_error and distance.tensor in errors
    ]
    return max(ratios, default=None)


METRICS = (
    Metric(
        name="tflops",
        heading="TFLOP/s",
        unit="FLOP/s",
        scale=1e-12,
        better="higher",
        formula="4 * batch * heads * head_dim * allowed pairs, 3.5 times that with the backward pass, divided by the "
        "seconds of one call: of all GPUs together",
        of_latency=all_flops_per_s,
    ),
    Metric(
        name="tflops_gpu",
        heading="TFLOP/s/GPU",
        unit="FLOP/s",
        scale=1e-12,
        better="higher",
        formula="TFLOP/s over the GPUs that compute",
        of_latency=flops_per_s,
    ),
    FORWARD,
    BACKWARD,
    Metric(
        name="scaling",
        heading="scaling %",
        unit="",
        scale=100.0,
        better="higher",
        formula="operations per second and GPU over those of a single GPU that has seq_len / ranks positions, measured "
        "in the same process",
        of_latency=scaling,
    ),
    Metric(
        name="exposed",
        heading="exposed %",
        unit="",
        scale=100.0,
        better="lower",
        formula="exposed communication: share of the time that leaving the exchange out saves",
        of_cell=exposed_by_difference,
    ),
    Metric(
        name="exposed_trace",
        heading="traced %",
        unit="",
        scale=100.0,
        better="lower",
        formula="by the trace: share of a call's span in which nothing else ran, on the rank that "
        "computes longest; on a processor, in which it waited for an exchange",
        of_cell=exposed_by_trace,
    ),
    Metric(
        name="hidden",
        heading="hidden %",
        unit="",
        scale=100.0,
        better="higher",
        formula="1 - exposed time / (bytes that a rank sends / link GB/s): share of the exchange that computing hides; "
        "0 where it costs more than the link takes",
        of_cell=hidden,
    ),
    Metric(
        name="imbalance",
        heading="imbalance",
        unit="",
        scale=1.0,
        better="lower",
        formula="the slowest rank's time over the mean of all ranks', both without exchange",
        of_cell=imbalance,
    ),
    Metric(
        name="sent",
        heading="sent MiB",
        unit="B",
        scale=1 / MIB,
        better="lower",
        formula="bytes that rank 0 hands over for other ranks in one call, counted",
        of_cell=lambda record, cell: cell.sent_bytes,
    ),
    Metric(
        name="needed_link",
        heading="needed GB/s",
        unit="B/s",
        scale=1e-9,
        better="lower",
        formula="bytes that a rank of a ring sends beside one block, over the time of one block without exchange",
        of_cell=needed_bytes_per_s,
    ),
    Metric(
        name="measured_link",
        heading="link GB/s",
        unit="B/s",
        scale=1e-9,
        better="higher",
        formula="bytes that each rank sends to the next while it receives as many, the slowest rank's best of five",
        of_cell=lambda record, cell: cell.link_bytes_per_s,
    ),
    Metric(
        name="rank_peak",
        heading="rank peak MiB",
        unit="B",
        scale=1 / MIB,
        better="lower",
        formula="most bytes of live tensors on the fullest rank, inputs included",
        of_cell=rank_peak,
        combine="max",
    ),
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
    Metric(
        name="error_ratio",
        heading="of single's",
        unit="",
        scale=1.0,
        better="lower",
        formula="the largest of the tensors' errors over the single GPU's with the same kernel",
        of_cell=error_ratio,
        combine="max",
    ),
)
HEADLINE = "tflops"


def title(job: ContextParallelJob) -> str:
    """`context parallel attention of 32 heads of 128 over 2 ranks`."""
    subject = job.subject
    shared = f" sharing {subject.kv_heads}" if subject.kv_heads not in (None, subject.heads) else ""
    ranks = " and ".join(str(ranks) for ranks in sorted(set(job.grid.ranks)))
    return f"context parallel attention of {subject.heads} heads{shared} of {subject.head_dim} over {ranks} ranks"


def matmul_dtype(job: ContextParallelJob) -> str:
    """Type of the tensors."""
    return job.subject.dtype


def cell_fields(
    job: ContextParallelJob,
    point: ContextParallelPoint,
    records: Sequence[object] = (),  # noqa: ARG001
) -> dict[str, Any]:
    """What is known of a cell that was not measured."""
    gpus = 1 if splitting_of(job.variant.variant).is_alone else point.ranks
    return {**point._asdict(), "gpus": gpus}
