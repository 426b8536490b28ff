"""Record of one training step: its time, the times of its parts, and the memory of each part."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import Field

from benchmarker.schema.base import Plain, Seconds, Whole
from benchmarker.schema.record import SampleBase

StepPart = Literal["forward", "backward", "optimizer"]
STEP_PARTS: tuple[StepPart, ...] = get_args(StepPart)
RECOMPUTE = "recompute"
"""Section of a profile: forward passes that gradient checkpointing repeats inside the backward pass."""


class TrainingSample(SampleBase):
    """One timed training step. `latency_s` is the time of the undivided step."""

    drained_parts_s: dict[StepPart, Seconds] = Field(default_factory=dict)
    """Seconds of each part of a second step, which waits for the device after each part. Their sum is a little longer
    than the undivided step, in which the host runs ahead of the device. Empty if parts were not requested."""


class StepMemory(Plain):
    """Bytes of live tensors around one untimed step. None on CPU."""

    before_bytes: Whole | None = None
    """Before the step: weights and optimizer state. Gradients are freed at the end of each step."""
    kept_bytes: Whole | None = None
    """After the forward pass minus before it: kept for the backward pass."""
    gradient_bytes: Whole | None = None
    """Between backward pass and optimizer, minus before the step."""
    forward_peak_bytes: Whole | None = None
    """Peak of the forward pass, weights included."""
    backward_peak_bytes: Whole | None = None
    """Peak of the backward pass, weights included."""
    optimizer_peak_bytes: Whole | None = None
    """Peak of the optimizer, weights included."""
