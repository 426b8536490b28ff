"""A KV cache at fixed addresses, written in place, and attention over it, with grouped heads and without a mask.

transformers' static cache keeps a counter in every layer, which costs several small kernels per layer and step. Here
all layers share one position on the device, which a captured graph advances at each replay. Keys are stored as
[batch, positions, heads, head_dim], the layout of variable-length attention kernels.

Repeating the keys for each query head would read and write the cache four times in Qwen3-4B, and a mask rules out the
fast kernels; so this file does neither. On NVIDIA GPUs in 16 bit, torch's flash attention takes the length of each
sequence from the device and reads only the filled positions. Elsewhere attention is two matmuls over the whole cache.
For a short cache the native engine uses this program's own kernel.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel, StaticCache
from transformers.cache_utils import StaticLayer

from benchmarker.checkpoints.read_model import head_dim, key_heads
from benchmarker.core.formatting import gib
from benchmarker.engines.base import UnsupportedError
from benchmarker.kernels.decode_attention import decode_attention, supports
from benchmarker.schema.model import OWN_ATTENTION

# No `from __future__ import annotations` here: the compiler looks at these classes as they are, and torch reads the
# operator's types from its annotations.

LIBRARY = "benchmarker_decode"
"""Name of attention by torch's kernels. transformers makes no mask for names other than its own."""
NATIVE = "benchmarker_decode_native"

FLASH = "flash, reads the filled part"
ONE_KERNEL = OWN_ATTENTION
MATMULS = "two matmuls, read the whole cache"
UNSUPPORTED_ARGUMENTS = ("softcap", "s_aux", "sliding_window", "position_bias", "head_mask")


@dataclass
class CachePosition:
    """Position of the next token in the cache, shared by all sequences of the batch."""

    on_device: Tensor  # Scalar int64 tensor, which decode steps advance in place.
    on_host: int | None = None
    """The position as a number; None once a decode step has run. At 0 a prefill needs no mask."""


class SequenceLengths(NamedTuple):
    """Filled part of the cache, as arguments of variable-length attention; int32 tensors."""

    lengths: Tensor  # Positions that a decode step attends to, including its own, [batch].
    query_starts: Tensor  # Start of each sequence's queries when all are concatenated, [batch + 1].
    key_starts: Tensor


class StaticKVLayer(StaticLayer):
    keys: Tensor  # [batch, key heads, positions, head_dim]: a view of `stored_keys`.
    values: Tensor
    stored_keys: Tensor  # [batch, positions, key heads, head_dim].
    stored_values: Tensor

    def __init__(self, length: int, position: CachePosition) -> None:
        super().__init__(max_cache_len=length)
        self.position = position

    def allocate(self, shape: tuple[int, int, int], *, dtype: torch.dtype, device: torch.device) -> None:
        batch, heads, numbers = shape
        stored_shape = (batch, self.max_cache_len, heads, numbers)
        self.stored_keys = torch.zeros(stored_shape, dtype=dtype, device=device)
        self.stored_values = torch.zeros(stored_shape, dtype=dtype, device=device)
        self.keys, self.values = self.stored_keys.transpose(1, 2), self.stored_values.transpose(1, 2)
        self.dtype, self.device = dtype, device
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write keys and values, [batch, key heads, tokens, head_dim], at the position, and return the whole cache."""
        for states, stored in (key_states, self.stored_keys), (value_states, self.stored_values):
            if (states.shape[1], states.shape[3]) != stored.shape[2:]:
                raise UnsupportedError(
                    f"this model caches {states.shape[1]} heads of {states.shape[3]} numbers, where its config says "
                    f"{stored.shape[2]} of {stored.shape[3]}; use --engine eager"
                )
        count = key_states.shape[-2]
        positions = self.position.on_device.reshape(1)
        if count > 1:
            positions = positions + torch.arange(count, device=positions.device)
        # Written in the stored layout: through the transposed view, the compiler would copy the whole cache into
        # another layout at every step.
        self.stored_keys.index_copy_(1, positions, key_states.transpose(1, 2))
        self.stored_values.index_copy_(1, positions, value_states.transpose(1, 2))
        return self.stored_keys.transpose(1, 2), self.stored_values.transpose(1, 2)

    def get_seq_length(self) -> Any:
        return self.position.on_device if self.position.on_host is None else self.position.on_host


def check_room(needed_bytes: int, batch: int, length: int, device: torch.device) -> None:
    """Raise torch.cuda.OutOfMemoryError, before anything is allocated, if a KV cache does not fit into free memory."""
    free = free_bytes(device)
    if free is not None and needed_bytes > free:
        raise torch.cuda.OutOfMemoryError(
            f"out of memory: the KV cache of {batch} x {length} positions needs {gib(needed_bytes)}, and {gib(free)} "
            "are free beside the weights"
        )


def free_bytes(device: torch.device) -> int | None:
    if device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))


class StaticKVCache:
    def __init__(self, model: PreTrainedModel, *, batch: int, length: int) -> None:
        config = model.config.get_text_config(decoder=True)
        weight: Any = model.get_input_embeddings().weight
        device = weight.device
        self.length = length
        self.position = CachePosition(torch.zeros((), dtype=torch.int64, device=device), on_host=0)
        self.layers = StaticCache(config=model.config, max_cache_len=length)
        unfit = next((type(layer).__name__ for layer in self.layers.layers if type(layer) is not StaticLayer), None)
        if unfit:
            raise UnsupportedError(f"a static cache of {unfit} is not written yet; use --engine eager")
        parts = [StaticKVLayer(length, self.position) for _ in self.layers.layers]
        shape = batch, key_heads(config), head_dim(config)
        check_room(2 * len(parts) * length * math.prod(shape) * weight.element_size(), batch, length, device)
        for part in parts:
            part.allocate(shape, dtype=weight.dtype, device=device)
        self.keys: Tensor = parts[0].keys
        self.layers.layers = list(parts)
        starts = torch.arange(batch + 1, dtype=torch.int32, device=device)
        self.sequence_lengths = SequenceLengths(
            lengths=torch.ones(batch, dtype=torch.int32, device=device), query_starts=starts, key_starts=starts * length
        )

    def go_to(self, position: int) -> None:
        self.position.on_host = position
        self.position.on_device.fill_(position)
        self.sequence_lengths.lengths.fill_(position + 1)

    def begin_decoding(self) -> None:
        """Keep the position only on the device."""
        self.position.on_host = None

    def advance(self, tokens: int | Tensor = 1) -> None:
        self.position.on_device.add_(tokens)
        self.sequence_lengths.lengths.add_(tokens)


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
    """Return the causal attention of one layer in one decode step or padded prompt, [batch, tokens, heads, head_dim].
    Raises UnsupportedError.

    Args:
        query: [batch, heads, tokens, head_dim]: the last tokens of each sequence.
        key: Whole cache, [batch, key heads, positions, head_dim], like the value.
        others: Arguments of some models. Those not in `UNSUPPORTED_ARGUMENTS` have no effect.
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
    """Run torch's flash attention over sequences of different lengths, whose queries are the last ones: query [batch,
    heads, queries, head_dim]; stored keys and values [batch, positions, key heads, head_dim]."""
    batch, heads, queries, head_dim = query.shape
    in_a_row = query.transpose(1, 2).reshape(-1, heads, head_dim), key.flatten(0, 1), value.flatten(0, 1)
    filled = SequenceLengths(lengths, query_starts, key_starts)
    return flash_kernel(*in_a_row, filled, positions=key.shape[1], scaling=scaling).view(
        batch, queries, heads, head_dim
    )


def flash_kernel(
    query: Tensor, key: Tensor, value: Tensor, filled: SequenceLengths, *, positions: int, scaling: float
) -> Tensor:
    """Call the operator beneath torch.nn.attention.varlen, which needs a GPU, with [tokens, heads, head_dim]."""
    queries = len(query) // len(filled.lengths)
    starts, sizes = (filled.query_starts, filled.key_starts), (queries, positions)
    output: Tensor = torch.ops.aten._flash_attention_forward(
        query, key, value, *starts, *sizes, 0.0, queries > 1, False, scale=scaling, seqused_k=filled.lengths
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
