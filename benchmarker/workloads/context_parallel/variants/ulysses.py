"""Ulysses: an all-to-all gives every rank the full sequence for a share of the heads, and another one reverses it.

Jacobs et al., "DeepSpeed Ulysses", arXiv 2309.14509. Four exchanges forward and four backward; none of them overlaps
with computation.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from benchmarker.workloads.context_parallel.exchange import all_to_all
from benchmarker.workloads.context_parallel.variants.registry import Plan, open_single
from benchmarker.workloads.operation.implementation import Operation


def to_heads(tensor: Tensor, plan: Plan) -> Tensor:
    """Exchange [batch, heads, length / ranks, head_dim] for [batch, heads / ranks, length, head_dim]."""
    batch, heads, length, head_dim = tensor.shape
    ranks = plan.ranks
    slices = tensor.reshape(batch, ranks, heads // ranks, length, head_dim).transpose(0, 1).contiguous()
    received = all_to_all(slices, plan)
    return received.permute(1, 2, 0, 3, 4).reshape(batch, heads // ranks, ranks * length, head_dim)


def to_positions(tensor: Tensor, plan: Plan) -> Tensor:
    """Reverse `to_heads`: exchange [batch, heads / ranks, length, head_dim] for [batch, heads, length / ranks, ..]."""
    batch, heads, length, head_dim = tensor.shape
    ranks = plan.ranks
    slices = tensor.reshape(batch, heads, ranks, length // ranks, head_dim).permute(2, 0, 1, 3, 4).contiguous()
    received = all_to_all(slices, plan)
    return received.transpose(0, 1).reshape(batch, heads * ranks, length // ranks, head_dim)


class ToHeads(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, plan: Plan) -> Tensor:
        ctx.plan = plan
        return to_heads(tensor, plan)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return to_positions(gradients[0], ctx.plan), None


class ToPositions(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, plan: Plan) -> Tensor:
        ctx.plan = plan
        return to_positions(tensor, plan)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return to_heads(gradients[0], ctx.plan), None


def open_ulysses(plan: Plan) -> Operation:
    """Prepare scaled_dot_product_attention over this rank's heads, between two exchanges."""
    ranks = plan.ranks
    shape = plan.shape._replace(heads=plan.shape.heads // ranks, kv_heads=plan.shape.kv_heads // ranks)
    inner = open_single(replace(plan, shape=shape))

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        tensors = [ToHeads.apply(tensor, plan) for tensor in (query, key, value)]
        output: Tensor = ToPositions.apply(inner.call(*tensors), plan)
        return output

    return Operation(attend, inner.around)
