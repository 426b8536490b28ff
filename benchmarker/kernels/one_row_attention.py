"""What stands between a layer's products in a decode step of one sequence, as one kernel: RMS norms of the query and
key heads, rotary embedding, writing key and value into the cache, and attention to all of it.

A program of the grid takes one key head with all query heads that share it. The new key and value never leave it: the
running softmax (Milakov and Gimelshein, 2018, arXiv:1805.02867) begins with them, and they are written for later steps.
The first positions of the cache, which no kernel of this step writes, are read before the kernel waits for the one
before it (programmatic dependent launch): at 128 positions that is all of them, and what is left is arithmetic.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarker.kernels import decode_attention
from benchmarker.kernels.pdl import can_start_early
from benchmarker.kernels.triton_if_present import tl, triton

AHEAD_BYTES = 128 * 128 * 2
"""Bytes of keys that are read before the wait, and at once after it; as many of values."""


@dataclass(frozen=True)
class Heads:
    """What a layer's attention is made of, besides its products."""

    query_gain: Tensor
    """The weight of the query heads' RMS norm, [head_dim]."""
    key_gain: Tensor
    """The same of the key heads."""
    epsilon: float
    """What both norms add to the mean square."""
    scaling: float
    """Factor of the scores."""


@dataclass(frozen=True)
class Rotation:
    """Rotary embedding by position."""

    cosines: Tensor
    """[positions, head_dim], float32; so are the sines."""
    sines: Tensor


def takes_cache(batch: int, positions: int) -> bool:
    """Whether this kernel attends to a cache of so many sequences and positions, and gains by it.

    Device and size of the heads are `one_row_step`'s to look at: they are a model's, and do not change with the cache.
    """
    return batch == 1 and positions < decode_attention.BEST_UNDER_POSITIONS


@triton.jit  # type: ignore[untyped-decorator]
def one_row_attention_kernel(  # type: ignore[no-untyped-def]
    product, query_gain, key_gain, cosines, sines, key, value, lengths, output,
    epsilon, scaling, key_heads,
    group: tl.constexpr, rows: tl.constexpr, head_dim: tl.constexpr, block: tl.constexpr, early: tl.constexpr,
):  # fmt: skip
    """product: the query heads, the key heads and the value heads, [all, head_dim]; key, value: [positions, key_heads,
    head_dim], with `lengths` - 1 positions filled; output: [key_heads * group, head_dim]."""
    if early:
        tl.extra.cuda.gdc_launch_dependents()
    head = tl.program_id(0)
    filled = tl.load(lengths) - 1
    dim = tl.arange(0, head_dim)
    partner = (dim + head_dim // 2) % head_dim
    keys, values = _block(key, value, 0, filled, head, key_heads, dim, head_dim, block)
    cosine = tl.load(cosines + filled * head_dim + dim)
    sine = tl.load(sines + filled * head_dim + dim) * tl.where(dim < head_dim // 2, -1.0, 1.0)
    gain, partner_gain = tl.load(query_gain + dim).to(tl.float32), tl.load(query_gain + partner).to(tl.float32)
    new_gain, new_partner_gain = tl.load(key_gain + dim).to(tl.float32), tl.load(key_gain + partner).to(tl.float32)
    if early:
        tl.extra.cuda.gdc_wait()
    row = tl.arange(0, rows)
    heads = key_heads * group
    start = product + (head * group + row)[:, None] * head_dim
    is_head = (row < group)[:, None]
    queries = tl.load(start + dim[None, :], mask=is_head, other=0.0).to(tl.float32)
    partners = tl.load(start + partner[None, :], mask=is_head, other=0.0).to(tl.float32)
    new_start = product + (heads + head) * head_dim
    new_key, new_partner = tl.load(new_start + dim).to(tl.float32), tl.load(new_start + partner).to(tl.float32)
    new_value = tl.load(new_start + key_heads * head_dim + dim)
    factor = tl.rsqrt(tl.sum(queries * queries, 1) / head_dim + tl.cast(epsilon, tl.float32))[:, None]
    queries = (queries * (gain * cosine)[None, :] + partners * (partner_gain * sine)[None, :]) * factor
    new_factor = tl.rsqrt(tl.sum(new_key * new_key, 0) / head_dim + tl.cast(epsilon, tl.float32))
    new_key = (new_key * new_gain * cosine + new_partner * new_partner_gain * sine) * new_factor
    kept_key = new_key.to(key.dtype.element_ty)
    place = (filled * key_heads + head) * head_dim + dim
    tl.store(key + place, kept_key)
    tl.store(value + place, new_value)
    queries *= tl.cast(scaling, tl.float32)
    highest = tl.sum(queries * kept_key.to(tl.float32)[None, :], 1)
    total = tl.full([rows], 1.0, tl.float32)
    mean = tl.zeros([rows, head_dim], tl.float32) + new_value.to(tl.float32)[None, :]
    queries = queries.to(key.dtype.element_ty)
    highest, total, mean = _attended(queries, keys, values, 0, filled, highest, total, mean, block)
    for first in range(block, filled, block):
        keys, values = _block(key, value, first, filled, head, key_heads, dim, head_dim, block)
        highest, total, mean = _attended(queries, keys, values, first, filled, highest, total, mean, block)
    place = (head * group + row)[:, None] * head_dim + dim[None, :]
    tl.store(output + place, (mean / total[:, None]).to(output.dtype.element_ty), mask=is_head)


@triton.jit  # type: ignore[untyped-decorator]
def _block(  # type: ignore[no-untyped-def]
    key, value, first, filled, head, key_heads, dim, head_dim: tl.constexpr, block: tl.constexpr
):  # fmt: skip
    """Keys and values of the positions from `first` on, [block, head_dim]; zeros where nothing is filled."""
    position = first + tl.arange(0, block)
    place = (position[:, None] * key_heads + head) * head_dim + dim[None, :]
    is_filled = (position < filled)[:, None]
    return tl.load(key + place, mask=is_filled, other=0.0), tl.load(value + place, mask=is_filled, other=0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _attended(  # type: ignore[no-untyped-def]
    queries, keys, values, first, filled, highest, total, mean, block: tl.constexpr
):  # fmt: skip
    """The running softmax after another block: its highest score, the sum of its weights, and the weighted sum."""
    scores = tl.dot(queries, tl.trans(keys), input_precision="ieee")
    scores = tl.where((first + tl.arange(0, block) < filled)[None, :], scores, float("-inf"))
    now_highest = tl.maximum(highest, tl.max(scores, 1))
    weights = tl.exp(scores - now_highest[:, None])
    shrink = tl.exp(highest - now_highest)
    total = total * shrink + tl.sum(weights, 1)
    mean = mean * shrink[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
    return now_highest, total, mean


def one_row_attention(
    product: Tensor, heads: Heads, rotation: Rotation, key: Tensor, value: Tensor, lengths: Tensor
) -> Tensor:
    """Attention of one layer; its key and value are in the cache afterwards.

    Args:
        product: What the layer's q_proj, k_proj and v_proj made, one after another.
        key: The cache as it is stored, [1, positions, key heads, head_dim]; so is the value.
        lengths: Filled positions with the new one, [1], int32.

    Returns:
        [heads * head_dim].
    """
    key_heads, head_dim = key.shape[2:]
    group = len(product) // head_dim // key_heads - 2
    output = product.new_empty(key_heads * group * head_dim)
    early = can_start_early(product.device)
    block = max(decode_attention.SMALLEST_TILE, AHEAD_BYTES // (head_dim * key.element_size()))
    with torch.cuda.device_of(output):
        one_row_attention_kernel[(key_heads,)](
            product, heads.query_gain, heads.key_gain, rotation.cosines, rotation.sines, key, value, lengths, output,
            heads.epsilon, heads.scaling, key_heads,
            group=group, rows=max(decode_attention.SMALLEST_TILE, triton.next_power_of_2(group)), head_dim=head_dim,
            block=block, early=early, num_warps=8, num_stages=1, **({"launch_pdl": True} if early else {}),
        )  # fmt: skip
    return output
