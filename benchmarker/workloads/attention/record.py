"""Record of the attention workload."""

from __future__ import annotations

from typing import Literal

from benchmarker.schema.base import Plain, Positive, Spent
from benchmarker.schema.record import RunRecord, VariantFacts
from benchmarker.workloads.attention.spec import AttentionSubject
from benchmarker.workloads.operation.record import LengthCell, OperationChecked, OperationDemand, TensorError
from benchmarker.workloads.operation.spec import OperationDType, PassMode

NAIVE = "naive"  # Variant that writes the scores to memory.


class AttentionDemand(OperationDemand):
    flops: Positive
    """FLOPs of the call as the FlashAttention papers count them: 4 * batch * heads * head_dim * allowed pairs forward,
    2.5 times that backward."""
    forward_flops: Positive
    """FLOPs of the forward pass."""
    scores_bytes: Positive
    """Bytes of one full score matrix, which a fused kernel never writes."""


class AttentionTensorError(TensorError):
    math_error: Spent
    """Error of torch's `math` backend in the same type: the error that rounding alone causes."""


class AttentionChecked(OperationChecked):
    tolerance: Spent
    """Largest error that passes. A larger error also passes if it is at most twice the error of torch's `math`."""
    tensors: tuple[AttentionTensorError, ...] = ()


class AttentionCell(LengthCell):
    mode: PassMode
    demand: AttentionDemand | None = None
    checked: AttentionChecked | None = None


class AttentionFacts(Plain):
    matmul_precision: Literal["ieee", "tf32"] | None = None
    """Precision of float32 matrix products as torch reports it. None for other types, and on CPU."""
    source_sha256: str | None = None
    """SHA-256 of the file of a user's own function. None for the registry's variants."""


class AttentionVariantFacts(VariantFacts):
    variant: str
    """Name in the registry, or `module:function`."""
    dtype: OperationDType
    """Type of queries, keys and values: `dtype` of the variant if it is set, else of the subject."""


class AttentionRecord(RunRecord):
    workload: Literal["attention"] = "attention"
    subject: AttentionSubject
    variant: AttentionVariantFacts
    built: AttentionFacts | None = None
    """Facts about the execution. None if no cell was begun."""
    cells: tuple[AttentionCell, ...] = ()

    @property
    def form(self) -> dict[str, str]:
        return {"implementation": self.variant.variant, "dtype": self.variant.dtype}

    @property
    def baseline_rank(self) -> tuple[bool, ...]:
        return (self.variant.variant == NAIVE,)
