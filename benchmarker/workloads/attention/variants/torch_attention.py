"""Implementations of attention that come with torch.

naive computes o = softmax(q k^T / sqrt(head_dim) + mask) v in separate operators. Each operator reads and writes the
score matrix [batch, heads, length, length]: six passes over it in the forward pass, eight with a mask. A fused kernel
saves these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Literal

from benchmarker.core.errors import UnsupportedError, first_line
from benchmarker.workloads.attention.spec import AttentionShape
from benchmarker.workloads.operation.implementation import Operation

if TYPE_CHECKING:
    from torch import Tensor

Backend = Literal["MATH", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION"]
Open = Callable[[AttentionShape, str], Operation]


def _masked_pairs(shape: AttentionShape, device: str) -> Tensor | None:
    """Return the pairs that the mask hides, [length, length], True for hidden ones; None without a mask."""
    import torch

    if not shape.causal:
        return None
    all_pairs = torch.ones(shape.seq_len, shape.seq_len, dtype=torch.bool, device=device)
    later = all_pairs.triu(1)
    return later if shape.window is None else later | all_pairs.tril(-shape.window)


def open_naive(shape: AttentionShape, device: str) -> Operation:
    """Prepare separate operators; shared keys and values are repeated."""
    masked = _masked_pairs(shape, device)
    scale, group_size = math.sqrt(shape.head_dim), shape.heads // shape.kv_heads

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if group_size > 1:
            key, value = key.repeat_interleave(group_size, dim=1), value.repeat_interleave(group_size, dim=1)
        scores = query @ key.transpose(-2, -1) / scale
        if masked is not None:
            scores = scores.masked_fill(masked, -math.inf)
        return scores.softmax(dim=-1) @ value

    return Operation(attend)


def open_sdpa(backend: Backend | None) -> Open:
    """Return an opener of scaled_dot_product_attention with one backend forced; None leaves the choice to torch."""

    def around() -> AbstractContextManager[object]:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        return nullcontext() if backend is None else sdpa_kernel(getattr(SDPBackend, backend))

    return lambda shape, device: Operation(_sdpa_call(shape, device), around)


def _sdpa_call(shape: AttentionShape, device: str) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return the operator with the shape's mask. A window has no flag of its own and is passed as a matrix."""
    from torch.nn.functional import scaled_dot_product_attention

    masked = _masked_pairs(shape, device) if shape.window is not None else None
    allowed = None if masked is None else ~masked
    is_causal, is_grouped = shape.causal and allowed is None, shape.heads != shape.kv_heads

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return scaled_dot_product_attention(
            query, key, value, attn_mask=allowed, is_causal=is_causal, enable_gqa=is_grouped
        )

    return attend


def open_flash_library(version: str) -> Open:
    """Return an opener of FlashAttention 3 or 4 ("FA3", "FA4"), which then replace torch's own FlashAttention 2."""

    @contextmanager
    def around() -> Iterator[None]:
        from torch.nn.attention import (
            SDPBackend,
            activate_flash_attention_impl,
            restore_flash_attention_impl,
            sdpa_kernel,
        )

        try:
            activate_flash_attention_impl(version)
        except (ValueError, ImportError, RuntimeError) as error:
            raise UnsupportedError(f"torch: {first_line(error)}") from error
        try:
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                yield
        finally:
            restore_flash_attention_impl()

    return lambda shape, device: Operation(_sdpa_call(shape, device), around)


def open_flex(shape: AttentionShape, device: str) -> Operation:
    """Prepare flex_attention, which inductor compiles at the first call. Fully masked blocks are skipped."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    # Dynamo limits the compilations of one function to eight shapes, and runs it uncompiled after that.
    torch.compiler.reset()
    compiled = torch.compile(flex_attention, dynamic=False)
    is_grouped, window = shape.heads != shape.kv_heads, shape.window or shape.seq_len

    def is_allowed(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (query - key < window)

    blocks = (
        create_block_mask(is_allowed, None, None, shape.seq_len, shape.seq_len, device=device) if shape.causal else None
    )

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output: Tensor = compiled(query, key, value, block_mask=blocks, enable_gqa=is_grouped)
        return output

    return Operation(attend)
