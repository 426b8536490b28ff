"""Axes and metrics that operations share."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

from benchmarker.core.formatting import MIB
from benchmarker.schema.metric import Axis, Metric
from benchmarker.workloads.operation.record import OperationCell, OperationSample, PassMemory


def mode_text(mode: str) -> str:
    """Return `forward + backward`, `training step`."""
    return mode.replace("_", " " if mode == "training_step" else " + ")


SEQ_LEN_AXIS = Axis("seq_len", "S", lambda length: f"{length:,} positions")
MODE_AXIS = Axis("mode", "mode", mode_text, is_size=False)
LENGTH_AXES = (SEQ_LEN_AXIS, Axis("batch_size", "batch", lambda sequences: f"batch of {sequences}"), MODE_AXIS)


def flops_per_s(cell: OperationCell, latency_s: float) -> float | None:
    """Return the FLOPs of the formula divided by the seconds of one call."""
    return cell.demand.flops / latency_s if cell.demand else None


def forward_s(cell: OperationCell, sample: OperationSample) -> float | None:
    return sample.latency_s if cell.mode == "forward" else sample.parts_s.get("forward")


def median_latency_s(cell: Any) -> float | None:
    """Return the median of the process's repeats; None for a cell without times."""
    return median(sample.latency_s for sample in cell.samples) if cell.samples else None


def _of_passes(read: Callable[[PassMemory], int | None]) -> Callable[[Any, Any], float | None]:
    return lambda record, cell: read(cell.passes) if cell.passes else None


def _peak(memory: PassMemory) -> int | None:
    return max((size for size in (memory.forward_peak_bytes, memory.backward_peak_bytes) if size), default=None)


def tflops_metric(formula: str, *, of_latency: Callable[[Any, float], float | None] = flops_per_s) -> Metric:
    """Return the metric of FLOPs per second.

    Args:
        formula: How the FLOPs of one call are counted.
    """
    return Metric(
        name="tflops",
        heading="TFLOP/s",
        unit="FLOP/s",
        scale=1e-12,
        better="higher",
        formula=formula,
        of_latency=of_latency,
    )


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
    of_sample=lambda cell, sample: sample.parts_s.get("backward"),
)
PEAK = Metric(
    name="peak",
    heading="call's peak MiB",
    unit="B",
    scale=1 / MIB,
    better="lower",
    formula="peak of live tensors in one untimed call, without the inputs",
    of_cell=_of_passes(_peak),
    combine="max",
)
KEPT = Metric(
    name="kept",
    heading="kept MiB",
    unit="B",
    scale=1 / MIB,
    better="lower",
    formula="bytes that the forward pass keeps for the backward pass, its output included",
    of_cell=_of_passes(lambda memory: memory.kept_bytes),
    combine="max",
)


def error_metric(*, is_quality: bool) -> Metric:
    """Return the metric of the largest error relative to float64.

    Args:
        is_quality: Show it in the first table.
    """
    return Metric(
        name="error",
        heading="error ppm",
        unit="",
        scale=1e6,
        better="lower",
        is_quality=is_quality,
        formula="largest distance of a result from float64, by Frobenius norms, relative to its size",
        of_cell=lambda record, cell: cell.checked.error if cell.checked else None,
        combine="max",
    )
