"""What a run of attention records, beside what every workload's record has."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from benchmarker.schema.base import Count, Plain, Positive, Seconds, Spent, Whole
from benchmarker.schema.record import CellBase, Checked, RunRecord, SampleBase, VariantFacts
from benchmarker.schema.roofline import Demand
from benchmarker.workloads.attention.spec import AttentionSubject, DType, Mode

TensorName = Literal["o", "dq", "dk", "dv"]


class AttentionDemand(Demand):
    """What one call cannot do without, by formula."""

    flops: Positive
    """Of the whole call, in the FlashAttention papers' convention: 4 * batch * heads * head_dim * allowed pairs
    forward, 2.5 times that backward."""
    forward_flops: Positive
    """Of its forward pass alone."""
    bytes: Positive
    """Inputs read and outputs written once."""
    scores_bytes: Positive
    """Of one whole matrix of scores, which a fused kernel never writes."""


class AttentionSample(SampleBase):
    """One timed repeat: several calls in a row, over copies of the inputs that together exceed the cache."""

    parts_s: dict[str, Spent] = Field(default_factory=dict)
    """`forward` and `backward` of one call. The forward pass is timed in calls of its own, with what it keeps for the
    backward pass; `backward` is what is left of `latency_s`."""
    event_s: Seconds | None = None
    """Mean of one call by the device's own clock, between two events around the same calls. None on CPU."""


class TensorError(Plain):
    """How far one result is from float64."""

    tensor: TensorName
    error: Spent
    """Frobenius norm of the difference over that of the float64 result."""
    math_error: Spent
    """The same of torch's `math` backend in the same type."""


class AttentionChecked(Checked):
    """What one call's results were held against before anything was timed."""

    error: Spent
    """The largest of the tensors' errors."""
    tolerance: Spent
    """A larger error is wrong, unless `math` in the same type is nearly as far off."""
    tensors: tuple[TensorError, ...] = ()
    rows: Positive
    """Query positions of each head that were compared."""


class SeenKernel(Plain):
    """All launches of one kernel in one profiled call; on CPU, calls of one operator of attention."""

    name: str
    calls: Positive
    total_s: Spent


class AttentionMemory(Plain):
    """Bytes of live tensors beside the inputs, in one untimed call. None on CPU."""

    forward_peak_bytes: Whole | None = None
    """Most during the forward pass."""
    kept_bytes: Whole | None = None
    """What the forward pass keeps for the backward pass, its output included."""
    backward_peak_bytes: Whole | None = None
    """Most during the backward pass."""


class AttentionCell(CellBase):
    """One length, batch size and mode."""

    seq_len: Positive
    batch_size: Positive
    mode: Mode
    inputs_sha256: str | None = None
    """Of the shapes, the seed and the first numbers of each input before they are rounded to the type."""
    demand: AttentionDemand | None = None
    checked: AttentionChecked | None = None
    passes: AttentionMemory | None = None
    kernels: tuple[SeenKernel, ...] = ()
    """What ran in one profiled call, longest first."""
    input_copies: Count | None = None
    """Copies of the inputs that the calls take turns over."""
    warmup: tuple[AttentionSample, ...] = ()
    samples: tuple[AttentionSample, ...] = ()


class AttentionFacts(Plain):
    """What was built."""

    matmul_precision: Literal["ieee", "tf32"] | None = None
    """How float32 products are computed, as torch says after it was set. None for other types, and on CPU."""
    source_sha256: str | None = None
    """Of the file that holds a function of the user's own. None for the registry's."""


class AttentionVariantFacts(VariantFacts):
    """Which implementation."""

    variant: str
    """As asked for."""
    dtype: DType
    """Of this row: the variant's own, or the subject's."""


class AttentionRecord(RunRecord):
    """One process, one implementation."""

    workload: Literal["attention"] = "attention"
    subject: AttentionSubject
    variant: AttentionVariantFacts
    built: AttentionFacts | None = None
    """None where no cell was begun."""
    cells: tuple[AttentionCell, ...] = ()
