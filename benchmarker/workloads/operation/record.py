"""Record fields that all operations share."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from benchmarker.schema.base import Count, Plain, Positive, Seconds, Spent, Whole
from benchmarker.schema.record import CellBase, Checked, Demand, SampleBase

TensorName = Literal["o", "dq", "dk", "dv", "dg", "dbeta"]


class OperationDemand(Demand):
    flops: Positive
    """FLOPs of the call."""
    bytes: Positive
    """Bytes of inputs and outputs, each read or written once."""


class OperationSample(SampleBase):
    """One timed repeat: several calls in a row over copies of the inputs that together exceed the cache."""

    parts_s: dict[str, Spent] = Field(default_factory=dict)
    """`forward` and `backward` seconds of one call. The forward pass is timed in separate calls that keep the tensors
    of the backward pass; `backward` is `latency_s` minus `forward`."""
    event_s: Seconds | None = None
    """Mean seconds of one call, from two device events around the calls of the repeat. None on CPU."""


class TensorError(Plain):
    tensor: TensorName
    error: Spent
    """Frobenius norm of the difference divided by the norm of the float64 result."""


class OperationChecked(Checked):
    error: Spent
    """Largest error of the tensors."""
    tolerance: Spent
    """Largest error that passes."""
    tensors: tuple[TensorError, ...] = ()
    rows: Positive
    """Number of compared query positions of each head."""


class SeenKernel(Plain):
    """Launches of one kernel in one profiled call; on CPU, calls of one operator."""

    name: str
    calls: Positive
    total_s: Spent


class PassMemory(Plain):
    forward_peak_bytes: Whole | None = None
    """Peak of the forward pass."""
    kept_bytes: Whole | None = None
    """Bytes that the forward pass keeps for the backward pass, its output included."""
    backward_peak_bytes: Whole | None = None
    """Peak of the backward pass."""


class OperationCell(CellBase):
    seq_len: Positive
    mode: str
    inputs_sha256: str | None = None
    """SHA-256 of the shape, the seed and the first numbers of each input before they are scaled or rounded."""
    demand: OperationDemand | None = None
    checked: OperationChecked | None = None
    kernels: tuple[SeenKernel, ...] = ()
    """Kernels of one profiled call, longest first; those of rank 0 if there are several ranks."""
    input_copies: Count | None = None
    """Copies of the inputs that successive calls alternate over."""
    warmup: tuple[OperationSample, ...] = ()
    samples: tuple[OperationSample, ...] = ()


class LengthCell(OperationCell):
    batch_size: Positive
    passes: PassMemory | None = None
