"""Ulysses: an all-to-all gives every rank the whole sequence for a part of the heads, and another one takes it back.

Jacobs et al., "DeepSpeed Ulysses", arXiv 2309.14509. Four exchanges forward and four backward, none of which lies
beside arithmetic.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchmarker.workloads.attention.variants.base import Attention
from benchmarker.workloads.attention.variants.sdpa import open_sdpa
from benchmarker.workloads.context_parallel.exchange import all_to_all
from benchmarker.workloads.context_parallel.variants.base import Plan
from benchmarker.workloads.context_parallel.variants.single import BACKENDS


def to_heads(tensor: Tensor, plan: Plan) -> Tensor:
    """From [batch, heads, length / ranks, head_dim] to [batch, heads / ranks, length, head_dim]."""
    batch, heads, length, head_dim = tensor.shape
    ranks = plan.place.ranks
    parts = tensor.reshape(batch, ranks, heads // ranks, length, head_dim).transpose(0, 1).contiguous()
    received = all_to_all(parts, plan)
    return received.permute(1, 2, 0, 3, 4).reshape(batch, heads // ranks, ranks * length, head_dim)


def to_positions(tensor: Tensor, plan: Plan) -> Tensor:
    """The way back: from [batch, heads / ranks, length, head_dim] to [batch, heads, length / ranks, head_dim]."""
    batch, heads, length, head_dim = tensor.shape
    ranks = plan.place.ranks
    parts = tensor.reshape(batch, heads, ranks, length // ranks, head_dim).permute(2, 0, 1, 3, 4).contiguous()
    received = all_to_all(parts, plan)
    return received.transpose(0, 1).reshape(batch, heads * ranks, length // ranks, head_dim)


class ToHeads(torch.autograd.Function):
    """`to_heads`, whose gradient goes the way back."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, plan: Plan) -> Tensor:
        ctx.plan = plan
        return to_heads(tensor, plan)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return to_positions(gradients[0], ctx.plan), None


class ToPositions(torch.autograd.Function):
    """`to_positions`, whose gradient goes the way there."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, plan: Plan) -> Tensor:
        ctx.plan = plan
        return to_positions(tensor, plan)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return to_heads(gradients[0], ctx.plan), None


def open_ulysses(plan: Plan) -> Attention:
    """torch's scaled_dot_product_attention over this rank's heads, between two exchanges."""
    ranks = plan.place.ranks
    shape = plan.shape._replace(heads=plan.shape.heads // ranks, kv_heads=plan.shape.kv_heads // ranks)
    inner = open_sdpa(BACKENDS[plan.kernel])(shape, plan.place.device)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        parts = [ToHeads.apply(part, plan) for part in (query, key, value)]
        output: Tensor = ToPositions.apply(inner.call(*parts), plan)
        return output

    return Attention(attend, inner.around)
