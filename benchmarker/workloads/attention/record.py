"""Record of the attention workload, and the FLOPs and bytes of one call by formula.

FLOPs count the two products of the forward pass over the (query, key) pairs that the mask allows, and nothing else:

    forward  = 4 * batch * heads * head_dim * pairs
    backward = 2.5 * forward        five products instead of two: the scores again, dv, dp, dq and dk

This is the convention of the FlashAttention papers (Dao, "FlashAttention-2", arXiv 2307.08691, section 4; Shah et al.,
"FlashAttention-3", arXiv 2407.08608), except that pairs are counted exactly instead of halving the square for a causal
mask. Masked pairs that a kernel computes, and the exponentials of the softmax, do not count.
"""

from __future__ import annotations

from typing import Literal

from benchmarker.schema.base import Plain, Positive, Spent
from benchmarker.schema.record import RunRecord, VariantFacts
from benchmarker.workloads.attention.spec import AttentionShape, AttentionSubject
from benchmarker.workloads.operation.record import LengthCell, OperationChecked, OperationDemand, TensorError
from benchmarker.workloads.operation.spec import OperationDType, PassMode

NAIVE = "naive"
"""Variant that writes its scores to memory."""
BACKWARD_FLOPS = 2.5
LSE_BYTES = 4
"""Bytes of one row's log-sum-exp (float32), which the forward pass keeps for the backward pass."""


class AttentionDemand(OperationDemand):
    """Work of one call of attention, by formula."""

    flops: Positive
    """FLOPs of the call as the FlashAttention papers count them: 4 * batch * heads * head_dim * allowed pairs forward,
    2.5 times that backward."""
    forward_flops: Positive
    """FLOPs of the forward pass."""
    scores_bytes: Positive
    """Bytes of one full score matrix, which a fused kernel never writes."""


class AttentionTensorError(TensorError):
    """Error of one result tensor, and the error that its type makes inevitable."""

    math_error: Spent
    """Error of torch's `math` backend in the same type."""


class AttentionChecked(OperationChecked):
    tolerance: Spent
    """Largest error that passes. A larger one also passes if `math` in the same type is at least half as far off."""
    tensors: tuple[AttentionTensorError, ...] = ()


class AttentionCell(LengthCell):
    mode: PassMode
    demand: AttentionDemand | None = None
    checked: AttentionChecked | None = None


class AttentionFacts(Plain):
    matmul_precision: Literal["ieee", "tf32"] | None = None
    """Precision of float32 products as torch reports it. None for other types, and on CPU."""
    source_sha256: str | None = None
    """SHA-256 of the file of a user's own function. None for the registry's variants."""


class AttentionVariantFacts(VariantFacts):
    variant: str
    """Name in the registry, or `module:function`."""
    dtype: OperationDType
    """Type of queries, keys and values: the variant's, or else the subject's."""


class AttentionRecord(RunRecord):
    """One process, one implementation."""

    workload: Literal["attention"] = "attention"
    subject: AttentionSubject
    variant: AttentionVariantFacts
    built: AttentionFacts | None = None
    """None if no cell was begun."""
    cells: tuple[AttentionCell, ...] = ()

    @property
    def form(self) -> dict[str, str]:
        return {"implementation": self.variant.variant, "dtype": self.variant.dtype}

    @property
    def baseline_rank(self) -> tuple[bool, ...]:
        return (self.variant.variant == NAIVE,)


def allowed_pairs(shape: AttentionShape) -> int:
    """Return the (query, key) pairs that the mask allows, for one head of one sequence."""
    length, window = shape.seq_len, shape.window
    if not shape.causal:
        return length * length
    if window is None or window >= length:
        return length * (length + 1) // 2
    return window * (window + 1) // 2 + (length - window) * window


def attention_flops_and_bytes(shape: AttentionShape) -> AttentionDemand:
    forward = 4 * shape.batch_size * shape.heads * shape.head_dim * allowed_pairs(shape)
    return AttentionDemand(
        forward_flops=forward,
        flops=forward + round(BACKWARD_FLOPS * forward) * shape.is_backward,
        bytes=_input_and_output_bytes(shape),
        scores_bytes=shape.batch_size * shape.heads * shape.seq_len**2 * shape.element_bytes,
    )


def _input_and_output_bytes(shape: AttentionShape) -> int:
    """Forward: read q, k, v; write o. Backward: read q, k, v, o, do; write dq, dk, dv. Both: the log-sum-exp."""
    tensors = shape.row_bytes * (shape.heads + shape.kv_heads)
    lse = shape.batch_size * shape.heads * shape.seq_len * LSE_BYTES
    return 6 * tensors + 2 * lse if shape.is_backward else 2 * tensors


def scores_passes(*, is_causal: bool, is_backward: bool) -> int:
    """Return how often `naive` moves the score matrix.

    Forward: written by the first product, read and written by scaling, by the mask (if any) and by the softmax, read by
    the second product. Backward: read for dv, written as dp, read twice and written once by the softmax, read and
    written by the mask (if any) and by scaling, read for dq and for dk.
    """
    forward, backward = (8, 11) if is_causal else (6, 9)
    return forward + backward * is_backward
