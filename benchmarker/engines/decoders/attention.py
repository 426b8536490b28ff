"""Attention of one query a sequence against a fixed cache, with grouped heads and without a mask.

Several query heads share one key head. Repeating the keys for each of them would read and write the cache four times
over in Qwen3-4B, and a mask rules out the fast kernels; so neither is done here. On NVIDIA in 16 bit torch's flash
attention takes the length of each sequence from the device, reads only the positions up to it, and splits a long one
over the whole card. Elsewhere it is two matmuls over the whole cache, and what is not filled gets no weight.

A short cache is quick to read and slow to launch for: there the native engine attends by this program's own kernel,
which also reads the filled part alone. The other engines leave it to torch. One sequence does not come here where its
step is five kernels a layer: `kernels/fused_decode_attention.py` attends there.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from benchmarker.engines.base import UnsupportedError
from benchmarker.engines.decoders.static_cache import SequenceLengths
from benchmarker.kernels.decode_attention import decode_attention, supports
from benchmarker.schema.engine_facts import OWN_ATTENTION

# No `from __future__ import annotations` here: torch reads the operator's types from its annotations.

LIBRARY = "benchmarker_decode"
"""Name by which transformers calls attention by torch's kernels. It makes no mask for a name that is not its own."""
NATIVE = "benchmarker_decode_native"
"""Name by which transformers calls attention with this program's kernel for a short cache."""
PROMPT = "benchmarker_prompt"
"""Name by which transformers calls attention of a padded prompt to a cache whose filled part only the device knows."""

FLASH = "flash, reads the filled part"
ONE_KERNEL = OWN_ATTENTION
MATMULS = "two matmuls, read the whole cache"
UNSUPPORTED_ARGUMENTS = ("softcap", "s_aux", "sliding_window", "position_bias", "head_mask")
"""Arguments of transformers' attention that change its output, and that no function here implements."""


@contextmanager
def decode_attention_backend(model: PreTrainedModel, *, native: bool = False) -> Iterator[None]:
    """Let the model attend by `attend`, for decode steps alone: a prefill keeps the model's own attention.

    Args:
        native: Whether this program's own kernel may be used.
    """
    config: Any = model.config
    before = config._attn_implementation
    config._attn_implementation = NATIVE if native else LIBRARY
    try:
        yield
    finally:
        config._attn_implementation = before


@contextmanager
def prompt_attention_backend(model: PreTrainedModel) -> Iterator[None]:
    """Let the model attend by `attend_prompt`, as a captured prefill has to."""
    config: Any = model.config
    before = config._attn_implementation
    config._attn_implementation = PROMPT
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
    """Attention of one layer in one decode step.

    Args:
        query: [batch, heads, 1, head_dim].
        key: The whole cache, [batch, key heads, positions, head_dim]; so is the value.
        scaling: Factor of the scores.
        sequence_lengths: How much of the cache is filled.
        native: Whether this program's own kernel may be used.
        others: Further arguments of some models; those that `UNSUPPORTED_ARGUMENTS` does not name change nothing.

    Returns:
        [batch, 1, heads, head_dim], and no weights.

    Raises:
        UnsupportedError: The model has a mask, or one of `UNSUPPORTED_ARGUMENTS`.
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
    batch, heads, _, head_dim = query.shape
    groups = query.view(batch, key.shape[1], heads // key.shape[1], head_dim)
    scores = torch.matmul(groups, key.transpose(2, 3)).float() * scaling
    unfilled = torch.arange(key.shape[2], device=key.device) >= sequence_lengths.lengths.view(batch, 1, 1, 1)
    weights = scores.masked_fill(unfilled, float("-inf")).softmax(dim=-1).to(value.dtype)
    return torch.matmul(weights, value).reshape(batch, 1, heads, head_dim), None


def attend_prompt(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    sequence_lengths: SequenceLengths | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention of one layer for a padded prompt: causal, to what the cache holds up to the prompt's end.

    Args:
        query: [batch, heads, tokens, head_dim].
        key: The whole cache, [batch, key heads, positions, head_dim]; so is the value.
        scaling: Factor of the scores.
        sequence_lengths: Lengths that include the padded prompt, and query starts as far apart as the prompt is long.
        others: Further arguments of some models; those that `UNSUPPORTED_ARGUMENTS` does not name change nothing.

    Returns:
        [batch, tokens, heads, head_dim], and no weights.

    Raises:
        UnsupportedError: The model has a mask, or one of `UNSUPPORTED_ARGUMENTS`.
    """
    sequence_lengths = _checked(module, attention_mask, sequence_lengths, others)
    if attention_backend(key) == FLASH:
        return flash(query, key.transpose(1, 2), value.transpose(1, 2), *sequence_lengths, scaling), None
    tokens, positions = query.shape[2], key.shape[2]
    first = (sequence_lengths.lengths - tokens).view(-1, 1, 1, 1)
    last = first + torch.arange(tokens, device=key.device).view(-1, 1)
    is_visible = torch.arange(positions, device=key.device) <= last
    output = nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=is_visible, scale=scaling, enable_gqa=query.shape[1] != key.shape[1]
    )
    return output.transpose(1, 2), None


def _checked(
    module: nn.Module, mask: Tensor | None, sequence_lengths: SequenceLengths | None, others: dict[str, Any]
) -> SequenceLengths:
    """The sequence lengths, after a check that the model's attention is one that is implemented here.

    Raises:
        UnsupportedError: The model has a mask, or one of `UNSUPPORTED_ARGUMENTS`, or hands no lengths on.
    """
    wanted = [name for name in UNSUPPORTED_ARGUMENTS if others.get(name) is not None]
    if sequence_lengths is None or mask is not None or wanted:
        missing = "a mask of its own" if sequence_lengths else "nothing of what a decode step tells it"
        why = ", ".join(wanted) or missing
        raise UnsupportedError(f"{type(module).__name__} attends with {why}; use --engine eager")
    return sequence_lengths


def attend_native(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    sequence_lengths: SequenceLengths | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention of one layer in one decode step: `attend` with `native=True`, under a name of its own."""
    lengths = sequence_lengths
    return attend(
        module, query, key, value, attention_mask, scaling=scaling, sequence_lengths=lengths, native=True, **others
    )


def attention_backend(key: Tensor, *, native: bool = False) -> str:
    """By which kernels a cache is attended to: `ONE_KERNEL`, `FLASH` or `MATMULS`, in the words of a record.

    Args:
        key: The cached keys, [batch, key heads, positions, head_dim].
        native: Whether this program's own kernel may be used.
    """
    if native and supports(key) is None:
        return ONE_KERNEL
    head_dim = key.shape[3]
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

    One query to a sequence makes the kernel take the heads of a group as its rows, and split the keys. Several queries
    are the last ones of their sequence, and see what comes before them.

    Args:
        query: [batch, heads, queries, head_dim].
        key: As stored, [batch, positions, key heads, head_dim], so that nothing is copied; so is the value.
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
    """The part that needs a device: sequences in a row, [tokens of all, heads, head_dim], each with as many queries.

    The operator is the one beneath torch.nn.attention.varlen.
    """
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
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Tensor,
    query_starts: Tensor,
    key_starts: Tensor,
    scaling: float,
) -> Tensor:
    batch, heads, queries, head_dim = query.shape
    return query.new_empty((batch, queries, heads, head_dim))


AttentionInterface.register(LIBRARY, attend)
AttentionInterface.register(NATIVE, attend_native)
AttentionInterface.register(PROMPT, attend_prompt)
