"""Random inputs of one call: the same numbers for every mixer before its own scaling.

Queries, keys, values, gates and the output's gradient are normal. Linear attention applies its feature map to queries
and keys. The delta rule scales them to length 1; its decay is sigmoid(x + 4), so that half of the tokens keep more than
98 % of the state, and its strength is sigmoid(x). All of this happens before timing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarker.workloads.mixers.mixer import LINEAR, Layout, Mixer
from benchmarker.workloads.mixers.spec import MixerShape
from benchmarker.workloads.operation.call_inputs import CallInputs, hash_inputs
from benchmarker.workloads.operation.call_inputs import copies_needed as copies_for_cache

if TYPE_CHECKING:
    import torch
    from torch import Tensor

GATE_OFFSET = 4.0
MAX_COPIES = 64
"""Maximum number of input copies. Inputs that still fit in the cache with this many copies would be cached in a real
model as well."""


def input_bytes(mixer: Mixer, shape: MixerShape) -> int:
    numbers = 2 * shape.head_dim + shape.value_dim * (1 + shape.is_backward)
    gate = 4 + shape.element_bytes if mixer.is_gated else 0
    return shape.tokens * shape.heads * (numbers * shape.element_bytes + gate)


def copies_needed(mixer: Mixer, shape: MixerShape, cache_bytes: int | None, *, kind: str) -> int:
    """Return how many copies are needed to exceed the cache, at most MAX_COPIES."""
    return min(MAX_COPIES, copies_for_cache(input_bytes(mixer, shape), cache_bytes, kind=kind))


def make_inputs(mixer: Mixer, shape: MixerShape, device: str, *, seed: int, layout: Layout) -> CallInputs:
    import torch
    from torch.nn.functional import logsigmoid

    dtype: torch.dtype = getattr(torch, shape.dtype)
    query, key, value, gate, strength, *gradients = _random(shape, device, seed)
    named = {"q": scaled(query, mixer, shape), "k": scaled(key, mixer, shape), "v": value}
    named = {name: tensor.to(dtype) for name, tensor in named.items()}
    if mixer.is_gated:
        named |= {"g": logsigmoid(gate + GATE_OFFSET), "beta": strength.sigmoid().to(dtype)}
    if layout == "heads first":
        named = {name: tensor.transpose(1, 2).contiguous() for name, tensor in named.items()}
        gradients = [tensor.transpose(1, 2).contiguous() for tensor in gradients]
    for tensor in named.values():
        tensor.requires_grad_(shape.is_backward)
    return CallInputs(named, gradients[0].to(dtype) if gradients else None)


def inputs_sha256(shape: MixerShape, device: str, *, seed: int) -> str:
    """Return the SHA-256 of shape, seed and first random numbers: the same for every mixer and type."""
    return hash_inputs((*shape._replace(dtype="float32"), seed), _random(shape, device, seed))


def scaled(tensor: Tensor, mixer: Mixer, shape: MixerShape) -> Tensor:
    """Return queries or keys as the mixer takes them: of length 1, or after the feature map."""
    from torch.nn.functional import elu, normalize

    if mixer.has_unit_keys:
        return normalize(tensor.float(), dim=-1)
    return elu(tensor) + 1 if mixer is LINEAR and shape.feature_map == "elu" else tensor


def _random(shape: MixerShape, device: str, seed: int) -> list[Tensor]:
    """Return query, key, value, gate, strength, and the output's gradient if there is a backward pass; length first."""
    import torch

    generator = torch.Generator(device=device).manual_seed(seed)
    rows = shape.batch_size, shape.seq_len, shape.heads
    keys, values = (*rows, shape.head_dim), (*rows, shape.value_dim)
    sizes = [keys, keys, values, rows, rows, *[values] * shape.is_backward]
    return [torch.randn(size, generator=generator, device=device) for size in sizes]
