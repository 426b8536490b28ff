"""Attention of decode steps over a fixed cache, with grouped heads and without a mask.

Several query heads share one key head. Repeating the keys for each of them would read and write the cache four times in
Qwen3-4B, and a mask rules out the fast kernels; so this file does neither. On NVIDIA GPUs in 16 bit, torch's flash
attention takes the length of each sequence from the device, reads only the filled positions, and splits a long sequence
over the whole GPU. Elsewhere attention is two matmuls over the whole cache, in which unfilled positions have weight 0.
For a short cache the native engine uses this program's own kernel, which also reads only the filled part.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from benchmarker.engines.base import UnsupportedError
from benchmarker.engines.decoders.static_cache import SequenceLengths
from benchmarker.kernels.decode_attention import decode_attention, supports
from benchmarker.schema.model import OWN_ATTENTION

# No `from __future__ import annotations` here: torch reads the operator's types from its annotations.

LIBRARY = "benchmarker_decode"
"""Name of attention by torch's kernels. transformers makes no mask for names other than its own."""
NATIVE = "benchmarker_decode_native"

FLASH = "flash, reads the filled part"
ONE_KERNEL = OWN_ATTENTION
MATMULS = "two matmuls, read the whole cache"
UNSUPPORTED_ARGUMENTS = ("softcap", "s_aux", "sliding_window", "position_bias", "head_mask")


@contextmanager
def cache_attention(model: PreTrainedModel, *, native: bool = False) -> Iterator[None]:
    """Make the model use `attend` in decode steps and padded prompts. A plain prefill keeps the model's attention."""
    config: Any = model.config
    before = config._attn_implementation
    config._attn_implementation = NATIVE if native else LIBRARY
    try:
        yield
    finally:
        config._attn_implementation = before


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    sequence_lengths: SequenceLengths | None = None,
    native: bool = False,
    **others: Any,
) -> tuple[Tensor, None]:
    """Compute the causal attention of one layer in one decode step or padded prompt. Raises UnsupportedError.

    Args:
        query: [batch, heads, tokens, head_dim]: the last tokens of each sequence.
        key: Whole cache, [batch, key heads, positions, head_dim], like the value.
        others: Arguments of some models. Those not in `UNSUPPORTED_ARGUMENTS` have no effect.

    Returns:
        [batch, tokens, heads, head_dim], and no weights.
    """
    sequence_lengths = _checked(module, attention_mask, sequence_lengths, others)
    backend = attention_backend(key, native=native)
    if backend == ONE_KERNEL:
        output = decode_attention(
            query.squeeze(2), key.transpose(1, 2), value.transpose(1, 2), sequence_lengths.lengths, scaling
        )
        return output.unsqueeze(1), None
    if backend == FLASH:
        return flash(query, key.transpose(1, 2), value.transpose(1, 2), *sequence_lengths, scaling), None
    batch, heads, tokens, head_dim = query.shape
    if tokens > 1:
        first = (sequence_lengths.lengths - tokens).view(-1, 1, 1, 1)
        last = first + torch.arange(tokens, device=key.device).view(-1, 1)
        is_visible = torch.arange(key.shape[2], device=key.device) <= last
        output = nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=is_visible, scale=scaling, enable_gqa=heads != key.shape[1]
        )
        return output.transpose(1, 2), None
    groups = query.view(batch, key.shape[1], heads // key.shape[1], head_dim)
    scores = torch.matmul(groups, key.transpose(2, 3)).float() * scaling
    unfilled = torch.arange(key.shape[2], device=key.device) >= sequence_lengths.lengths.view(batch, 1, 1, 1)
    weights = scores.masked_fill(unfilled, float("-inf")).softmax(dim=-1).to(value.dtype)
    return torch.matmul(weights, value).reshape(batch, 1, heads, head_dim), None


def _checked(
    module: nn.Module, mask: Tensor | None, sequence_lengths: SequenceLengths | None, others: dict[str, Any]
) -> SequenceLengths:
    unsupported = [name for name in UNSUPPORTED_ARGUMENTS if others.get(name) is not None]
    if sequence_lengths is None or mask is not None or unsupported:
        missing = "a mask of its own" if sequence_lengths else "no lengths of the sequences in the cache"
        why = ", ".join(unsupported) or missing
        raise UnsupportedError(f"{type(module).__name__} attends with {why}; use --engine eager")
    return sequence_lengths


def attention_backend(key: Tensor, *, native: bool = False) -> str:
    if native and supports(key) is None:
        return ONE_KERNEL
    head_dim = key.shape[3]
    # AMD's flash attention does not take lengths from the device.
    is_nvidia = key.is_cuda and torch.version.hip is None
    return FLASH if is_nvidia and key.dtype in (torch.float16, torch.bfloat16) and head_dim <= 256 else MATMULS


@torch.library.custom_op("benchmarker::filled_attention", mutates_args=())
def flash(
    query: Tensor, key: Tensor, value: Tensor, lengths: Tensor, query_starts: Tensor, key_starts: Tensor, scaling: float
) -> Tensor:
    """Run torch's flash attention over sequences of different lengths, whose queries are the last ones.

    Args:
        query: [batch, heads, queries, head_dim].
        key: Stored keys, [batch, positions, key heads, head_dim], like the value.
    """
    batch, heads, queries, head_dim = query.shape
    in_a_row = query.transpose(1, 2).reshape(-1, heads, head_dim), key.flatten(0, 1), value.flatten(0, 1)
    output = flash_kernel(
        *in_a_row, query_starts, key_starts, lengths, queries=queries, positions=key.shape[1], scaling=scaling
    )
    return output.view(batch, queries, heads, head_dim)


def flash_kernel(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_starts: Tensor,
    key_starts: Tensor,
    lengths: Tensor,
    *,
    queries: int,
    positions: int,
    scaling: float,
) -> Tensor:
    """Call the operator beneath torch.nn.attention.varlen, which needs a GPU, with [tokens, heads, head_dim]."""
    output: Tensor = torch.ops.aten._flash_attention_forward(
        query,
        key,
        value,
        query_starts,
        key_starts,
        queries,
        positions,
        0.0,
        queries > 1,
        False,
        scale=scaling,
        seqused_k=lengths,
    )[0]
    return output


@flash.register_fake
def _shape(
    query: Tensor, key: Tensor, value: Tensor, lengths: Tensor, query_starts: Tensor, key_starts: Tensor, scaling: float
) -> Tensor:
    batch, heads, queries, head_dim = query.shape
    return query.new_empty((batch, queries, heads, head_dim))


AttentionInterface.register(LIBRARY, attend)
AttentionInterface.register(NATIVE, partial(attend, native=True))
