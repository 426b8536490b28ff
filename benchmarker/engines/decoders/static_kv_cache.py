"""A KV cache at fixed addresses, written in place, and attention over it, with grouped heads and without a mask.

transformers' static cache keeps a counter in every layer, which costs several small kernels per layer and step. Here
all layers share one position on the device, which a captured graph advances at each replay. Keys are stored as
[batch, positions, heads, head_dim], the layout of variable-length attention kernels.

Repeating the keys for each query head would read and write the cache four times in Qwen3-4B, and a mask rules out the
fast kernels; so this file does neither. On NVIDIA GPUs in 16 bit, torch's flash attention takes the length of each
sequence from the device and reads only the filled positions. Elsewhere attention is two matmuls over the whole cache.
For a short cache the native engine uses this program's own kernel.

The layers of the cache are in static_cache_layers.py.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.cache_utils import LinearAttentionLayer, StaticLayer

from benchmarker.core.formatting import gib
from benchmarker.engines.base import UnsupportedError
from benchmarker.engines.decoders.static_cache_layers import (
    CachePosition,
    PromptLayer,
    StaticKVLayer,
    WindowLayer,
    cache_bytes,
    overwritten_tensors,
    supported_cache,
    tried_layers,
)
from benchmarker.kernels.decode_attention import decode_attention, why_not
from benchmarker.schema.model import OWN_ATTENTION

# No `from __future__ import annotations` here: torch.compile and torch.library.custom_op read the annotations.

LIBRARY = "benchmarker_decode"
"""Name of `attend` in transformers' registry of attentions. transformers makes masks only for its own attentions."""
NATIVE = "benchmarker_decode_native"

FLASH = "flash, reads the filled part"
ONE_KERNEL = OWN_ATTENTION
MATMULS = "two matmuls, read the whole cache"
UNSUPPORTED_ARGUMENTS = ("position_bias", "head_mask")


class SequenceLengths(NamedTuple):
    """Number of filled positions per sequence, as arguments of variable-length attention; int32 tensors."""

    lengths: Tensor  # Number of positions that a decode step attends to, the new token's included, [batch].
    query_starts: Tensor  # Start of each sequence's queries when all are concatenated, [batch + 1].
    key_starts: Tensor
    window: int | None = None  # Positions of the ring of each sliding-window layer; None without such layers.
    ring_lengths: Tensor | None = None
    ring_starts: Tensor | None = None
    is_first: bool = False  # True for a prompt at position 0, which attends to itself alone.

    def of(self, positions: int) -> "SequenceLengths":
        """Return the lengths for a layer that stores this many positions."""
        if positions != self.window or self.ring_lengths is None or self.ring_starts is None:
            return self
        return SequenceLengths(self.ring_lengths, self.query_starts, self.ring_starts)


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
    def __init__(self, model: PreTrainedModel, *, batch: int, length: int, trial: Sequence[Any] | None = None) -> None:
        """Allocate a cache. `trial`: result of `tried_layers(model)`, which is the same for every shape."""
        self.layers = supported_cache(model, length)
        self.length = length
        device: torch.device = cast("Any", model.get_input_embeddings().weight).device
        self.position = CachePosition(torch.zeros((), dtype=torch.int64, device=device), on_host=0)
        parts: list[Any] = self.layers.layers
        self.trial = trial or tried_layers(model)
        check_room(cache_bytes(parts, self.trial, batch), batch, length, device)
        parts = [self._allocated(part, tried, batch) for part, tried in zip(parts, self.trial, strict=True)]
        self.layers.layers = parts
        attending = [part for part in parts if isinstance(part, StaticKVLayer)]
        self.attending = max(attending, key=lambda part: part.max_cache_len)
        self.states = [part for part in parts if isinstance(part, LinearAttentionLayer)]
        self.window = next((part.max_cache_len for part in attending if isinstance(part, WindowLayer)), None)
        """Positions of the ring of each sliding-window layer; None without such layers."""
        config: Any = model.config.get_text_config(decoder=True)
        has_cap = getattr(config, "attn_logit_softcapping", None) is not None
        self._needs_scores = has_cap or any(name.endswith(".sinks") for name, _ in model.named_parameters())
        self._overwritten = [tensor for part in parts for tensor in overwritten_tensors(part)]
        self._kept: tuple[int, list[Tensor]] | None = None
        starts = torch.arange(batch + 1, dtype=torch.int32, device=device)
        lengths = torch.ones(batch, dtype=torch.int32, device=device)
        self.sequence_lengths = SequenceLengths(lengths, query_starts=starts, key_starts=starts * length)
        if self.window:
            self.sequence_lengths = self.sequence_lengths._replace(
                window=self.window, ring_lengths=lengths.clone(), ring_starts=starts * self.window
            )

    def _allocated(self, part: Any, tried: Any, batch: int) -> Any:
        """Return an allocated layer that replaces transformers' layer `part`, with the sizes of the layer `tried`."""
        if isinstance(part, LinearAttentionLayer):
            for name in ("conv_states", "recurrent_states"):
                for index, state in getattr(tried, name).items():
                    if state is not None:
                        state = state.new_zeros(batch, *state.shape[1:], device=self.position.on_device.device)
                        part.lazy_initialization(**{name: state}, state_idx=index)
        elif isinstance(part, StaticLayer) and tried.is_initialized:
            is_ring = part.max_cache_len < self.length
            part = (WindowLayer if is_ring else StaticKVLayer)(part.max_cache_len, self.position)
            part.allocate(batch, tried.keys, tried.values)
        return part

    def attention(self, *, native: bool = False) -> str:
        """Return the attention backend of most layers in a decode step: FLASH, ONE_KERNEL or MATMULS."""
        keys, values = self.attending.keys, self.attending.values
        return attention_backend(keys, values, native=native, needs_scores=self._needs_scores)

    def for_prompts(self, rows: Tensor) -> "StaticKVCache":
        """Return a cache that writes whole prompts of the sequences `rows`, indices into the batch, into this one."""
        cache, cache_layers = copy.copy(self), copy.copy(self.layers)
        cache_layers.layers = [PromptLayer(part, rows) for part in cast("list[StaticKVLayer]", self.layers.layers)]
        cache.layers = cache_layers
        return cache

    @property
    def takes_padding(self) -> bool:
        """True if padding after a prompt leaves no trace: no layer has a ring or a recurrent state."""
        return not self._overwritten

    def go_to(self, position: int) -> None:
        self.position.on_host = position
        self.position.on_device.fill_(position)
        self.sequence_lengths.lengths.fill_(position + 1)
        self._limit_to_window()

    def rewind(self, position: int) -> None:
        """Go back to `position`: 0, or that of the last `keep`, whose copies of tensors are then restored."""
        self.go_to(position)
        for part in self.states:
            part.has_previous_state = dict.fromkeys(part.has_previous_state, position > 0)
        if position and self._overwritten:
            kept_position, tensors = self._kept or (None, [])
            assert kept_position == position
            for tensor, kept in zip(self._overwritten, tensors, strict=True):
                tensor.copy_(kept)

    def keep(self) -> None:
        """Copy recurrent states and rings at the current position to the host, because later tokens overwrite them."""
        if self._overwritten:
            assert self.position.on_host is not None
            self._kept = self.position.on_host, [tensor.to("cpu", copy=True) for tensor in self._overwritten]

    def begin_decoding(self) -> None:
        """Set the position on the host to None: decode steps advance only the position on the device."""
        self.position.on_host = None
        for part in self.states:
            part.has_previous_state = dict.fromkeys(part.has_previous_state, True)

    def advance(self, tokens: int | Tensor = 1) -> None:
        self.position.on_device.add_(tokens)
        self.sequence_lengths.lengths.add_(tokens)
        self._limit_to_window()

    def _limit_to_window(self) -> None:
        lengths = self.sequence_lengths
        if lengths.ring_lengths is not None:
            torch.clamp(lengths.lengths, max=lengths.window, out=lengths.ring_lengths)


@contextmanager
def cache_attention(model: PreTrainedModel, *, native: bool = False) -> Iterator[None]:
    """Make the model use `attend`, which decode steps and padded prompts require, but not a plain prefill."""
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
        key: Keys of the whole cache, [batch, key heads, positions, head_dim]. `value` has the same layout.
        others: `sliding_window`, `softcap` and `s_aux` (attention sinks) of some models; `UNSUPPORTED_ARGUMENTS` raise
            UnsupportedError; all other arguments are ignored.
    """
    sequence_lengths = _checked(module, attention_mask, sequence_lengths, others).of(key.shape[2])
    window, cap, sinks = (others.get(name) for name in ("sliding_window", "softcap", "s_aux"))
    if window is not None and key.shape[2] > window:
        raise UnsupportedError(f"{type(module).__name__} has a sliding window in a longer cache; use --engine eager")
    backend = attention_backend(key, value, native=native, needs_scores=cap is not None or sinks is not None)
    if backend == ONE_KERNEL:
        output = decode_attention(
            query.squeeze(2), key.transpose(1, 2), value.transpose(1, 2), sequence_lengths.lengths, scaling
        )
        return output.unsqueeze(1), None
    if backend == FLASH and sequence_lengths.is_first:
        # torch selects the kernel: cuDNN's on Hopper.
        filled, is_grouped = query.shape[2], query.shape[1] != key.shape[1]
        output = nn.functional.scaled_dot_product_attention(
            query, key[:, :, :filled], value[:, :, :filled], is_causal=True, scale=scaling, enable_gqa=is_grouped
        )
        return output.transpose(1, 2), None
    if backend == FLASH:
        return flash(query, key.transpose(1, 2), value.transpose(1, 2), *sequence_lengths[:3], scaling), None
    batch, heads, tokens, head_dim = query.shape
    if tokens > 1:
        if cap is not None or sinks is not None:
            raise UnsupportedError(f"{type(module).__name__} changes its scores, which a padded prompt does not")
        first = (sequence_lengths.lengths - tokens).view(-1, 1, 1, 1)
        last = first + torch.arange(tokens, device=key.device).view(-1, 1)
        is_visible = torch.arange(key.shape[2], device=key.device) <= last
        output = nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=is_visible, scale=scaling, enable_gqa=heads != key.shape[1]
        )
        return output.transpose(1, 2), None
    groups = query.view(batch, key.shape[1], heads // key.shape[1], head_dim)
    scores = torch.matmul(groups, key.transpose(2, 3)).float() * scaling
    if cap is not None:
        scores = cap * torch.tanh(scores / cap)
    unfilled = torch.arange(key.shape[2], device=key.device) >= sequence_lengths.lengths.view(batch, 1, 1, 1)
    scores = scores.masked_fill(unfilled, float("-inf"))
    if sinks is not None:
        # A sink has a score in the softmax, but no value vector.
        sinks = sinks.float().view(1, key.shape[1], -1, 1).expand(batch, -1, -1, 1)
        scores = torch.cat((scores, sinks), dim=-1)
    weights = scores.softmax(dim=-1)[..., : key.shape[2]].to(value.dtype)
    return torch.matmul(weights, value).reshape(batch, 1, heads, value.shape[3]), None


def _checked(
    module: nn.Module, mask: Tensor | None, sequence_lengths: SequenceLengths | None, others: dict[str, Any]
) -> SequenceLengths:
    unsupported = [name for name in UNSUPPORTED_ARGUMENTS if others.get(name) is not None]
    if sequence_lengths is None or mask is not None or unsupported:
        missing = "a mask of its own" if sequence_lengths else "no lengths of the sequences in the cache"
        why = ", ".join(unsupported) or missing
        raise UnsupportedError(f"{type(module).__name__} attends with {why}; use --engine eager")
    return sequence_lengths


def attention_backend(key: Tensor, value: Tensor, *, native: bool = False, needs_scores: bool = False) -> str:
    """Return FLASH, ONE_KERNEL or MATMULS. `needs_scores`: the model caps its scores, or has attention sinks."""
    head_dim = key.shape[3]
    if needs_scores or value.shape[3] != head_dim:
        return MATMULS
    if native and why_not(key) is None:
        return ONE_KERNEL
    # AMD's flash attention does not take lengths from the device.
    is_nvidia = key.is_cuda and torch.version.hip is None
    return FLASH if is_nvidia and key.dtype in (torch.float16, torch.bfloat16) and head_dim <= 256 else MATMULS


@torch.library.custom_op("benchmarker::filled_attention", mutates_args=())
def flash(
    query: Tensor, key: Tensor, value: Tensor, lengths: Tensor, query_starts: Tensor, key_starts: Tensor, scaling: float
) -> Tensor:
    """Run torch's flash attention for the last tokens of sequences of different lengths: query [batch, heads, tokens,
    head_dim]; stored keys and values [batch, positions, key heads, head_dim]."""
    batch, heads, queries, head_dim = query.shape
    in_a_row = query.transpose(1, 2).reshape(-1, heads, head_dim), key.flatten(0, 1), value.flatten(0, 1)
    filled = SequenceLengths(lengths, query_starts, key_starts)
    return flash_kernel(*in_a_row, filled, positions=key.shape[1], scaling=scaling).view(
        batch, queries, heads, head_dim
    )


def flash_kernel(
    query: Tensor, key: Tensor, value: Tensor, filled: SequenceLengths, *, positions: int, scaling: float
) -> Tensor:
    """Call the GPU operator that torch.nn.attention.varlen wraps, with tensors [tokens, heads, head_dim]."""
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
