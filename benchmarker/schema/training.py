"""What a record says of one training step: its whole time, the times of its parts, and the memory of each part."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import Field

from benchmarker.schema.base import Plain, Seconds, Whole
from benchmarker.schema.record import SampleBase

StepPart = Literal["forward", "backward", "optimizer"]
STEP_PARTS: tuple[StepPart, ...] = get_args(StepPart)
RECOMPUTE = "recompute"
"""Section of a profile: the forward passes that gradient checkpointing runs again inside the backward pass."""


class TrainingSample(SampleBase):
    """One timed training step: `latency_s` is of the whole, with no mark and no wait inside."""

    drained_parts_s: dict[StepPart, Seconds] = Field(default_factory=dict)
    """Parts of another step right after, each ended by a wait for the device. Together they take a little longer than
    the whole, in which the host runs ahead of the device. Empty where parts were not asked for."""


class StepMemory(Plain):
    """Bytes of live tensors around one untimed step. All None on CPU."""

    before_bytes: Whole | None = None
    """Before the step: weights and the optimizer's state. Gradients are freed at the end of each step."""
    kept_bytes: Whole | None = None
    """What the forward pass leaves for the backward pass: live bytes after it less those before."""
    gradient_bytes: Whole | None = None
    """Live bytes between the backward pass and the optimizer less those before the step."""
    forward_peak_bytes: Whole | None = None
    """Most live bytes in the forward pass, in all."""
    backward_peak_bytes: Whole | None = None
    """Most live bytes in the backward pass, in all."""
    optimizer_peak_bytes: Whole | None = None
    """Most live bytes while the optimizer runs, in all."""
