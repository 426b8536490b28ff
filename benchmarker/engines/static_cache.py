"""A KV cache that never moves: room for the whole generation from the start, written in place.

transformers' static cache keeps a counter in every layer, which costs a handful of small kernels a layer and step, and
36 resets. Here all layers share one position on the device. A captured graph advances it as it replays; going back is
one write. Keys lie as [batch, positions, heads, head_dim], as attention kernels for several sequences want them.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel, StaticCache
from transformers.cache_utils import StaticLayer

from benchmarker.checkpoints.attention_shape import head_dim, key_heads
from benchmarker.engines.base import UnsupportedError

# No `from __future__ import annotations` here: the compiler looks at these classes as they are.


@dataclass
class Place:
    """Where the next token goes."""

    position: Tensor
    """A number on the device, which decode steps advance in place."""
    known: int | None = None
    """The same on the host, as long as no decode step has run: a prefill needs no mask where it is 0."""


class Filled(NamedTuple):
    """How much of the cache holds something, as attention over sequences of their own lengths wants it told."""

    lengths: Tensor
    """[batch], 32 bits: positions that a decode step may look at, its own included."""
    query_starts: Tensor
    """[batch + 1], 32 bits: where each sequence's query begins when all are laid in a row."""
    key_starts: Tensor
    """[batch + 1], 32 bits: the same for the keys."""


class StaticKVLayer(StaticLayer):
    """One layer's keys and values."""

    keys: Tensor
    """[batch, heads, positions, head_dim], as transformers sees them; so are the values."""
    values: Tensor
    stored_keys: Tensor
    """[batch, positions, heads, head_dim], as they lie in memory; so do the values."""
    stored_values: Tensor

    def __init__(self, length: int, place: Place) -> None:
        super().__init__(max_cache_len=length)
        self.place = place

    def allocate(self, shape: tuple[int, int, int], *, dtype: torch.dtype, device: torch.device) -> None:
        """Take the memory, once and for all. `shape` is [batch, heads, head_dim]."""
        batch, heads, numbers = shape
        whole = (batch, self.max_cache_len, heads, numbers)
        self.stored_keys = torch.zeros(whole, dtype=dtype, device=device)
        self.stored_values = torch.zeros(whole, dtype=dtype, device=device)
        self.keys, self.values = self.stored_keys.transpose(1, 2), self.stored_values.transpose(1, 2)
        self.dtype, self.device = dtype, device
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write at the position, which stays where it is: the other layers need it too."""
        for states, stored in (key_states, self.stored_keys), (value_states, self.stored_values):
            if (states.shape[1], states.shape[3]) != stored.shape[2:]:
                raise UnsupportedError(
                    f"this model caches {states.shape[1]} heads of {states.shape[3]} numbers, where its config says "
                    f"{stored.shape[2]} of {stored.shape[3]}; use --engine eager"
                )
        count = key_states.shape[-2]
        where = self.place.position.reshape(1)
        if count > 1:
            where = where + torch.arange(count, device=where.device)
        # Written as it is stored: through the transposed view, the compiler takes the result for a tensor in another
        # order, and copies the whole cache into that order at every step.
        self.stored_keys.index_copy_(1, where, key_states.transpose(1, 2))
        self.stored_values.index_copy_(1, where, value_states.transpose(1, 2))
        return self.stored_keys.transpose(1, 2), self.stored_values.transpose(1, 2)

    def get_seq_length(self) -> Any:
        """See `Place`."""
        return self.place.position if self.place.known is None else self.place.known


class StaticKVCache:
    """The cache of one shape, with its position."""

    def __init__(self, model: PreTrainedModel, *, batch: int, length: int) -> None:
        config = model.config.get_text_config(decoder=True)
        weight: Any = model.get_input_embeddings().weight
        device = weight.device
        self.length = length
        self.place = Place(torch.zeros((), dtype=torch.int64, device=device), known=0)
        self.layers = StaticCache(config=model.config, max_cache_len=length)
        unfit = next((type(layer).__name__ for layer in self.layers.layers if type(layer) is not StaticLayer), None)
        if unfit:
            raise UnsupportedError(f"a static cache of {unfit} is not written yet; use --engine eager")
        parts = [StaticKVLayer(length, self.place) for _ in self.layers.layers]
        for part in parts:
            part.allocate((batch, key_heads(config), head_dim(config)), dtype=weight.dtype, device=device)
        self.keys: Tensor = parts[0].keys
        """The first layer's, which are like all others'."""
        self.layers.layers = list(parts)
        starts = torch.arange(batch + 1, dtype=torch.int32, device=device)
        self.filled = Filled(
            lengths=torch.ones(batch, dtype=torch.int32, device=device),
            query_starts=starts,
            key_starts=starts * length,
        )

    def go_to(self, position: int) -> None:
        """Forget what lies at and after the position; nothing is erased."""
        self.place.known = position
        self.place.position.fill_(position)
        self.filled.lengths.fill_(position + 1)

    def begin_decoding(self) -> None:
        """From here on only the device knows the position."""
        self.place.known = None

    def advance(self, tokens: int | Tensor = 1) -> None:
        """So many tokens on, for the decode step or the prefill that has just been done."""
        self.place.position.add_(tokens)
        self.filled.lengths.add_(tokens)
