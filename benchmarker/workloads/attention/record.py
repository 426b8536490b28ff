"""What a run of attention records, beside what every workload's record has."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from benchmarker.schema.base import Plain
from benchmarker.workloads.attention.spec import DType, Mode

TensorName = Literal["o", "dq", "dk", "dv"]


class AttentionDemand(Plain):
    """What one call cannot do without, by formula."""

    flops: int = Field(gt=0)
    """Of the whole call, in the FlashAttention papers' convention: 4 * batch * heads * head_dim * allowed pairs
    forward, 2.5 times that backward."""
    forward_flops: int = Field(gt=0)
    """Of its forward pass alone."""
    bytes: int = Field(gt=0)
    """Inputs read and outputs written once."""
    scores_bytes: int = Field(gt=0)
    """Of one whole matrix of scores, which a fused kernel never writes."""


class AttentionSample(Plain):
    """One timed repeat: several calls in a row, over copies of the inputs that together exceed the cache."""

    latency_s: float = Field(gt=0)
    """Mean of one call, by the host's clock, with the device drained before the first call and after the last."""
    calls: int = Field(default=1, ge=1)
    """Calls in a row."""
    parts_s: dict[str, float] = Field(default_factory=dict)
    """`forward` and `backward` of one call. The forward pass is timed in calls of its own, with what it keeps for the
    backward pass; `backward` is what is left of `latency_s`."""
    peak_allocated_bytes: int | None = None
    event_s: float | None = Field(default=None, gt=0)
    """Mean of one call by the device's own clock, between two events around the same calls. None on CPU."""


class TensorError(Plain):
    """How far one result is from float64."""

    tensor: TensorName
    error: float = Field(ge=0)
    """Frobenius norm of the difference over that of the float64 result."""
    math_error: float = Field(ge=0)
    """The same of torch's `math` backend in the same type."""

    @property
    def ratio(self) -> float | None:
        """How many times `math`'s error it is. None where `math` has none."""
        return self.error / self.math_error if self.math_error else None


class AttentionChecked(Plain):
    """What one call's results were held against before anything was timed."""

    against: str
    """The reference."""
    error: float = Field(ge=0)
    """The largest of the tensors' errors."""
    tolerance: float = Field(ge=0)
    """A larger error is wrong, unless `math` in the same type is nearly as far off."""
    tensors: tuple[TensorError, ...] = ()
    rows: int = Field(ge=1)
    """Query positions of each head that were compared."""


class SeenKernel(Plain):
    """All launches of one kernel in one profiled call; on CPU, calls of one operator of attention."""

    name: str
    calls: int
    total_s: float


class AttentionMemory(Plain):
    """Bytes of live tensors beside the inputs, in one untimed call. None on CPU."""

    forward_peak_bytes: int | None = None
    """Most during the forward pass."""
    kept_bytes: int | None = None
    """What the forward pass keeps for the backward pass, its output included."""
    backward_peak_bytes: int | None = None
    """Most during the backward pass."""


class AttentionCell(Plain):
    """One length, batch size and mode."""

    seq_len: int = Field(ge=1)
    batch_size: int = Field(ge=1)
    mode: Mode
    inputs_sha256: str | None = None
    """Of the shapes, the seed and the first numbers of each input before they are rounded to the type."""
    demand: AttentionDemand | None = None
    checked: AttentionChecked | None = None
    passes: AttentionMemory | None = None
    kernels: tuple[SeenKernel, ...] = ()
    """What ran in one profiled call, longest first."""
    input_copies: int | None = None
    """Copies of the inputs that the calls take turns over."""
    samples: tuple[AttentionSample, ...] = ()


class AttentionFacts(Plain):
    """What was built."""

    variant: str
    """As asked for."""
    dtype: DType
    matmul_precision: Literal["ieee", "tf32"] | None = None
    """How float32 products are computed, as torch says after it was set. None for other types, and on CPU."""
    source_sha256: str | None = None
    """Of the file that holds a function of the user's own. None for the registry's."""
