"""Attention of one query a sequence against a fixed cache, with grouped heads and without a mask.

Several query heads share one key head. Repeating the keys for each of them would read and write the cache four times
over in Qwen3-4B, and a mask rules out the fast kernels; so neither is done here. On NVIDIA in 16 bit torch's flash
attention takes the length of each sequence from the device, reads only the positions up to it, and splits a long one
over the whole card. Elsewhere it is two matmuls over the whole cache, and what is not filled gets no weight.

A short cache is quick to read and slow to launch for: there it is one kernel of our own, which also reads the filled
part alone.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from benchmarker.runtimes.base import UnsupportedError
from benchmarker.runtimes.fixed import Filled

# No `from __future__ import annotations` here: torch reads the operator's types from its annotations.

ONE_QUERY = "benchmarker_one_query"
"""transformers makes no mask for an attention that it does not know."""

FLASH = "flash, reads the filled part"
ONE_KERNEL = "one kernel, reads the filled part"
MATMULS = "two matmuls, read the whole cache"
OTHER_WAYS = ("softcap", "s_aux", "sliding_window", "position_bias", "head_mask")
"""Arguments of transformers' attention that change what comes out, and that are not written here."""
FLASH_FROM_POSITIONS = 1024
"""On a GPU a shorter cache is attended to by the one kernel."""
SMALLEST_HEAD = 16
"""Triton multiplies no smaller matrices."""


@contextmanager
def one_query_attention(model: PreTrainedModel) -> Iterator[None]:
    """Let the model attend in this way, for decode steps alone: a prefill keeps the model's own."""
    config: Any = model.config
    own = config._attn_implementation
    config._attn_implementation = ONE_QUERY
    try:
        yield
    finally:
        config._attn_implementation = own


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    filled: Filled | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """One decode step of one layer.

    Args:
        query: [batch, heads, 1, head_dim].
        key: [batch, key heads, positions, head_dim], with what is not filled at its end; so is the value.
        others: What some models ask of their attention besides. What `OTHER_WAYS` does not name changes nothing.

    Returns:
        [batch, 1, heads, head_dim].

    Raises:
        UnsupportedError: The model attends in a way of its own.
    """
    asked = [name for name in OTHER_WAYS if others.get(name) is not None]
    if filled is None or attention_mask is not None or asked:
        why = ", ".join(asked) or ("a mask of its own" if filled else "nothing of what a decode step tells it")
        raise UnsupportedError(f"{type(module).__name__} attends with {why}; use --runtime eager")
    way = way_of(key)
    if way == ONE_KERNEL:
        from benchmarker.runtimes.attention_kernel import one_query

        made = one_query(query.squeeze(2), key.transpose(1, 2), value.transpose(1, 2), filled.lengths, scaling)
        return made.unsqueeze(1), None
    if way == FLASH:
        return flash(query, key.transpose(1, 2), value.transpose(1, 2), *filled, scaling), None
    batch, heads, _, head_dim = query.shape
    groups = query.view(batch, key.shape[1], heads // key.shape[1], head_dim)
    scores = torch.matmul(groups, key.transpose(2, 3)).float() * scaling
    unfilled = torch.arange(key.shape[2], device=key.device) >= filled.lengths.view(batch, 1, 1, 1)
    weights = scores.masked_fill(unfilled, float("-inf")).softmax(dim=-1).to(value.dtype)
    return torch.matmul(weights, value).reshape(batch, 1, heads, head_dim), None


def way_of(key: Tensor) -> str:
    """How this cache is attended to: one of the ways above, as the record says it."""
    positions, head_dim = key.shape[2:]
    suits_triton = head_dim >= SMALLEST_HEAD and head_dim & (head_dim - 1) == 0
    if key.is_cuda and positions < FLASH_FROM_POSITIONS and suits_triton:
        return ONE_KERNEL
    # AMD's flash attention does not take lengths from the device.
    is_nvidia = key.is_cuda and torch.version.hip is None
    return FLASH if is_nvidia and key.dtype in (torch.float16, torch.bfloat16) and head_dim <= 256 else MATMULS


@torch.library.custom_op("benchmarker::filled_attention", mutates_args=())
def flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Tensor,
    query_starts: Tensor,
    key_starts: Tensor,
    scaling: float,
) -> Tensor:
    """torch's flash attention over sequences of their own lengths.

    One query to a sequence makes the kernel take the heads of a group as its rows, and split the keys.

    Args:
        query: As for `attend`.
        key: As stored, [batch, positions, key heads, head_dim], so that nothing is copied; so is the value.
    """
    batch, heads, _, head_dim = query.shape
    in_a_row = query.reshape(batch, heads, head_dim), key.flatten(0, 1), value.flatten(0, 1)
    made = flash_kernel(*in_a_row, query_starts, key_starts, lengths, positions=key.shape[1], scaling=scaling)
    return made.view(batch, 1, heads, head_dim)


def flash_kernel(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_starts: Tensor,
    key_starts: Tensor,
    lengths: Tensor,
    *,
    positions: int,
    scaling: float,
) -> Tensor:
    """The part that needs a device: sequences in a row, [tokens of all, heads, head_dim], each with one query.

    The operator is the one beneath torch.nn.attention.varlen.
    """
    made: Tensor = torch.ops.aten._flash_attention_forward(
        query,
        key,
        value,
        query_starts,
        key_starts,
        1,
        positions,
        0.0,
        False,
        False,
        scale=scaling,
        seqused_k=lengths,
    )[0]
    return made


@flash.register_fake
def _shape(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Tensor,
    query_starts: Tensor,
    key_starts: Tensor,
    scaling: float,
) -> Tensor:
    batch, heads, _, head_dim = query.shape
    return query.new_empty((batch, 1, heads, head_dim))


AttentionInterface.register(ONE_QUERY, attend)
