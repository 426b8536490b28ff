"""A KV cache at fixed addresses: room for the whole generation from the start, written in place.

transformers' static cache keeps a counter in every layer, which costs several small kernels per layer and step. Here
all layers share one position on the device, which a captured graph advances at each replay. Keys are stored as
[batch, positions, heads, head_dim], the layout of variable-length attention kernels.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel, StaticCache
from transformers.cache_utils import StaticLayer

from benchmarker.checkpoints.read_model import head_dim, key_heads
from benchmarker.core.formatting import gib
from benchmarker.engines.base import UnsupportedError

# No `from __future__ import annotations` here: the compiler looks at these classes as they are.


@dataclass
class CachePosition:
    """Position of the next token in the cache, shared by all sequences of the batch."""

    on_device: Tensor
    """Scalar int64 tensor, which decode steps advance in place."""
    on_host: int | None = None
    """The position as a number; None once a decode step has run. At 0 a prefill needs no mask."""


class SequenceLengths(NamedTuple):
    """Filled part of the cache, as arguments of variable-length attention; int32 tensors."""

    lengths: Tensor
    """Positions that a decode step attends to, including its own, [batch]."""
    query_starts: Tensor
    """Start of each sequence's queries when all are concatenated, [batch + 1]."""
    key_starts: Tensor


class StaticKVLayer(StaticLayer):
    keys: Tensor
    """[batch, key heads, positions, head_dim]: a view of `stored_keys`."""
    values: Tensor
    stored_keys: Tensor
    """[batch, positions, key heads, head_dim]."""
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
        """Write keys and values, [batch, key heads, tokens, head_dim], at the position, and return the whole cache.
        Raises UnsupportedError."""
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
            lengths=torch.ones(batch, dtype=torch.int32, device=device),
            query_starts=starts,
            key_starts=starts * length,
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
