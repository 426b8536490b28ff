"""What a call costs by formula: operations, bytes of memory, and bytes that the ranks send each other.

Operations and bytes of memory are attention's (see `workloads.attention.demand`), over the whole sequence; one GPU has
its part. A rank of a ring sends, with s = seq_len / ranks positions of kv_heads heads, N ranks, `e` bytes a number:

    forward   N - 1 times   2 * s * kv_heads * head_dim * e       keys and values
    backward  N - 1 times   the same again
              once          the same: gradients of one block in the inputs' type
              N - 2 times   gradients of several blocks, in float32
"""

from __future__ import annotations

from benchmarker.workloads.attention.demand import demand_of as whole_demand_of
from benchmarker.workloads.attention.spec import Shape
from benchmarker.workloads.context_parallel.record import ContextParallelDemand
from benchmarker.workloads.context_parallel.variants.registry import Splitting

FLOAT32_BYTES = 4


def demand_of(shape: Shape, ranks: int, splitting: Splitting) -> ContextParallelDemand:
    """The work of one call.

    Args:
        shape: Of the whole sequence.
    """
    gpus = 1 if splitting.is_alone else ranks
    whole = whole_demand_of(shape)
    local = whole_demand_of(shape._replace(seq_len=max(1, shape.seq_len // ranks)))
    return ContextParallelDemand(
        flops=whole.flops // gpus,
        bytes=whole.bytes // gpus,
        total_flops=whole.flops,
        local_flops=local.flops,
        sent_bytes=sent_bytes(shape, ranks, splitting),
        step_bytes=step_bytes(shape, ranks) if splitting.is_ring and ranks > 1 else None,
    )


def kv_bytes(shape: Shape, ranks: int) -> int:
    """Of the keys and values of one rank."""
    return 2 * shape.batch_size * shape.seq_len // ranks * shape.kv_heads * shape.head_dim * shape.element_bytes


def step_bytes(shape: Shape, ranks: int) -> int:
    """That a rank of a ring sends beside one block forward, and beside one backward where there is that."""
    keys = kv_bytes(shape, ranks)
    gradients = keys if ranks == 2 else keys * FLOAT32_BYTES // shape.element_bytes
    return 2 * keys + gradients if shape.is_backward else keys


def sent_bytes(shape: Shape, ranks: int, splitting: Splitting) -> int:
    """That a rank sends in one call, to all others together."""
    if splitting.is_alone or ranks == 1:
        return 0
    keys = kv_bytes(shape, ranks)
    if splitting.splits_heads:
        # Queries, keys, values and the output: of each N parts all but its own go away. Their gradients come back.
        queries = keys * shape.heads // shape.kv_heads // 2
        return (2 * queries + keys) * (ranks - 1) // ranks * (2 if shape.is_backward else 1)
    if not shape.is_backward:
        return (ranks - 1) * keys
    in_float32 = keys * FLOAT32_BYTES // shape.element_bytes
    if splitting.is_ring:
        return 2 * (ranks - 1) * keys + keys + (ranks - 2) * in_float32
    # torch passes gradients on as float32, and once more than there are steps between ranks.
    return 2 * (ranks - 1) * keys + ranks * in_float32
