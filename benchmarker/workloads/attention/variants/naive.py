"""Attention as it is written down: a product, a softmax, a product, each through memory.

    o = softmax(q k^T / sqrt(head_dim) + mask) v

The matrix of scores, [batch, heads, length, length], is written and read once for every step: six times in the forward
pass, eight with a mask. This is what a fused kernel saves.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from benchmarker.workloads.attention.spec import Shape
from benchmarker.workloads.attention.variants.base import Attention

if TYPE_CHECKING:
    from torch import Tensor


def hidden_pairs(shape: Shape, where: str) -> Tensor | None:
    """The pairs that the mask hides, [length, length], True where hidden; None where all are allowed."""
    import torch

    if not shape.causal:
        return None
    all_pairs = torch.ones(shape.seq_len, shape.seq_len, dtype=torch.bool, device=where)
    after = all_pairs.triu(1)
    return after if shape.window is None else after | all_pairs.tril(-shape.window)


def open_naive(shape: Shape, where: str) -> Attention:
    """In separate operators of torch, keys and values repeated where heads share them."""
    hidden = hidden_pairs(shape, where)
    scale, shared = math.sqrt(shape.head_dim), shape.heads // shape.kv_heads

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if shared > 1:
            key, value = key.repeat_interleave(shared, dim=1), value.repeat_interleave(shared, dim=1)
        scores = query @ key.transpose(-2, -1) / scale
        if hidden is not None:
            scores = scores.masked_fill(hidden, -math.inf)
        return scores.softmax(dim=-1) @ value

    return Attention(attend)
