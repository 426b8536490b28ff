"""A small language model around a mixer: pre-norm blocks of the mixer and a feed-forward, learned positions.

    x += mixer(norm(x));  x += W2 gelu(W1 norm(x))

All mixers have the same projections to heads * head_dim and back. The gated ones add a decay and a strength for each
head, and the mixers whose outputs are sums have them scaled to a root mean square of 1, without weights. With
`match: parameters` the feed-forward makes up for that, so that every model has the parameters of the softmax model
whose feed-forward is 4 times as wide as the model.

Weights are float32; in 16-bit types the products run under autocast, as in training.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarker.workloads.mixers.demand import demand_of
from benchmarker.workloads.mixers.inputs import GATE_OFFSET
from benchmarker.workloads.mixers.matching import CONVOLUTION, mlp_width
from benchmarker.workloads.mixers.spec import MixersPoint, MixersSubject, Shape, shape_of
from benchmarker.workloads.mixers.variants.base import LINEAR, Implementation

if TYPE_CHECKING:
    from benchmarker.workloads.mixers.record import MixersDemand


class MixerLayer(nn.Module):
    """Projections, a short convolution where it is asked for, the mixer, and the projection back."""

    def __init__(self, implementation: Implementation, subject: MixersSubject, shape: Shape, where: str) -> None:
        super().__init__()
        self._mixer, self._shape, self._layout = implementation.mixer, shape, implementation.layout
        self._operation = implementation.open(shape, where)
        self._widths = [shape.heads * size for size in (shape.head_dim, shape.head_dim, shape.value_dim)]
        self.inward = nn.Linear(subject.block.hidden, sum(self._widths), bias=False)
        self.outward = nn.Linear(self._widths[2], subject.block.hidden, bias=False)
        if self._mixer.is_gated:
            self.gates = nn.Linear(subject.block.hidden, 2 * shape.heads)
        self.convolution = (
            nn.Conv1d(sum(self._widths), sum(self._widths), CONVOLUTION, groups=sum(self._widths), bias=False)
            if subject.block.short_conv
            else None
        )

    def forward(self, hidden: Tensor) -> Tensor:
        together = self.inward(hidden)
        if self.convolution is not None:
            earlier = functional.pad(together.transpose(1, 2), (CONVOLUTION - 1, 0))
            together = functional.silu(self.convolution(earlier).transpose(1, 2))
        query, key, value = (
            part.unflatten(-1, (self._shape.heads, -1)) for part in together.split(self._widths, dim=-1)
        )
        arguments = [self._scaled(query), self._scaled(key), value]
        if self._mixer.is_gated:
            decay, strength = self.gates(hidden).float().chunk(2, dim=-1)
            arguments += [functional.logsigmoid(decay + GATE_OFFSET), strength.sigmoid()]
        dtype = getattr(torch, self._shape.dtype)
        # Only the logarithms of the decays stay in float32.
        arguments = [part if number == 3 else part.to(dtype) for number, part in enumerate(arguments)]
        if self._layout == "heads first":
            arguments = [part.transpose(1, 2).contiguous() for part in arguments]
        with self._operation.around():
            output = self._operation.call(*arguments)
        if self._layout == "heads first":
            output = output.transpose(1, 2)
        if self._mixer.state_products is not None:
            output = functional.rms_norm(output.float(), output.shape[-1:])
        projected: Tensor = self.outward(output.flatten(-2))
        return projected

    def _scaled(self, tensor: Tensor) -> Tensor:
        if self._mixer.has_unit_keys:
            return functional.normalize(tensor.float(), dim=-1)
        is_mapped = self._mixer is LINEAR and self._shape.feature_map == "elu"
        return functional.elu(tensor) + 1 if is_mapped else tensor


class SmallModel(nn.Module):
    """Tokens in, [batch, length]; logits out, [batch, length, vocabulary]."""

    def __init__(
        self, implementation: Implementation, subject: MixersSubject, shape: Shape, vocabulary: int, where: str
    ) -> None:
        super().__init__()
        block = subject.block
        width = mlp_width(implementation.mixer, subject)
        self.tokens = nn.Embedding(vocabulary, block.hidden)
        self.positions = nn.Embedding(shape.seq_len, block.hidden)
        self.mixers = nn.ModuleList(MixerLayer(implementation, subject, shape, where) for _ in range(block.layers))
        self.feeds = nn.ModuleList(
            nn.Sequential(
                nn.RMSNorm(block.hidden),
                nn.Linear(block.hidden, width, bias=False),
                nn.GELU(),
                nn.Linear(width, block.hidden, bias=False),
            )
            for _ in range(block.layers)
        )
        self.norms = nn.ModuleList(nn.RMSNorm(block.hidden) for _ in range(block.layers))
        self.last = nn.RMSNorm(block.hidden)
        self.head = nn.Linear(block.hidden, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for norm, mixer, feed in zip(self.norms, self.mixers, self.feeds, strict=True):
            hidden = hidden + mixer(norm(hidden))
            hidden = hidden + feed(hidden)
        logits: Tensor = self.head(self.last(hidden))
        return logits


def make_model(
    implementation: Implementation, subject: MixersSubject, shape: Shape, where: str, *, vocabulary: int, seed: int
) -> SmallModel:
    """A model with fresh weights, the same for one seed on every device."""
    torch.manual_seed(seed)
    return SmallModel(implementation, subject, shape, vocabulary, where).to(where)


def autocast(shape: Shape, where: str) -> AbstractContextManager[Any]:
    """What products run in."""
    if shape.dtype == "float32":
        return nullcontext()
    return torch.autocast(where.split(":")[0], dtype=getattr(torch, shape.dtype))


def training_demand(implementation: Implementation, subject: MixersSubject, point: MixersPoint) -> MixersDemand:
    """Operations of one training step, 6 a weight of a product and token, and those of the mixers. Bytes: each weight
    is read twice and its gradient written; AdamW reads weight, gradient and two moments, and writes three of them."""
    from benchmarker.workloads.mixers.matching import parameters_of

    shape = shape_of(subject, point)
    layer = demand_of(implementation.mixer, shape._replace(mode="forward_backward"))
    counted = parameters_of(implementation.mixer, subject, subject.block.vocabulary, shape.seq_len)
    embedded = (subject.block.vocabulary + shape.seq_len) * subject.block.hidden
    mixers = layer.flops * subject.block.layers
    return layer.model_copy(
        update={
            "forward_flops": 2 * (counted - embedded) * shape.tokens + layer.forward_flops * subject.block.layers,
            "flops": 6 * (counted - embedded) * shape.tokens + mixers,
            "bytes": 10 * 4 * counted,
            "mixer_flops": mixers,
        }
    )
