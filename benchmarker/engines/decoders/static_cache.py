"""A KV cache that never moves: room for the whole generation from the start, written in place.

transformers' static cache keeps a counter in every layer, which costs a handful of small kernels a layer and step, and
36 resets. Here all layers share one position on the device. A captured graph advances it as it replays; going back is
one write. Keys lie as [batch, positions, heads, head_dim], as attention kernels for several sequences want them.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel, StaticCache
from transformers.cache_utils import StaticLayer

from benchmarker.checkpoints.model_config import head_dim, key_heads
from benchmarker.core.formatting import gib
from benchmarker.engines.base import UnsupportedError

# No `from __future__ import annotations` here: the compiler looks at these classes as they are.


@dataclass
class CachePosition:
    """Position in the cache where the next token goes; all sequences of the batch share it."""

    on_device: Tensor
    """The position as a scalar tensor, int64, which decode steps advance in place."""
    on_host: int | None = None
    """The position as a number; None once a decode step has run. A prefill needs no mask where it is 0."""


class SequenceLengths(NamedTuple):
    """How much of the cache is filled, as variable-length attention takes it; every tensor is int32."""

    lengths: Tensor
    """Positions that a decode step attends to, its own included, [batch]."""
    query_starts: Tensor
    """Where each sequence's queries begin when all sequences' are laid in a row, [batch + 1]."""
    key_starts: Tensor
    """Where each sequence's keys begin when all sequences' are laid in a row, [batch + 1]."""


class StaticKVLayer(StaticLayer):
    """One layer's keys and values."""

    keys: Tensor
    """Keys as transformers sees them, [batch, key heads, positions, head_dim]: a view of `stored_keys`."""
    values: Tensor
    """Values in the shape of `keys`: a view of `stored_values`."""
    stored_keys: Tensor
    """Keys as they lie in memory, [batch, positions, key heads, head_dim]."""
    stored_values: Tensor
    """Values in the layout of `stored_keys`."""

    def __init__(self, length: int, position: CachePosition) -> None:
        super().__init__(max_cache_len=length)
        self.position = position

    def allocate(self, shape: tuple[int, int, int], *, dtype: torch.dtype, device: torch.device) -> None:
        """Take the memory for all positions. `shape` is (batch, key heads, head_dim)."""
        batch, heads, numbers = shape
        stored_shape = (batch, self.max_cache_len, heads, numbers)
        self.stored_keys = torch.zeros(stored_shape, dtype=dtype, device=device)
        self.stored_values = torch.zeros(stored_shape, dtype=dtype, device=device)
        self.keys, self.values = self.stored_keys.transpose(1, 2), self.stored_values.transpose(1, 2)
        self.dtype, self.device = dtype, device
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write keys and values at the position, and return all positions' in the shape of `keys`.

        The position stays where it is, because the other layers write at it too.

        Args:
            key_states: [batch, key heads, tokens, head_dim]; so are the values.

        Raises:
            UnsupportedError: The model caches other heads or sizes than its config says.
        """
        for states, stored in (key_states, self.stored_keys), (value_states, self.stored_values):
            if (states.shape[1], states.shape[3]) != stored.shape[2:]:
                raise UnsupportedError(
                    f"this model caches {states.shape[1]} heads of {states.shape[3]} numbers, where its config says "
                    f"{stored.shape[2]} of {stored.shape[3]}; use --engine eager"
                )
        count = key_states.shape[-2]
        where = self.position.on_device.reshape(1)
        if count > 1:
            where = where + torch.arange(count, device=where.device)
        # Written as it is stored: through the transposed view, the compiler takes the result for a tensor in another
        # order, and copies the whole cache into that order at every step.
        self.stored_keys.index_copy_(1, where, key_states.transpose(1, 2))
        self.stored_values.index_copy_(1, where, value_states.transpose(1, 2))
        return self.stored_keys.transpose(1, 2), self.stored_values.transpose(1, 2)

    def get_seq_length(self) -> Any:
        """The position: a number where the host has it, else a tensor on the device."""
        return self.position.on_device if self.position.on_host is None else self.position.on_host


def check_room(needed_bytes: int, batch: int, length: int, device: torch.device) -> None:
    """Refuse a KV cache that cannot fit beside what is loaded already, before any of it is taken.

    Raises:
        torch.cuda.OutOfMemoryError: With what it needs and what there is.
    """
    free = free_bytes(device)
    if free is not None and needed_bytes > free:
        raise torch.cuda.OutOfMemoryError(
            f"out of memory: the KV cache of {batch} x {length} positions needs {gib(needed_bytes)}, and {gib(free)} "
            "are free beside the weights"
        )


def free_bytes(device: torch.device) -> int | None:
    """What tensors can still take of a GPU's memory; None on a CPU."""
    if device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))


class StaticKVCache:
    """The KV cache of all layers, for one batch size and length, with the position that they share."""

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
        """The first layer's, which are like all others'."""
        self.layers.layers = list(parts)
        starts = torch.arange(batch + 1, dtype=torch.int32, device=device)
        self.sequence_lengths = SequenceLengths(
            lengths=torch.ones(batch, dtype=torch.int32, device=device),
            query_starts=starts,
            key_starts=starts * length,
        )

    def go_to(self, position: int) -> None:
        """Let the next token go to that position; what lies there and behind it is overwritten in time."""
        self.position.on_host = position
        self.position.on_device.fill_(position)
        self.sequence_lengths.lengths.fill_(position + 1)

    def begin_decoding(self) -> None:
        """Leave the position to the device alone, as decode steps advance it there."""
        self.position.on_host = None

    def advance(self, tokens: int | Tensor = 1) -> None:
        """Move the position on by the tokens of the decode step or the prefill that has just run."""
        self.position.on_device.add_(tokens)
        self.sequence_lengths.lengths.add_(tokens)
