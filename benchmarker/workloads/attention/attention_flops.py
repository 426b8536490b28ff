"""FLOPs and bytes of one call of attention, by formula.

FLOPs are those of the matrix products over the (query, key) pairs that the mask allows:

    forward  = 4 * batch * heads * head_dim * pairs
    backward = 2.5 * forward        five products (scores again, dv, dp, dq, dk) instead of two

This is the convention of the FlashAttention papers (Dao, "FlashAttention-2", arXiv 2307.08691, section 4; Shah et al.,
"FlashAttention-3", arXiv 2407.08608), except that pairs are counted exactly instead of halving the square for a causal
mask. Masked pairs that a kernel computes, and the exponentials of the softmax, do not count.
"""

from __future__ import annotations

from benchmarker.workloads.attention.record import AttentionDemand
from benchmarker.workloads.attention.spec import AttentionShape

BACKWARD_FLOPS = 2.5
LSE_BYTES = 4  # Bytes of the log-sum-exp of one row (float32), which the forward pass stores for the backward pass.


def attention_flops(shape: AttentionShape, *, value_dim: int | None = None) -> tuple[int, int]:
    """Return the FLOPs of the forward and of the backward pass. `value_dim`: width of a value head, if not head_dim."""
    widths = shape.head_dim + (value_dim or shape.head_dim)
    forward = 2 * shape.batch_size * shape.heads * allowed_pairs(shape) * widths
    return forward, round(BACKWARD_FLOPS * forward)


def allowed_pairs(shape: AttentionShape) -> int:
    """Return the number of (query, key) pairs that the mask allows in one head of one sequence."""
    length, window = shape.seq_len, shape.window
    if not shape.causal:
        return length * length
    if window is None or window >= length:
        return length * (length + 1) // 2
    return window * (window + 1) // 2 + (length - window) * window


def attention_flops_and_bytes(shape: AttentionShape) -> AttentionDemand:
    """Return FLOPs and bytes of one call. Bytes forward: read q, k, v; write o. Backward: read q, k, v, o, do; write
    dq, dk, dv. With a backward pass, the log-sum-exp is also written and read."""
    forward, backward = attention_flops(shape)
    tensors = shape.row_bytes * (shape.heads + shape.kv_heads)
    lse = shape.batch_size * shape.heads * shape.seq_len * LSE_BYTES
    return AttentionDemand(
        forward_flops=forward,
        flops=forward + backward * shape.is_backward,
        bytes=6 * tensors + 2 * lse if shape.is_backward else 2 * tensors,
        scores_bytes=shape.batch_size * shape.heads * shape.seq_len**2 * shape.element_bytes,
    )


def scores_passes(*, is_causal: bool, is_backward: bool) -> int:
    """Return how often the variant `naive` reads or writes the score matrix.

    Forward: written by the first product, read and written by scaling, by the mask (if any) and by the softmax, read by
    the second product. Backward: read for dv, written as dp, read twice and written once by the softmax, read and
    written by the mask (if any) and by scaling, read for dq and for dk.
    """
    forward, backward = (8, 11) if is_causal else (6, 9)
    return forward + backward * is_backward
