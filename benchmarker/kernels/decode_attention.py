"""Decode attention with grouped query heads (GQA) as one kernel, for short KV caches and for large batches.

For short caches, launching several kernels takes longer than reading keys and values; large batches occupy a GPU
without splitting positions. Each program computes one key head of one sequence with all its query heads, and iterates
over the filled positions with an online softmax (Milakov and Gimelshein, 2018, arXiv:1805.02867). The kernel is written
in Triton and runs on NVIDIA and AMD.
"""

import torch
from torch import Tensor

from benchmarker.kernels.gemv_tensor_core import sm_count
from benchmarker.kernels.launch_support import supports_pdl, tl, triton

# No `from __future__ import annotations`: torch reads the operator's types from its annotations.

SMALLEST_TILE = 16  # Minimum number of rows of a tensor core product.
BEST_UNDER_POSITIONS = 1024  # Cache length from which a split-KV kernel is faster for few programs.
MANY_PROGRAMS = 64  # Programs from which this kernel is faster than FlashAttention 2, at 4,096 positions on an H100.


def why_not(key: Tensor) -> str | None:
    """Return why this kernel is not used for a cache [batch, key heads, positions, head_dim]; None if it is used."""
    batch, key_heads, positions, head_dim = key.shape
    if not key.is_cuda:
        return "not on a GPU"
    if positions >= BEST_UNDER_POSITIONS and batch * key_heads < MANY_PROGRAMS:
        return "a cache of 1,024 positions or more, and fewer than 64 key heads in all sequences"
    return None if is_tile(head_dim) else "heads whose size is no power of two from 16 up"


def is_tile(head_dim: int) -> bool:
    """Return True if the head size is a power of two of at least 16."""
    return head_dim >= SMALLEST_TILE and head_dim & (head_dim - 1) == 0


@triton.jit  # type: ignore[untyped-decorator]
def decode_attention_kernel(  # type: ignore[no-untyped-def]
    query, key, value, lengths, output,
    scaling, positions, key_heads,
    group: tl.constexpr, rows: tl.constexpr, head_dim: tl.constexpr, block: tl.constexpr, pdl: tl.constexpr,
):  # fmt: skip
    if pdl:
        # PDL: let the next kernel start and prefetch its weights.
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    sequence = tl.program_id(0)
    head = tl.program_id(1)
    filled = tl.load(lengths + sequence)
    # Compiled code passes `scaling` in 64 bits.
    scale = tl.cast(scaling, tl.float32)
    row = tl.arange(0, rows)
    dim = tl.arange(0, head_dim)
    place = (sequence * key_heads + head) * group * head_dim + row[:, None] * head_dim + dim[None, :]
    queries = tl.load(query + place, mask=row[:, None] < group, other=0.0)
    highest = tl.full([rows], float("-inf"), tl.float32)
    total = tl.zeros([rows], tl.float32)
    mean = tl.zeros([rows, head_dim], tl.float32)
    # The cache of a large batch has more than 2**31 elements.
    of_head = (sequence.to(tl.int64) * positions * key_heads + head) * head_dim
    for start in range(0, filled, block):
        position = start + tl.arange(0, block)[:, None]
        of_block = of_head + position * key_heads * head_dim + dim[None, :]
        keys = tl.load(key + of_block, mask=position < filled, other=0.0)
        values = tl.load(value + of_block, mask=position < filled, other=0.0)
        highest, total, mean = softmax_step(queries, keys, values, start, filled, scale, highest, total, mean, block)
    tl.store(output + place, (mean / total[:, None]).to(output.dtype.element_ty), mask=row[:, None] < group)


@triton.jit  # type: ignore[untyped-decorator]
def softmax_step(  # type: ignore[no-untyped-def]
    queries, keys, values, first, filled, scale, highest, total, mean, block: tl.constexpr
):  # fmt: skip
    """Return the highest score, the sum of weights and the mean of values, not yet divided, after one more block."""
    scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
    scores = tl.where((first + tl.arange(0, block) < filled)[None, :], scores, float("-inf"))
    new_highest = tl.maximum(highest, tl.max(scores, 1))
    weights = tl.exp(scores - new_highest[:, None])
    rescale = tl.exp(highest - new_highest)
    total = total * rescale + tl.sum(weights, 1)
    mean = mean * rescale[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
    return new_highest, total, mean


@torch.library.custom_op("benchmarker::decode_attention", mutates_args=())
def decode_attention(query: Tensor, key: Tensor, value: Tensor, lengths: Tensor, scaling: float) -> Tensor:
    """Return softmax(scaling * query @ key^T) @ value over the filled positions, for one query per sequence.

    Args:
        query: [batch, heads, head_dim].
        key: Stored keys, [batch, positions, key heads, head_dim]; `value` has the same layout.
        lengths: Number of filled positions of each sequence, at least 1, [batch], int32.
    """
    batch, heads, head_dim = query.shape
    positions, key_heads = key.shape[1], key.shape[2]
    group = heads // key_heads
    query = query.contiguous()
    output = torch.empty_like(query)
    pdl = supports_pdl(query.device)
    block_bytes, warps, stages = launch_config_for(batch * key_heads, query.device)
    with torch.cuda.device_of(output):
        decode_attention_kernel[(batch, key_heads)](
            query, key, value, lengths, output, scaling, positions, key_heads,
            group=group, rows=max(SMALLEST_TILE, triton.next_power_of_2(group)), head_dim=head_dim,
            block=max(SMALLEST_TILE, block_bytes // (head_dim * key.element_size())), pdl=pdl,
            num_warps=warps, num_stages=stages, **({"launch_pdl": True} if pdl else {}),
        )  # fmt: skip
    return output


def launch_config_for(programs: int, device: torch.device) -> tuple[int, int, int]:
    """Return the bytes of keys per iteration, Triton's `num_warps` and `num_stages`, by measurements on an H100."""
    if device.type != "cuda" or torch.version.hip is not None:
        # Keys, values and copies of both fit in an AMD GPU's shared memory (64 KiB).
        return 64 * 128 * 2, 4, 2
    return (64 * 128 * 2, 4, 3) if programs <= sm_count(device) else (32 * 128 * 2, 2, 3)


@decode_attention.register_fake
def _shape(query: Tensor, key: Tensor, value: Tensor, lengths: Tensor, scaling: float) -> Tensor:  # noqa: ARG001
    return torch.empty_like(query, memory_format=torch.contiguous_format)
