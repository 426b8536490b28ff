"""What a call of a mixer cannot do without: its multiplications by formula, its bytes, and the state that it carries.

A linear mixer keeps a matrix of head_dim x value_dim for each head. A token writes into it (2 operations a number) and
reads from it (2 more); the delta rule first reads what the key has there already (another 2):

    linear attention, retention   4 * head_dim * value_dim   a token and head
    gated delta rule              6 * head_dim * value_dim

The backward pass has twice these products: for each of them the gradients of both factors. Softmax attention counts as
in `workloads/attention/demand.py`: 2 * (head_dim + value_dim) a pair of tokens, backward 2.5 times that. Kernels that
work on chunks multiply more than that, which is their own affair: they get no credit for it.
"""

from __future__ import annotations

from benchmarker.workloads.attention.demand import BACKWARD_FLOPS, LSE_BYTES, allowed_pairs
from benchmarker.workloads.attention.spec import Shape as SoftmaxShape
from benchmarker.workloads.mixers.record import MixersDemand
from benchmarker.workloads.mixers.spec import Shape
from benchmarker.workloads.mixers.variants.base import Mixer

GATE_BYTES = 4
"""Of the logarithm of a gate, which is float32 in every type."""


def softmax_shape(shape: Shape) -> SoftmaxShape:
    """The same work for an implementation of attention."""
    return SoftmaxShape(
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


def demand_of(mixer: Mixer, shape: Shape) -> MixersDemand:
    """FLOPs and bytes of one call, and its state."""
    rows = shape.batch_size * shape.heads
    if mixer.state_products is None:
        forward = 2 * rows * allowed_pairs(softmax_shape(shape)) * (shape.head_dim + shape.value_dim)
        backward = round(BACKWARD_FLOPS * forward)
    else:
        forward = 2 * mixer.state_products * rows * shape.seq_len * shape.head_dim * shape.value_dim
        backward = 2 * forward
    return MixersDemand(
        forward_flops=forward,
        flops=forward + backward * shape.is_backward,
        bytes=_bytes(mixer, shape),
        state_floats=state_floats(mixer, shape),
    )


def state_floats(mixer: Mixer, shape: Shape) -> int:
    """Numbers that one sequence carries through one layer at its last token: what a decoding step would read."""
    if mixer.state_products is None:
        return shape.heads * (shape.head_dim + shape.value_dim) * shape.seq_len
    return shape.heads * shape.head_dim * shape.value_dim


def _bytes(mixer: Mixer, shape: Shape) -> int:
    """Forward: inputs read, output written. Backward: inputs and the output's gradient read, gradients written; softmax
    reads its output again, and keeps the log-sum-exp of each row."""
    rows = shape.tokens * shape.heads
    gates = rows * (GATE_BYTES + shape.element_bytes) if mixer.is_gated else 0
    inputs = rows * (2 * shape.head_dim + shape.value_dim) * shape.element_bytes + gates
    output = rows * shape.value_dim * shape.element_bytes
    if not shape.is_backward:
        return inputs + output
    again = output + 2 * LSE_BYTES * rows if mixer.state_products is None else 0
    return 3 * inputs + 2 * output + again


def least_bytes(mixer: Mixer, shape: Shape, *, writes_scores: bool) -> int:
    """What the device must hold at once: inputs and output, and the scores of an implementation that writes them."""
    scores = shape.batch_size * shape.heads * shape.seq_len**2 * shape.element_bytes if writes_scores else 0
    return _bytes(mixer, shape._replace(mode="forward")) + scores
