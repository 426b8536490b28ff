"""Random queries, keys and values: normal, as in the benchmarks of the FlashAttention papers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from benchmarker.workloads.attention.spec import AttentionShape
from benchmarker.workloads.operation.call_inputs import CallInputs, hash_inputs

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def input_bytes(shape: AttentionShape) -> int:
    row = shape.batch_size * shape.seq_len * shape.head_dim * shape.element_bytes
    return row * (shape.heads * (1 + shape.is_backward) + 2 * shape.kv_heads)


def make_inputs(shape: AttentionShape, device: str, *, seed: int) -> CallInputs:
    """Return one copy, the same for every implementation on the same kind of device."""
    import torch

    dtype: torch.dtype = getattr(torch, shape.torch_dtype)
    tensors = [tensor.to(dtype) for tensor in _random(shape, device, seed)]
    for tensor in tensors[:3]:
        tensor.requires_grad_(shape.is_backward)
    return CallInputs(dict(zip("qkv", tensors, strict=False)), tensors[3] if shape.is_backward else None)


def inputs_sha256(shape: AttentionShape, device: str, *, seed: int) -> str:
    """Return the SHA-256 of shape, seed and first float32 numbers: the same for every type."""
    return hash_inputs((*shape._replace(dtype="float32"), seed), _random(shape, device, seed))


def _random(shape: AttentionShape, device: str, seed: int) -> Iterator[Tensor]:
    """Yield query, key, value, and the gradient of the output if there is a backward pass, in float32."""
    import torch

    generator = torch.Generator(device=device).manual_seed(seed)
    for heads in (shape.heads, shape.kv_heads, shape.kv_heads, *[shape.heads] * shape.is_backward):
        yield torch.randn(shape.batch_size, heads, shape.seq_len, shape.head_dim, generator=generator, device=device)
