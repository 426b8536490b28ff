"""Random queries, keys and values, in copies that together exceed the cache.

A kernel that is called again on the same inputs finds them in the cache, and is measured as no model would see it. So
the calls take turns over copies: between two uses of one at least a whole cache of others was read. Values are normal,
as in the benchmarks of the FlashAttention papers; each copy has them at other places.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarker.workloads.attention.spec import Shape

if TYPE_CHECKING:
    from torch import Tensor

UNKNOWN_CACHE_BYTES = 2**28
MOST_COPY_BYTES = {"cuda": 2**33, "rocm": 2**33, "cpu": 2**28}
"""All copies together, unless the first alone is larger. A host reports the cache of all its sockets."""
HASHED_NUMBERS = 2**16


@dataclass(frozen=True)
class Inputs:
    """One copy."""

    query: Tensor
    key: Tensor
    value: Tensor
    gradient: Tensor | None
    """Of the loss with respect to the output; None for the forward pass alone."""

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.query, self.key, self.value


def input_bytes(shape: Shape) -> int:
    """Of one copy."""
    row = shape.batch_size * shape.seq_len * shape.head_dim * shape.element_bytes
    return row * (shape.heads * (1 + shape.is_backward) + 2 * shape.kv_heads)


def copies_needed(shape: Shape, cache_bytes: int | None, *, kind: str) -> int:
    """One, and as many others as fill the cache."""
    each = input_bytes(shape)
    wanted = 1 + -(-(cache_bytes or UNKNOWN_CACHE_BYTES) // each)
    return max(1, min(wanted, MOST_COPY_BYTES[kind] // each))


def make_inputs(shape: Shape, where: str, *, seed: int) -> Inputs:
    """One copy, the same for every implementation on the same kind of device."""
    import torch

    dtype: torch.dtype = getattr(torch, shape.torch_dtype)
    parts = [part.to(dtype) for part in _float32_parts(shape, where, seed)]
    for part in parts[:3]:
        part.requires_grad_(shape.is_backward)
    return Inputs(parts[0], parts[1], parts[2], parts[3] if shape.is_backward else None)


def shifted(inputs: Inputs, places: int) -> Inputs:
    """A copy with the same numbers, each so many places further on: as random as new ones, and made much faster."""
    query, key, value = (tensor.detach().roll(places).requires_grad_(tensor.requires_grad) for tensor in inputs.tensors)
    return Inputs(query, key, value, None if inputs.gradient is None else inputs.gradient.roll(places))


def inputs_sha256(shape: Shape, where: str, *, seed: int) -> str:
    """Of the shape, and of the first numbers of each input before they are rounded: the same for every type."""
    digest = hashlib.sha256(repr((*shape._replace(dtype="float32"), seed)).encode())
    for part in _float32_parts(shape, where, seed):
        digest.update(part.flatten()[:HASHED_NUMBERS].cpu().numpy().tobytes())
    return digest.hexdigest()


def _float32_parts(shape: Shape, where: str, seed: int) -> Iterator[Tensor]:
    """Query, key, value, and the gradient of the output where there is a backward pass, each made when it is due."""
    import torch

    generator = torch.Generator(device=where).manual_seed(seed)
    for heads in (shape.heads, shape.kv_heads, shape.kv_heads, *[shape.heads] * shape.is_backward):
        yield torch.randn(shape.batch_size, heads, shape.seq_len, shape.head_dim, generator=generator, device=where)
