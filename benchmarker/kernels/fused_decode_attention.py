"""Attention of the fused decode layer: RMS norms of query and key heads, rotary embedding, KV cache write and
attention.

Each program computes one key head, or a split of its positions, with all its query heads. The online softmax (Milakov
and Gimelshein, 2018, arXiv:1805.02867) of the first split starts with the new key and value. A program reads its first
block of positions before it waits for the previous kernel (PDL); at 128 positions this block is the whole cache.

The positions of a longer cache are split among several programs, because a GPU has more multiprocessors than a model
has key heads. The program that ends last combines their sums (flash decoding, Dao et al., 2023). The number of splits
depends on the size of the cache, not on the filled positions. Time per layer with Qwen3-4B's heads (H100, 2026-11-25,
`tests/benchmarks/decode_attention_times.py`): 5.6 us at 384 positions, 8.5 at 1,100, 13.2 at 4,224 and 31.6 at 16,512
(2,140 GB/s).
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarker.kernels.decode_attention import SMALLEST_TILE, softmax_step
from benchmarker.kernels.launch_support import arrival_counters, supports_pdl, tl, triton

AHEAD_BYTES = 128 * 128 * 2
"""Bytes of keys, and of values, that a program reads before it waits; half as many with `MAX_SPLITS`."""
WHOLE_POSITIONS = 256
"""Largest cache that is not split, two blocks. Timed only with 8 key heads and head_dim 128 in 16 bits."""
FEW_POSITIONS = 512  # Largest cache with one program per block; a longer cache has `MAX_SPLITS` per key head.
MAX_SPLITS = 32
"""Programs per key head. With 8 key heads, an H100 has two per multiprocessor: one reads while the other computes."""
LOWEST_SCORE = -1e30  # Finite stand-in for -inf (-inf minus -inf is NaN).


@dataclass(frozen=True)
class Heads:
    """RMS norms of heads, and scaling, in a layer's attention."""

    query_gain: Tensor | None  # Weight of the query heads' RMS norm, [head_dim]; None if heads have no norm.
    key_gain: Tensor | None
    epsilon: float
    scaling: float
    head_dim: int


@dataclass(frozen=True)
class Rotation:
    cosines: Tensor  # [positions, head_dim], float32; `sines` has the same shape.
    sines: Tensor


class SplitConfig(NamedTuple):
    splits: int  # Programs per key head.
    block: int  # Positions per iteration. A program computes every `splits`-th block.
    warps: int = 8
    stages: int = 1  # Triton's `num_stages`: 3 reads the next block during the current one; 1 and 2 do not.


def split_config_for(positions: int, bytes_of_key: int) -> SplitConfig:
    block = max(SMALLEST_TILE, AHEAD_BYTES // bytes_of_key)
    if positions > FEW_POSITIONS:
        return SplitConfig(MAX_SPLITS, max(SMALLEST_TILE, block // 2), warps=4, stages=2)
    return SplitConfig(1 if positions <= WHOLE_POSITIONS else -(-positions // block), block)


@triton.jit  # type: ignore[untyped-decorator]
def one_row_attention_kernel(  # type: ignore[no-untyped-def]
    product, query_gain, key_gain, cosines, sines, key, value, lengths, sums, counters, output,
    epsilon, scaling, key_heads,
    group: tl.constexpr, rows: tl.constexpr, head_dim: tl.constexpr, block: tl.constexpr, splits: tl.constexpr,
    lowest_score: tl.constexpr, has_norm: tl.constexpr, pdl: tl.constexpr,
):  # fmt: skip
    """Shapes: product [heads + 2 * key_heads, head_dim]; key, value [positions, key_heads, head_dim], `lengths` - 1
    filled; sums [key_heads * group, splits, head_dim], then highest scores and weight sums, [2, key_heads * group,
    splits]; counters [key_heads], zero before and after; output [key_heads * group, head_dim]."""
    if pdl:
        tl.extra.cuda.gdc_launch_dependents()
    head, split = tl.program_id(0), tl.program_id(1)
    filled = tl.load(lengths) - 1
    dim = tl.arange(0, head_dim)
    partner = (dim + head_dim // 2) % head_dim
    own_first = split * block
    keys, values = _block(key, value, own_first, filled, head, key_heads, dim, head_dim, block)
    cosine = tl.load(cosines + filled * head_dim + dim)
    sine = tl.load(sines + filled * head_dim + dim) * tl.where(dim < head_dim // 2, -1.0, 1.0)
    of_query, of_query_partner, of_key, of_key_partner = cosine, sine, cosine, sine
    if has_norm:
        of_query, of_query_partner = _gained(query_gain, cosine, sine, dim, partner)
        of_key, of_key_partner = _gained(key_gain, cosine, sine, dim, partner)
    if pdl:
        tl.extra.cuda.gdc_wait()
    row, heads = tl.arange(0, rows), key_heads * group
    start = product + (head * group + row)[:, None] * head_dim
    is_head = (row < group)[:, None]
    queries = tl.load(start + dim[None, :], mask=is_head, other=0.0).to(tl.float32)
    partners = tl.load(start + partner[None, :], mask=is_head, other=0.0).to(tl.float32)
    new_start = product + (heads + head) * head_dim
    new_key, new_partner = tl.load(new_start + dim).to(tl.float32), tl.load(new_start + partner).to(tl.float32)
    new_value = tl.load(new_start + key_heads * head_dim + dim)
    rotated = queries * of_query[None, :] + partners * of_query_partner[None, :]
    new_rotated = new_key * of_key + new_partner * of_key_partner
    if has_norm:
        rotated *= _norm_factor(queries, epsilon, head_dim, 1)
        new_rotated *= _norm_factor(new_key, epsilon, head_dim, 0)
    kept_key = new_rotated.to(key.dtype.element_ty)
    place = (filled * key_heads + head) * head_dim + dim
    # The program of split 0 computes the new position.
    is_new = split == 0
    tl.store(key + place, kept_key, mask=(dim >= 0) & is_new)
    tl.store(value + place, new_value, mask=(dim >= 0) & is_new)
    queries = rotated * tl.cast(scaling, tl.float32)
    highest, total, mean = _initial_state(queries, kept_key, new_value, is_new, rows, head_dim, lowest_score)
    queries = queries.to(key.dtype.element_ty)
    highest, total, mean = softmax_step(queries, keys, values, own_first, filled, 1.0, highest, total, mean, block)
    for first in range(own_first + splits * block, filled, splits * block):
        keys, values = _block(key, value, first, filled, head, key_heads, dim, head_dim, block)
        highest, total, mean = softmax_step(queries, keys, values, first, filled, 1.0, highest, total, mean, block)
    if splits > 1:
        _store_partial_sums(
            sums, highest, total, mean, head * group + row, split, is_head, heads, dim, head_dim, splits
        )
        tl.debug_barrier()
        if tl.atomic_add(counters + head, 1, sem="acq_rel") == splits - 1:
            _combine_partial_sums(sums, output, head * group, heads, dim, group, head_dim, splits)
            tl.store(counters + head, 0)
    else:
        place = (head * group + row)[:, None] * head_dim + dim[None, :]
        tl.store(output + place, (mean / total[:, None]).to(output.dtype.element_ty), mask=is_head)


@triton.jit
def _gained(gain, cosine, sine, dim, partner):  # type: ignore[no-untyped-def]
    return cosine * tl.load(gain + dim).to(tl.float32), sine * tl.load(gain + partner).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def _norm_factor(  # type: ignore[no-untyped-def]
    numbers, epsilon, head_dim: tl.constexpr, axis: tl.constexpr
):  # fmt: skip
    mean = tl.sum(numbers * numbers, axis, keep_dims=True) / head_dim
    return tl.rsqrt(mean + tl.cast(epsilon, tl.float32))


@triton.jit  # type: ignore[untyped-decorator]
def _store_partial_sums(  # type: ignore[no-untyped-def]
    sums, highest, total, mean, query_head, split, is_head, heads, dim, head_dim: tl.constexpr, splits: tl.constexpr
):  # fmt: skip
    place = query_head * splits + split
    tl.store(sums + place[:, None] * head_dim + dim[None, :], mean, mask=is_head)
    scores = sums + heads * splits * head_dim
    inside = tl.max(is_head.to(tl.int32), 1) > 0
    tl.store(scores + place, highest, mask=inside)
    tl.store(scores + heads * splits + place, total, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _combine_partial_sums(  # type: ignore[no-untyped-def]
    sums, output, first_head, heads, dim, group: tl.constexpr, head_dim: tl.constexpr, splits: tl.constexpr
):  # fmt: skip
    """Combine the sums of all splits of a key head, for its query heads."""
    split = tl.arange(0, triton.next_power_of_2(splits))
    is_part = split < splits
    for query in tl.static_range(group):
        place = (first_head + query) * splits + split
        scores = sums + heads * splits * head_dim
        highest = tl.load(scores + place, mask=is_part, other=float("-inf"), cache_modifier=".cg")
        total = tl.load(scores + heads * splits + place, mask=is_part, other=0.0, cache_modifier=".cg")
        means = tl.load(
            sums + place[:, None] * head_dim + dim[None, :], mask=is_part[:, None], other=0.0, cache_modifier=".cg"
        )
        weight = tl.exp(highest - tl.max(highest, 0))
        mean = tl.sum(means * weight[:, None], 0) / tl.sum(total * weight, 0)
        tl.store(output + (first_head + query) * head_dim + dim, mean.to(output.dtype.element_ty))


@triton.jit  # type: ignore[untyped-decorator]
def _initial_state(  # type: ignore[no-untyped-def]
    queries, new_key, new_value, is_new, rows: tl.constexpr, head_dim: tl.constexpr, lowest_score: tl.constexpr
):  # fmt: skip
    highest = tl.where(is_new, tl.sum(queries * new_key.to(tl.float32)[None, :], 1), lowest_score)
    total = tl.zeros([rows], tl.float32) + tl.where(is_new, 1.0, 0.0)
    mean = tl.zeros([rows, head_dim], tl.float32) + tl.where(is_new, new_value.to(tl.float32), 0.0)[None, :]
    return highest, total, mean


@triton.jit  # type: ignore[untyped-decorator]
def _block(  # type: ignore[no-untyped-def]
    key, value, first, filled, head, key_heads, dim, head_dim: tl.constexpr, block: tl.constexpr
):  # fmt: skip
    position = first + tl.arange(0, block)
    place = (position[:, None] * key_heads + head) * head_dim + dim[None, :]
    is_filled = (position < filled)[:, None]
    return tl.load(key + place, mask=is_filled, other=0.0), tl.load(value + place, mask=is_filled, other=0.0)


def fused_decode_attention(
    product: Tensor, heads: Heads, rotation: Rotation, key: Tensor, value: Tensor, lengths: Tensor,
    config: SplitConfig | None = None,
) -> Tensor:  # fmt: skip
    """Append the new key and value to one layer's cache, and return its attention, [heads * head_dim].

    Args:
        product: Outputs of q_proj, k_proj and v_proj, concatenated.
        key: Stored keys of the cache, [1, positions, key heads, head_dim]; `value` has the same layout.
        lengths: Number of filled positions, the new position included, [1], int32.
    """
    key_heads, head_dim = key.shape[2:]
    group = len(product) // head_dim // key_heads - 2
    output = product.new_empty(key_heads * group * head_dim)
    pdl = supports_pdl(product.device)
    config = config or split_config_for(key.shape[1], head_dim * key.element_size())
    sums = product.new_empty(key_heads * group * config.splits * (head_dim + 2), dtype=torch.float32)
    with torch.cuda.device_of(output):
        one_row_attention_kernel[(key_heads, config.splits)](
            product, output if heads.query_gain is None else heads.query_gain,
            output if heads.key_gain is None else heads.key_gain, rotation.cosines, rotation.sines, key, value, lengths,
            sums, arrival_counters("one_row_attention", key_heads, product.device), output,
            heads.epsilon, heads.scaling, key_heads,
            group=group, rows=max(SMALLEST_TILE, triton.next_power_of_2(group)), head_dim=head_dim,
            block=config.block, splits=config.splits, lowest_score=LOWEST_SCORE,
            has_norm=heads.query_gain is not None, pdl=pdl, num_warps=config.warps, num_stages=config.stages,
            **({"launch_pdl": True} if pdl else {}),
        )  # fmt: skip
    return output
