"""One block of attention by a library's kernel, with the log-sum-exp by which blocks are merged.

All tensors are [batch, heads, length, head_dim]. The log-sum-exp is [batch, heads, length], float32, of the natural
logarithm: cuDNN returns it with a last dimension of 1. Fewer heads of keys and values than of queries are shared by the
kernels themselves.

The backward pass of a block takes the merged output and the merged log-sum-exp: exp(scores - lse) are then the block's
part of the whole softmax, and the gradients of the blocks add up.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from benchmarker.workloads.context_parallel.spec import KernelName

aten = torch.ops.aten


class Block(NamedTuple):
    """The result of a block's forward pass."""

    output: Tensor
    lse: Tensor
    rest: tuple[Any, ...]
    """What else the backward pass takes: the state of a random generator that nothing was drawn from."""


class Merged(NamedTuple):
    """What all blocks of some queries gave together."""

    output: Tensor
    lse: Tensor
    gradient: Tensor
    """Of the loss with respect to the output."""
    rest: tuple[Any, ...]


Gradients = tuple[Tensor, Tensor, Tensor]
"""Of queries, keys and values."""


class BlockKernel(Protocol):
    """A library's kernel."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *, is_causal: bool) -> Block:
        """One block; `is_causal` for one on the diagonal, as many queries as keys."""

    def backward(self, query: Tensor, key: Tensor, value: Tensor, merged: Merged, *, is_causal: bool) -> Gradients:
        """The block's part of the gradients."""


class ProcessorFlash:
    """torch's flash attention for processors."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *, is_causal: bool) -> Block:
        output, lse = aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, is_causal)
        return Block(output, lse, ())

    def backward(self, query: Tensor, key: Tensor, value: Tensor, merged: Merged, *, is_causal: bool) -> Gradients:
        gradients: Gradients = aten._scaled_dot_product_flash_attention_for_cpu_backward(
            merged.gradient, query, key, value, merged.output, merged.lse, 0.0, is_causal
        )
        return gradients


class Flash:
    """torch's FlashAttention 2; on AMD AOTriton's."""

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
            None,  # cumulative lengths are of packed sequences
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
    """cuDNN's attention."""

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
            None,  # no bias
            None,
            None,
            query.shape[2],
            key.shape[2],
            0.0,
            is_causal,
        )
        return gradients


def block_kernel(name: KernelName, device: str) -> BlockKernel:
    """The kernel of that name on a device, as torch names it."""
    if device == "cpu":
        return ProcessorFlash()
    return Cudnn() if name == "cudnn" else Flash()
