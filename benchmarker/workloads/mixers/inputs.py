"""Random inputs of one call, the same numbers for every mixer before its own scaling.

Queries, keys, values, gates and the output's gradient are normal. Linear attention applies its feature map to queries
and keys; the delta rule scales them to length 1, and has a decay of logsigmoid(x + 4) (half of the tokens keep more
than 98 % of the state) and a strength of sigmoid(x). All of this is done before the clock starts.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarker.workloads.attention.inputs import HASHED_NUMBERS, MOST_COPY_BYTES, UNKNOWN_CACHE_BYTES
from benchmarker.workloads.mixers.spec import Shape
from benchmarker.workloads.mixers.variants.base import LINEAR, Layout, Mixer

if TYPE_CHECKING:
    import torch
    from torch import Tensor

GATE_OFFSET = 4.0
MOST_COPIES = 64
"""Inputs that are so small that more would be needed stay in the cache in a model too."""


@dataclass(frozen=True)
class Inputs:
    """One copy."""

    named: dict[str, Tensor]
    """q, k and v, and for a gated mixer g and beta: in the order of a call's arguments."""
    gradient: Tensor | None
    """Of the loss with respect to the output; None for the forward pass alone."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(self.named.values())


def input_bytes(mixer: Mixer, shape: Shape) -> int:
    """Of one copy."""
    numbers = 2 * shape.head_dim + shape.value_dim * (1 + shape.is_backward)
    gate = 4 + shape.element_bytes if mixer.is_gated else 0
    return shape.tokens * shape.heads * (numbers * shape.element_bytes + gate)


def copies_needed(mixer: Mixer, shape: Shape, cache_bytes: int | None, *, kind: str) -> int:
    """One, and as many others as fill the cache, as far as that makes sense."""
    each = input_bytes(mixer, shape)
    wanted = 1 + -(-(cache_bytes or UNKNOWN_CACHE_BYTES) // each)
    return max(1, min(wanted, MOST_COPIES, MOST_COPY_BYTES[kind] // each))


def make_inputs(mixer: Mixer, shape: Shape, where: str, *, seed: int, layout: Layout = "heads first") -> Inputs:
    """One copy, in the layout that the implementation takes."""
    import torch
    from torch.nn.functional import logsigmoid

    dtype: torch.dtype = getattr(torch, shape.dtype)
    query, key, value, *rest = _normal(shape, where, seed)
    gate, strength, *gradients = rest
    named = {"q": _scaled(query, mixer, shape), "k": _scaled(key, mixer, shape), "v": value}
    named = {name: tensor.to(dtype) for name, tensor in named.items()}
    if mixer.is_gated:
        named |= {"g": logsigmoid(gate + GATE_OFFSET), "beta": strength.sigmoid().to(dtype)}
    if layout == "heads first":
        named = {name: tensor.transpose(1, 2).contiguous() for name, tensor in named.items()}
        gradients = [tensor.transpose(1, 2).contiguous() for tensor in gradients]
    for tensor in named.values():
        tensor.requires_grad_(shape.is_backward)
    return Inputs(named, gradients[0].to(dtype) if gradients else None)


def inputs_sha256(shape: Shape, where: str, *, seed: int) -> str:
    """Of the shape, and of the first random numbers of each input: the same for every mixer and type."""
    digest = hashlib.sha256(repr((*shape._replace(dtype="float32"), seed)).encode())
    for part in _normal(shape, where, seed):
        digest.update(part.flatten()[:HASHED_NUMBERS].cpu().numpy().tobytes())
    return digest.hexdigest()


def _scaled(tensor: Tensor, mixer: Mixer, shape: Shape) -> Tensor:
    """A query or key as the mixer takes it."""
    from torch.nn.functional import elu, normalize

    if mixer.has_unit_keys:
        return normalize(tensor, dim=-1)
    return elu(tensor) + 1 if mixer is LINEAR and shape.feature_map == "elu" else tensor


def _normal(shape: Shape, where: str, seed: int) -> list[Tensor]:
    """Query, key, value, gate, strength, and the output's gradient where there is a backward pass; length first."""
    import torch

    generator = torch.Generator(device=where).manual_seed(seed)
    rows = shape.batch_size, shape.seq_len, shape.heads
    keys, values = (*rows, shape.head_dim), (*rows, shape.value_dim)
    sizes = [keys, keys, values, rows, rows, *[values] * shape.is_backward]
    return [torch.randn(size, generator=generator, device=where) for size in sizes]
