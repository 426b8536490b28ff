"""The linear mixers in torch alone: chunks of 64 positions, a product of matrices in each, the state between them.

For decays a and strengths b, with G_i the sum of log a from the chunk's beginning to position i, and S0 the state at
its beginning (Yang et al., "Gated Delta Networks", arXiv 2412.06464, section 3.3; the chunks of linear attention are of
Hua et al., arXiv 2202.10447):

    L_ij = exp(G_i - G_j) for j <= i, otherwise 0
    U    = b v, or for the delta rule (I + lower(b k k^T L))^-1 (b v - b exp(G) k S0)
    o    = (q k^T L) U + exp(G) q S0                            all over sqrt(head_dim)
    S    = exp(G_last) S0 + (exp(G_last - G) k)^T U

It is a form of reference: products run in float32 for the 16-bit types, and nothing is fused.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from benchmarker.workloads.mixers.spec import Shape
from benchmarker.workloads.mixers.variants.base import LINEAR, Mixer, Operation

if TYPE_CHECKING:
    import torch
    from torch import Tensor

CHUNK = 64
TINY = 1e-10
"""Added to the sum of the weights, as fla does."""


def open_chunked(mixer: Mixer) -> Callable[[Shape, str], Operation]:
    """An opener for one mixer."""

    def open_mixer(shape: Shape, where: str) -> Operation:
        decay = None if mixer.is_gated else head_decay(mixer, shape.heads, where)
        is_normalized = shape.normalize and mixer is LINEAR

        def mix(
            query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor | None = None, strength: Tensor | None = None
        ) -> Tensor:
            query, key, wide = (part.float() if part.dtype.itemsize < 4 else part for part in (query, key, value))
            if log_decay is None and decay is not None:
                log_decay = decay.to(query.dtype)[:, None].expand(query.shape[:3])
            if strength is not None:
                strength = strength.to(query.dtype)
            output = chunked(
                query, key, wide, log_decay, strength, is_delta=mixer.is_delta, is_normalized=is_normalized
            )
            return output.to(value.dtype)

        return Operation(mix)

    return open_mixer


def head_decay(mixer: Mixer, heads: int, where: str | torch.device) -> Tensor | None:
    """The logarithm of retention's fixed decay of each head, float64; None for a mixer that forgets nothing."""
    import torch

    if mixer.name != "retention":
        return None
    return torch.log1p(-(2.0 ** (-5.0 - torch.arange(heads, dtype=torch.float64, device=where))))


def chunked(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor | None,
    strength: Tensor | None,
    *,
    is_delta: bool,
    is_normalized: bool = False,
) -> Tensor:
    """The output, [.., length, value_dim], of tensors [.., length, numbers] of any length.

    Args:
        log_decay: [.., length]; None where nothing is forgotten.
        strength: [.., length]; None where every token counts in full.
    """
    import torch
    from torch.nn.functional import pad

    length, scale = query.shape[-2], 1 / math.sqrt(query.shape[-1])
    missing = -length % CHUNK
    if is_normalized:
        value = torch.cat([value, torch.ones_like(value[..., :1])], dim=-1)
    rows = [pad(part, (0, 0, 0, missing)).unflatten(-2, (-1, CHUNK)) for part in (query * scale, key, value)]
    log_decay = query.new_zeros(query.shape[:-1]) if log_decay is None else log_decay.to(query.dtype)
    total = pad(log_decay, (0, missing)).unflatten(-1, (-1, CHUNK)).cumsum(-1)
    if strength is not None:
        strength = pad(strength, (0, missing)).unflatten(-1, (-1, CHUNK))[..., None]
    state = query.new_zeros(*query.shape[:-2], key.shape[-1], value.shape[-1])
    outputs = []
    for number in range(total.shape[-2]):
        part = [tensor[..., number, :, :] for tensor in rows]
        here = None if strength is None else strength[..., number, :, :]
        output, state = _one_chunk(part, total[..., number, :], here, state, is_delta=is_delta)
        outputs.append(output)
    output = torch.cat(outputs, dim=-2)[..., :length, :]
    return output[..., :-1] / (output[..., -1:] + TINY) if is_normalized else output


def _one_chunk(
    rows: list[Tensor], total: Tensor, strength: Tensor | None, state: Tensor, *, is_delta: bool
) -> tuple[Tensor, Tensor]:
    """Output and state of one chunk: rows are queries, keys and values."""
    import torch

    query, key, value = rows
    # Above the diagonal the difference is positive and may overflow: it is taken out before exp.
    between = (total[..., :, None] - total[..., None, :]).tril().exp().tril()
    since, until = total.exp()[..., None], (total[..., -1:] - total).exp()[..., None]
    update = value if strength is None else strength * value
    if is_delta:
        scaled_key = key if strength is None else strength * key
        lower = (scaled_key @ key.transpose(-1, -2) * between).tril(-1)
        update = torch.linalg.solve_triangular(
            lower, update - (since * scaled_key) @ state, upper=False, unitriangular=True
        )
    output = (query @ key.transpose(-1, -2) * between) @ update + (since * query) @ state
    return output, total[..., -1:, None].exp() * state + (until * key).transpose(-1, -2) @ update
