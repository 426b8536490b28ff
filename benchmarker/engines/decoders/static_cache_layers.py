"""Layers of a KV cache at fixed addresses: full attention, sliding windows and recurrent states.

Full attention writes at a position that is stored on the device. A layer with a sliding window stores a ring of its
newest positions, which a decode step can read in any order because keys are stored with their rotary embedding.
transformers' own window layer moves the whole window at every step and counts positions on the host, which the replay
of a graph does not repeat. Linear attention and short convolutions use transformers' layers, which update in place.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from transformers import PreTrainedModel, StaticCache
from transformers.cache_utils import LinearAttentionLayer, StaticLayer

from benchmarker.checkpoints.read_model import run_token
from benchmarker.engines.base import UnsupportedError

# No `from __future__ import annotations` here: torch.compile reads the annotations of these classes.

UNSUPPORTED_LAYERS = {
    "chunked_attention": "chunked attention",
    "indexed_attention": "sparse attention with an index",
    "hybrid": "attention and a recurrent state in one layer",
    "hybrid_sliding": "a sliding window and a recurrent state in one layer",
}
"""Layer types of transformers' configs that have no static cache here, with their names in messages."""


@dataclass
class CachePosition:
    """Position of the next token in the cache, shared by all sequences of the batch."""

    on_device: Tensor  # Scalar int64 tensor, which decode steps advance in place.
    on_host: int | None = None
    """The position as a number; None during decoding, which advances only `on_device`. A prefill at 0 needs no mask."""


class StaticKVLayer(StaticLayer):
    keys: Tensor  # [batch, key heads, positions, head_dim]: a view of `stored_keys`.
    values: Tensor
    stored_keys: Tensor  # [batch, positions, key heads, head_dim].
    stored_values: Tensor

    def __init__(self, length: int, position: CachePosition) -> None:
        super().__init__(max_cache_len=length)
        self.position = position

    def allocate(self, batch: int, key: Tensor, value: Tensor) -> None:
        """Allocate zeros with the sizes and type of a trial token's `key` and `value`, [1, key heads, 1, head_dim]."""
        self.dtype, self.device = key.dtype, self.position.on_device.device
        self.stored_keys, self.stored_values = (
            token.new_zeros(batch, self.max_cache_len, token.shape[1], token.shape[3], device=self.device)
            for token in (key, value)
        )
        self.keys, self.values = self.stored_keys.transpose(1, 2), self.stored_values.transpose(1, 2)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write keys and values, [batch, key heads, tokens, head_dim], at the position, and return the whole cache."""
        count = key_states.shape[-2]
        positions = self.position.on_device.reshape(1)
        if count > 1:
            positions = positions + torch.arange(count, device=positions.device)
        self.write(positions, key_states, value_states)
        return self.stored_keys.transpose(1, 2), self.stored_values.transpose(1, 2)

    def write(self, positions: Tensor, key_states: Tensor, value_states: Tensor) -> None:
        # In the stored layout: if written through the transposed view `keys`, compiled code would copy the whole cache
        # into another layout at every step.
        self.stored_keys.index_copy_(1, positions, key_states.transpose(1, 2))
        self.stored_values.index_copy_(1, positions, value_states.transpose(1, 2))

    def get_seq_length(self) -> Any:
        return self.position.on_device if self.position.on_host is None else self.position.on_host


class PromptLayer(StaticKVLayer):
    """Layer that writes whole prompts of some sequences into another layer's cache, and returns only these prompts."""

    def __init__(self, layer: StaticKVLayer, rows: Tensor) -> None:
        super().__init__(layer.max_cache_len, layer.position)
        self.stored_keys, self.stored_values, self.rows = layer.stored_keys, layer.stored_values, rows
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        places = self.rows.unsqueeze(1), torch.arange(key_states.shape[-2], device=key_states.device)
        self.stored_keys.index_put_(places, key_states.transpose(1, 2))
        self.stored_values.index_put_(places, value_states.transpose(1, 2))
        return key_states, value_states


class WindowLayer(StaticKVLayer):
    """Ring of the newest positions of a layer with a sliding window: position p is stored at p modulo the size."""

    is_sliding = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write keys and values into the ring. Return the ring in a decode step; in a prefill, return the keys and
        values of the window before the prompt and of the whole prompt, as transformers' mask requires."""
        start, size = self.position.on_host, self.max_cache_len
        if start is None:
            self.write(self.position.on_device.reshape(1) % size, key_states, value_states)
            return self.stored_keys.transpose(1, 2), self.stored_values.transpose(1, 2)
        past, count = min(start, size - 1), key_states.shape[-2]
        slots = torch.arange(start - past, start + count, device=key_states.device) % size
        keys = torch.cat((self.stored_keys[:, slots[:past]].transpose(1, 2), key_states), dim=2)
        values = torch.cat((self.stored_values[:, slots[:past]].transpose(1, 2), value_states), dim=2)
        newest = min(count, size)
        self.write(slots[-newest:], key_states[:, :, -newest:], value_states[:, :, -newest:])
        return keys, values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        start = self.position.on_host or 0
        past = min(start, self.max_cache_len - 1)
        return past + query_length, start - past


class StateView:
    """Cache that contains a single layer with recurrent states and returns it for every layer index.

    Code that looks up its layer in the whole cache would be compiled again for each index.
    """

    def __init__(self, layer: LinearAttentionLayer) -> None:
        self.layer = layer

    @property
    def layers(self) -> "StateView":
        # An attribute would be a reference cycle, which keeps the states in memory until the garbage collector runs.
        return self

    def __getitem__(self, layer_index: int) -> LinearAttentionLayer:
        return self.layer

    def has_previous_state(self, layer_index: int, state_idx: int = 0) -> bool:  # noqa: ARG002
        has_state: bool = self.layer.has_previous_state[state_idx]
        return has_state

    def is_recording_past(self, layer_index: int) -> bool:  # noqa: ARG002
        return False

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:  # noqa: ARG002
        return self.layer.conv_states[state_idx] if self.layer.has_previous_state[state_idx] else None

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:  # noqa: ARG002
        return self.layer.recurrent_states[state_idx] if self.layer.has_previous_state[state_idx] else None

    def update_conv_state(self, states: Tensor, layer_idx: int, **arguments: Any) -> Tensor:  # noqa: ARG002
        return self.layer.update_conv_state(states, **arguments)

    def update_recurrent_state(self, states: Tensor, layer_idx: int, **arguments: Any) -> Tensor:  # noqa: ARG002
        return self.layer.update_recurrent_state(states, **arguments)


def supported_cache(model: PreTrainedModel, length: int) -> StaticCache:
    """Return transformers' static cache, not yet allocated. Raises UnsupportedError for an unsupported layer type."""
    config: Any = model.config.get_text_config(decoder=True)
    kinds: Sequence[str] = getattr(config, "layer_types", None) or ()
    if not kinds and getattr(config, "attention_chunk_size", None):
        kinds = ("chunked_attention",)
    known = {"full_attention", "sliding_attention", "linear_attention", "conv", "attention", "mamba", "moe", "mlp"}
    for kind in kinds:
        if kind not in known:
            name = UNSUPPORTED_LAYERS.get(kind, f"a layer of kind {kind}")
            raise UnsupportedError(f"{name} has no static cache here; use --engine eager")
    cache = StaticCache(config=model.config, max_cache_len=length)
    lengths = {part.max_cache_len for part in cache.layers if isinstance(part, StaticLayer)}
    if not lengths:
        raise UnsupportedError("a model without attention has no position in its cache; use --engine eager")
    if len(lengths - {length}) > 1:
        raise UnsupportedError("sliding windows of different sizes have no static cache yet; use --engine eager")
    return cache


def tried_layers(model: PreTrainedModel) -> list[Any]:
    """Run one token through the model and return its cache layers, which show sizes that a config does not contain.

    The tensors of these layers are on the meta device and take no memory.
    """
    cache = StaticCache(config=model.config, max_cache_len=1)
    run_token(model, cache)
    for layer in cache.layers:
        vars(layer).update(tree_map_only(Tensor, lambda tensor: tensor.to("meta"), dict(vars(layer))))
    return list(cache.layers)


def cache_bytes(parts: Sequence[Any], trial: Sequence[Any], batch: int) -> int:
    """Return the bytes of a static cache with the layers `parts`. `trial`: the model's `tried_layers`."""
    total = 0
    for part, tried in zip(parts, trial, strict=True):
        total += batch * sum(state.nbytes for state in _states(tried))
        if isinstance(part, StaticLayer) and tried.is_initialized:
            total += batch * part.max_cache_len * (tried.keys.nbytes + tried.values.nbytes)
    return total


def _states(part: Any) -> list[Tensor]:
    if not isinstance(part, LinearAttentionLayer):
        return []
    return [state for state in (*part.conv_states.values(), *part.recurrent_states.values()) if state is not None]


def overwritten_tensors(part: Any) -> list[Tensor]:
    """Return the tensors of a layer in which new tokens overwrite old ones: a ring, or recurrent states."""
    return [part.stored_keys, part.stored_values] if isinstance(part, WindowLayer) else _states(part)
