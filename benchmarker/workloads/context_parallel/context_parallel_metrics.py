"""Metrics of context parallel attention: scaling, exposed communication, imbalance, and the link."""

from __future__ import annotations

from statistics import mean

from benchmarker.core.formatting import MIB
from benchmarker.schema.registry import Metric
from benchmarker.workloads.context_parallel.record import ContextParallelCell, RankTrace
from benchmarker.workloads.operation.operation_metrics import (
    BACKWARD,
    ERROR,
    FORWARD,
    fact_metric,
    flops_per_s,
    median_latency_s,
    tflops_metric,
)


def scaling(cell: ContextParallelCell, latency_s: float) -> float | None:
    """Return the FLOP rate of one GPU of the group, divided by that of a single GPU with one rank's positions."""
    if cell.demand is None or cell.single_s is None:
        return None
    single_flops_per_s = cell.demand.local_flops / cell.single_s
    return cell.demand.total_flops / (cell.gpus * latency_s) / single_flops_per_s


def exposed_by_difference(cell: ContextParallelCell) -> float | None:
    """Return the share of the time that leaving out the exchange saves. Noise can make it negative."""
    latency_s = median_latency_s(cell)
    if latency_s is None or not cell.alone_s:
        return None
    return 1 - max(cell.alone_s) / latency_s


def exposed_by_trace(cell: ContextParallelCell) -> float | None:
    trace = critical_trace(cell)
    return exposed_s(trace) / trace.span_s if trace else None


def hidden(cell: ContextParallelCell) -> float | None:
    """Return the share of the exchange that computation hides; 0 if the exchange costs more than the link's time."""
    exposed, latency_s = exposed_by_difference(cell), median_latency_s(cell)
    if exposed is None or latency_s is None or cell.demand is None or not cell.link_bytes_per_s:
        return None
    exchange_s = cell.demand.sent_bytes / cell.link_bytes_per_s
    return max(0.0, 1 - max(0.0, exposed) * latency_s / exchange_s) if exchange_s else None


def critical_trace(cell: ContextParallelCell) -> RankTrace | None:
    """Return the trace of the rank that computes longest: the communication of other ranks includes waiting for it."""
    return max(cell.traces, key=lambda trace: trace.busy_s - exposed_s(trace), default=None)


def exposed_s(trace: RankTrace) -> float:
    return next((work.alone_s for work in trace.kinds if work.kind == "communication"), 0.0)


def imbalance(cell: ContextParallelCell) -> float | None:
    return max(cell.alone_s) / mean(cell.alone_s) if cell.alone_s else None


def needed_bytes_per_s(cell: ContextParallelCell) -> float | None:
    """Return the rate at which a ring must send to hide its exchange during a block; N blocks are one call."""
    if cell.demand is None or cell.demand.step_bytes is None or not cell.alone_s:
        return None
    return cell.demand.step_bytes * cell.ranks / mean(cell.alone_s)


def rank_peak(cell: ContextParallelCell) -> float | None:
    return max((peak for sample in cell.samples for peak in sample.rank_peak_bytes), default=None)


def error_ratio(cell: ContextParallelCell) -> float | None:
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
    tflops_metric(
        "4 * batch * heads * head_dim * allowed pairs, 3.5 times that with the backward pass, divided by the seconds "
        "of one call: of all GPUs together",
        of_latency=lambda cell, latency_s: cell.demand.total_flops / latency_s if cell.demand else None,
    ),
    Metric(
        name="tflops_gpu",
        heading="TFLOP/s/GPU",
        unit="FLOP/s",
        scale=1e-12,
        better="higher",
        formula="TFLOP/s divided by the GPUs that compute",
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
        formula="FLOPs per second and GPU relative to a single GPU that has seq_len / ranks positions, measured in the "
        "same process",
        of_latency=scaling,
    ),
    fact_metric(
        "exposed",
        "exposed %",
        exposed_by_difference,
        "exposed communication: share of the time that leaving the exchange out saves",
        scale=100.0,
    ),
    fact_metric(
        "exposed_trace",
        "traced %",
        exposed_by_trace,
        "by the trace: share of a call's span in which only communication ran, on the rank that computes longest; on a "
        "CPU, in which it waited for an exchange",
        scale=100.0,
    ),
    fact_metric(
        "hidden",
        "hidden %",
        hidden,
        "1 - exposed time / (bytes that a rank sends / link GB/s): share of the exchange that computation hides; 0 if "
        "it costs more than the link takes",
        better="higher",
        scale=100.0,
    ),
    fact_metric(
        "imbalance",
        "imbalance",
        imbalance,
        "the slowest rank's time relative to the mean of all ranks, both without exchange",
    ),
    fact_metric(
        "sent",
        "sent MiB",
        lambda cell: cell.sent_bytes,
        "bytes that rank 0 sends to other ranks in one call, counted",
        unit="B",
        scale=1 / MIB,
    ),
    fact_metric(
        "needed_link",
        "needed GB/s",
        needed_bytes_per_s,
        "bytes that a rank of a ring sends during one block, divided by the time of one block without exchange",
        unit="B/s",
        scale=1e-9,
    ),
    fact_metric(
        "measured_link",
        "link GB/s",
        lambda cell: cell.link_bytes_per_s,
        "bytes per second that each rank sends to the next while it receives as many: the slowest rank's best of five",
        better="higher",
        unit="B/s",
        scale=1e-9,
    ),
    fact_metric(
        "rank_peak",
        "rank peak MiB",
        rank_peak,
        "peak of live tensors on the fullest rank, inputs included",
        unit="B",
        scale=1 / MIB,
        combine="max",
    ),
    ERROR,
    fact_metric(
        "error_ratio",
        "of single's",
        error_ratio,
        "the largest of the tensors' errors relative to the single GPU's with the same kernel",
        combine="max",
    ),
)
