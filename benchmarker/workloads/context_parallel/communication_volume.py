"""FLOPs and bytes of one call over several ranks, and the bytes that the ranks exchange.

FLOPs and bytes of memory are those of attention over the full sequence, divided by the GPUs. A rank of a ring sends,
with s = seq_len / ranks positions of kv_heads heads, N ranks and e bytes per number:

    forward   N - 1 times   2 * s * kv_heads * head_dim * e       keys and values
    backward  N - 1 times   the same again
              once          the same: gradients of one block in the inputs' type
              N - 2 times   gradients of several blocks, in float32
"""

from __future__ import annotations

from benchmarker.workloads.attention.attention_flops import demand_of as attention_demand
from benchmarker.workloads.attention.spec import AttentionShape
from benchmarker.workloads.context_parallel.record import ContextParallelDemand
from benchmarker.workloads.context_parallel.variants.registry import Splitting

FLOAT32_BYTES = 4


def demand_of(shape: AttentionShape, ranks: int, splitting: Splitting) -> ContextParallelDemand:
    """Return the work of one call, given the shape of the full sequence."""
    gpus = 1 if splitting.is_alone else ranks
    total = attention_demand(shape)
    local = attention_demand(shape._replace(seq_len=max(1, shape.seq_len // ranks)))
    return ContextParallelDemand(
        flops=total.flops // gpus,
        bytes=total.bytes // gpus,
        total_flops=total.flops,
        local_flops=local.flops,
        sent_bytes=sent_bytes(shape, ranks, splitting),
        step_bytes=_step_bytes(shape, ranks) if splitting.is_ring and ranks > 1 else None,
    )


def _kv_bytes(shape: AttentionShape, ranks: int) -> int:
    """Return the bytes of one rank's keys and values."""
    return 2 * shape.batch_size * shape.seq_len // ranks * shape.kv_heads * shape.head_dim * shape.element_bytes


def _step_bytes(shape: AttentionShape, ranks: int) -> int:
    """Return the bytes that a rank of a ring sends during one block forward and, with gradients, one block backward."""
    keys = _kv_bytes(shape, ranks)
    gradients = keys if ranks == 2 else keys * FLOAT32_BYTES // shape.element_bytes
    return 2 * keys + gradients if shape.is_backward else keys


def sent_bytes(shape: AttentionShape, ranks: int, splitting: Splitting) -> int:
    """Return the bytes that a rank sends in one call, to all other ranks."""
    if splitting.is_alone or ranks == 1:
        return 0
    keys = _kv_bytes(shape, ranks)
    if splitting.splits_heads:
        # A rank sends all but its own share of queries, keys, values and output. The gradients are sent back.
        queries = keys * shape.heads // shape.kv_heads // 2
        return (2 * queries + keys) * (ranks - 1) // ranks * (2 if shape.is_backward else 1)
    if not shape.is_backward:
        return (ranks - 1) * keys
    in_float32 = keys * FLOAT32_BYTES // shape.element_bytes
    if splitting.is_ring:
        return 2 * (ranks - 1) * keys + keys + (ranks - 2) * in_float32
    # torch sends float32 gradients, and once more than there are steps between ranks.
    return 2 * (ranks - 1) * keys + ranks * in_float32
