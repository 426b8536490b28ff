"""One block of attention by a library's kernel, with the log-sum-exp that merges blocks.

Tensors are [batch, heads, length, head_dim]. The log-sum-exp is [batch, heads, length], float32, of the natural
logarithm; cuDNN returns it with an additional last dimension of 1. The kernels handle shared key and value heads.

The backward pass of a block takes the merged output and the merged log-sum-exp: exp(scores - lse) is then the block's
share of the full softmax, and the gradients of the blocks add up.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from benchmarker.workloads.context_parallel.spec import KernelName

aten = torch.ops.aten


class Block(NamedTuple):
    output: Tensor
    lse: Tensor
    rest: tuple[Any, ...]
    """Further arguments of the backward pass: the state of a random generator that was not used."""


class Merged(NamedTuple):
    """Merged result of all blocks of some queries."""

    output: Tensor
    lse: Tensor
    gradient: Tensor
    """Gradient of the loss with respect to the output."""
    rest: tuple[Any, ...]


Gradients = tuple[Tensor, Tensor, Tensor]
"""Gradients of queries, keys and values."""


class BlockKernel(Protocol):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, *, is_causal: bool) -> Block:
        """Compute one block; `is_causal` for a block on the diagonal, with as many queries as keys."""

    def backward(self, query: Tensor, key: Tensor, value: Tensor, merged: Merged, *, is_causal: bool) -> Gradients:
        """Compute the block's share of the gradients."""


class CpuFlash:
    def forward(self, query: Tensor, key: Tensor, value: Tensor, *, is_causal: bool) -> Block:
        output, lse = aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, is_causal)
        return Block(output, lse, ())

    def backward(self, query: Tensor, key: Tensor, value: Tensor, merged: Merged, *, is_causal: bool) -> Gradients:
        gradients: Gradients = aten._scaled_dot_product_flash_attention_for_cpu_backward(
            merged.gradient, query, key, value, merged.output, merged.lse, 0.0, is_causal
        )
        return gradients


class Flash:
    """torch's FlashAttention 2; AOTriton's on AMD."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *, is_causal: bool) -> Block:
        output, lse, _, _, _, _, seed, offset, _ = aten._scaled_dot_product_flash_attention(
            query, key, value, 0.0, is_causal, False
        )
        return Block(output, lse, (seed, offset))

    def backward(self, query: Tensor, key: Tensor, value: Tensor, merged: Merged, *, is_causal: bool) -> Gradients:
        seed, offset = merged.rest
        gradients: Gradients = aten._scaled_dot_product_flash_attention_backward(
            merged.gradient,
            query,
            key,
            value,
            merged.output,
            merged.lse,
            None,  # cumulative lengths, for packed sequences
            None,
            query.shape[2],
            key.shape[2],
            0.0,
            is_causal,
            seed,
            offset,
        )
        return gradients


class Cudnn:
    def forward(self, query: Tensor, key: Tensor, value: Tensor, *, is_causal: bool) -> Block:
        output, lse, _, _, _, _, seed, offset, _ = aten._scaled_dot_product_cudnn_attention(
            query, key, value, None, True, 0.0, is_causal, False
        )
        return Block(output, lse.squeeze(-1) if lse.dim() == query.dim() else lse, (seed, offset))

    def backward(self, query: Tensor, key: Tensor, value: Tensor, merged: Merged, *, is_causal: bool) -> Gradients:
        seed, offset = merged.rest
        gradients: Gradients = aten._scaled_dot_product_cudnn_attention_backward(
            merged.gradient,
            query,
            key,
            value,
            merged.output,
            merged.lse.unsqueeze(-1),
            seed,
            offset,
            None,  # bias
            None,
            None,
            query.shape[2],
            key.shape[2],
            0.0,
            is_causal,
        )
        return gradients


def block_kernel(name: KernelName, device: str) -> BlockKernel:
    """Return the kernel of that name on a device (torch's name)."""
    if device == "cpu":
        return CpuFlash()
    return Cudnn() if name == "cudnn" else Flash()
