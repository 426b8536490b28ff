"""Mixers by their recurrence, with FLOPs, bytes and state of one call. Imports no torch.

A linear mixer keeps a matrix of head_dim x value_dim for each head. A token writes into it (2 FLOPs per number) and
reads from it (2 more); the delta rule first reads the value stored for the key (another 2):

    linear attention, retention   4 * head_dim * value_dim   per token and head
    gated delta rule              6 * head_dim * value_dim

The backward pass has twice these products: the gradients of both factors of each. Softmax attention counts as in
`workloads/attention/record.py`: 2 * (head_dim + value_dim) per pair of tokens, backward 2.5 times that.
Kernels that work on chunks multiply more; the additional products do not count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from benchmarker.workloads.attention.record import BACKWARD_FLOPS, LSE_BYTES, allowed_pairs
from benchmarker.workloads.attention.spec import AttentionShape
from benchmarker.workloads.mixers.record import MixerName, MixersDemand
from benchmarker.workloads.mixers.spec import MixerShape
from benchmarker.workloads.operation.operation_call import Implementation

Layout = Literal["heads first", "length first"]
"""[batch, heads, length, width] or [batch, length, heads, width]. Each implementation gets its inputs in the layout
that it prefers, so that no copy is timed."""
GATE_BYTES = 4
"""Bytes of one log decay, which is float32 in every type."""


class Mixer(NamedTuple):
    """Interaction of tokens. S is the state of one head, [head_dim, value_dim]; a is a decay, b a strength."""

    name: MixerName
    state_products: int | None
    """Multiplications per token in units of the state's size. None for softmax, which has no state of fixed size."""
    is_gated_delta: bool = False
    """True if each token has a decay and a strength as inputs, queries and keys are scaled to length 1, and the value
    stored for the key is first subtracted from the state."""


SOFTMAX = Mixer("softmax", None)
"""o = softmax(q k^T / sqrt(head_dim)) v over all tokens so far."""
LINEAR = Mixer("linear", 2)
"""S += k v^T; o = S^T q / sqrt(head_dim)."""
RETENTION = Mixer("retention", 2)
"""S = a S + k v^T, a = 1 - 2^(-5 - head); o = S^T q / sqrt(head_dim)."""
GATED_DELTA = Mixer("gdn", 3, is_gated_delta=True)
"""S = a S; S += k (b (v - S^T k))^T; o = S^T q / sqrt(head_dim)."""


@dataclass(frozen=True, kw_only=True)
class MixerImplementation(Implementation):
    mixer: Mixer
    source: str
    """Source of its kernels: `torch`, `fla`."""
    dtypes: tuple[str, ...] = ("float32", "bfloat16", "float16")
    layout: Layout = "heads first"
    packages: tuple[str, ...] = ("torch",)
    """Packages whose versions are recorded."""
    wide_values: bool = True
    """True if values may be wider or narrower than keys."""
    normalizes: bool = False
    """True if it can divide by the sum of its weights."""
    has_backward: bool = True
    writes_scores: bool = False
    """True if the scores of all pairs go through memory."""

    @property
    def is_softmax(self) -> bool:
        return self.mixer is SOFTMAX

    def wrong_shape(self, shape: MixerShape) -> str | None:
        if reason := super().wrong_shape(shape):
            return reason
        if shape.value_dim != shape.head_dim and not self.wide_values:
            return f"takes values as wide as keys, not {shape.value_dim} beside {shape.head_dim}"
        if shape.normalize and self.mixer is LINEAR and not self.normalizes:
            return "does not divide by the sum of its weights"
        if shape.is_backward and not self.has_backward:
            return "has no backward pass"
        return None


def softmax_shape(shape: MixerShape) -> AttentionShape:
    return AttentionShape(
        batch_size=shape.batch_size,
        seq_len=shape.seq_len,
        heads=shape.heads,
        kv_heads=shape.heads,
        head_dim=shape.head_dim,
        causal=True,
        window=None,
        dtype=shape.dtype,
        mode="forward_backward" if shape.is_backward else "forward",
    )


def demand_of(mixer: Mixer, shape: MixerShape) -> MixersDemand:
    rows = shape.batch_size * shape.heads
    if mixer.state_products is None:
        forward = 2 * rows * allowed_pairs(softmax_shape(shape)) * (shape.head_dim + shape.value_dim)
        backward = round(BACKWARD_FLOPS * forward)
        state_floats = shape.heads * (shape.head_dim + shape.value_dim) * shape.seq_len
    else:
        forward = 2 * mixer.state_products * rows * shape.seq_len * shape.head_dim * shape.value_dim
        backward = 2 * forward
        state_floats = shape.heads * shape.head_dim * shape.value_dim
    return MixersDemand(
        forward_flops=forward,
        flops=forward + backward * shape.is_backward,
        bytes=_bytes(mixer, shape),
        state_floats=state_floats,
    )


def _bytes(mixer: Mixer, shape: MixerShape) -> int:
    """Forward: read inputs, write output. Backward: read inputs and the output's gradient, write gradients; softmax
    also reads its output again and the log-sum-exp of each row."""
    rows = shape.tokens * shape.heads
    gates = rows * (GATE_BYTES + shape.element_bytes) if mixer.is_gated_delta else 0
    inputs = rows * (2 * shape.head_dim + shape.value_dim) * shape.element_bytes + gates
    output = rows * shape.value_dim * shape.element_bytes
    if not shape.is_backward:
        return inputs + output
    reread = output + 2 * LSE_BYTES * rows if mixer.state_products is None else 0
    return 3 * inputs + 2 * output + reread


def least_bytes(mixer: Mixer, shape: MixerShape, *, writes_scores: bool) -> int:
    """Return a lower bound of the memory: inputs, output, and the scores of an implementation that writes them."""
    scores = shape.batch_size * shape.heads * shape.seq_len**2 * shape.element_bytes if writes_scores else 0
    return _bytes(mixer, shape._replace(mode="forward")) + scores
