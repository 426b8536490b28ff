"""Axes and metrics that operations share."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any, Literal

from benchmarker.core.formatting import MIB
from benchmarker.schema.registry import Axis, Metric
from benchmarker.workloads.operation.record import LengthCell, OperationCell, OperationSample


def mode_text(mode: str) -> str:
    return mode.replace("_", " " if mode == "training_step" else " + ")


SEQ_LEN_AXIS = Axis("seq_len", "S", lambda length: f"{length:,} positions")
MODE_AXIS = Axis("mode", "mode", mode_text, is_size=False)
LENGTH_AXES = (SEQ_LEN_AXIS, Axis("batch_size", "batch", lambda sequences: f"batch of {sequences}"), MODE_AXIS)


def flops_per_s(cell: OperationCell, latency_s: float) -> float | None:
    return cell.demand.flops / latency_s if cell.demand else None


def median_latency_s(cell: OperationCell) -> float | None:
    """Return the median of the process's repeats; None for a cell without times."""
    return median(sample.latency_s for sample in cell.samples) if cell.samples else None


def tflops_metric(formula: str, *, of_latency: Callable[[Any, float], float | None] = flops_per_s) -> Metric:
    return Metric(
        name="tflops",
        heading="TFLOP/s",
        unit="FLOP/s",
        scale=1e-12,
        better="higher",
        formula=formula,
        of_latency=of_latency,
    )


def fact_metric(
    name: str,
    heading: str,
    of_cell: Callable[[Any], float | None],
    formula: str,
    *,
    better: Literal["higher", "lower"] = "lower",
    unit: str = "",
    scale: float = 1.0,
    combine: Literal["median", "max"] = "median",
    is_quality: bool = False,
) -> Metric:
    return Metric(
        name=name,
        heading=heading,
        unit=unit,
        scale=scale,
        better=better,
        formula=formula,
        of_cell=lambda record, cell: of_cell(cell),
        combine=combine,
        is_quality=is_quality,
    )


def _forward_s(cell: OperationCell, sample: OperationSample) -> float | None:
    return sample.latency_s if cell.mode == "forward" else sample.parts_s.get("forward")


def _peak_bytes(cell: LengthCell) -> int | None:
    memory = cell.passes
    peaks = (memory.forward_peak_bytes, memory.backward_peak_bytes) if memory else ()
    return max((peak for peak in peaks if peak), default=None)


FORWARD = Metric(
    name="forward",
    heading="forward ms",
    unit="s",
    scale=1e3,
    better="lower",
    formula="seconds of one forward pass, the mean of calls in a row",
    of_sample=_forward_s,
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
PEAK = fact_metric(
    "peak",
    "call's peak MiB",
    _peak_bytes,
    "peak of live tensors in one untimed call, without the inputs",
    unit="B",
    scale=1 / MIB,
    combine="max",
)
KEPT = fact_metric(
    "kept",
    "kept MiB",
    lambda cell: cell.passes.kept_bytes if cell.passes else None,
    "bytes that the forward pass keeps for the backward pass, its output included",
    unit="B",
    scale=1 / MIB,
    combine="max",
)


ERROR = fact_metric(
    "error",
    "error ppm",
    lambda cell: cell.checked.error if cell.checked else None,
    "largest distance of a result from float64, by Frobenius norms, relative to its size",
    scale=1e6,
    combine="max",
    is_quality=True,
)
