"""Attention of one query a sequence against a fixed cache, with grouped heads and without a mask.

Several query heads share one key head. Repeating the keys for each of them would read and write the cache four times
over in Qwen3-4B, and a mask rules out the fast kernels; so neither is done here. On NVIDIA in 16 bit torch's flash
attention takes the length of each sequence from the device, reads only the positions up to it, and splits a long one
over the whole card. Elsewhere it is two matmuls over the whole cache, and what is not filled gets no weight.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from benchmarker.runtimes.fixed import Filled

# No `from __future__ import annotations` here: torch reads the operator's types from its annotations.

NAME = "benchmarker_one_query"
"""transformers makes no mask for an attention that it does not know."""


@contextmanager
def one_query_attention(model: PreTrainedModel) -> Iterator[None]:
    """Let the model attend in this way, for decode steps alone: a prefill keeps the model's own."""
    config: Any = model.config
    own = config._attn_implementation
    config._attn_implementation = NAME
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
    filled: Filled,
    **unused: Any,
) -> tuple[Tensor, None]:
    """One decode step of one layer.

    Args:
        query: [batch, heads, 1, head_dim].
        key: [batch, key heads, positions, head_dim], with what is not filled at its end; so is the value.

    Returns:
        [batch, 1, heads, head_dim].
    """
    if is_flash(key):
        return flash(query, key, value, *filled, scaling), None
    batch, heads, _, head_dim = query.shape
    groups = query.view(batch, key.shape[1], heads // key.shape[1], head_dim)
    scores = torch.matmul(groups, key.transpose(2, 3)).float() * scaling
    unfilled = torch.arange(key.shape[2], device=key.device) >= filled.lengths.view(batch, 1, 1, 1)
    weights = scores.masked_fill(unfilled, float("-inf")).softmax(dim=-1).to(value.dtype)
    return torch.matmul(weights, value).reshape(batch, 1, heads, head_dim), None


def is_flash(key: Tensor) -> bool:
    """Whether the flash kernel takes it. AMD's does not take lengths from the device."""
    is_nvidia = key.is_cuda and torch.version.hip is None
    return is_nvidia and key.dtype in (torch.float16, torch.bfloat16) and key.shape[-1] <= 256


def description(key: Tensor) -> str:
    """For the record."""
    return "flash, reads the filled part" if is_flash(key) else "two matmuls, read the whole cache"


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
    """torch's flash attention over sequences of their own lengths; see `attend` for the shapes.

    One query to a sequence makes the kernel take the heads of a group as its rows, and split the keys.
    """
    batch, heads, _, head_dim = query.shape
    positions = key.shape[2]
    result: Tensor = torch.ops.aten._flash_attention_forward(
        query.reshape(batch, heads, head_dim),
        # [batch, key heads, positions, head_dim] as seen, [batch, positions, key heads, head_dim] as stored.
        key.transpose(1, 2).flatten(0, 1),
        value.transpose(1, 2).flatten(0, 1),
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
    return result.view(batch, 1, heads, head_dim)


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


AttentionInterface.register(NAME, attend)
