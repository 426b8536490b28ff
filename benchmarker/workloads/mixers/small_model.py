"""Small language model around a mixer: pre-norm blocks of mixer and MLP, learned positions.

    x += mixer(norm(x));  x += W2 gelu(W1 norm(x))

All mixers have the same projections to heads * head_dim and back. Gated mixers add a decay and a strength per head;
mixers whose outputs are sums scale them to a root mean square of 1, without weights. With `match: parameters` the width
of the MLP compensates, so that every model has the parameters of the softmax model.

Weights are float32; in 16-bit types the products run under autocast, as in training.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarker.workloads.mixers.mixer import SOFTMAX, Mixer, MixerImplementation, demand_of
from benchmarker.workloads.mixers.mixer_reference import GATE_OFFSET, scaled
from benchmarker.workloads.mixers.record import BlockFacts, MixersDemand
from benchmarker.workloads.mixers.spec import MixerShape, MixersSubject, shape_of
from benchmarker.workloads.operation.record import OperationSample, PassMemory
from benchmarker.workloads.operation.spec import LengthPoint
from benchmarker.workloads.training.training_step import TrainingStep, autocast

if TYPE_CHECKING:
    from benchmarker.hardware.device import Device

CONVOLUTION = 4
"""Positions of the short convolution."""
MLP_FACTOR = 4
"""Width of the softmax model's MLP in units of the model's width."""


def mixer_parameters(mixer: Mixer, subject: MixersSubject) -> int:
    """Return the parameters of one layer's mixer: projections, gates, and convolution."""
    value_dim = subject.value_dim or subject.head_dim
    inner = subject.heads * (2 * subject.head_dim + value_dim)
    hidden = subject.block.hidden
    gates = 2 * subject.heads * (hidden + 1) if mixer.is_gated_delta else 0
    convolution = CONVOLUTION * inner if subject.block.short_conv else 0
    return hidden * inner + subject.heads * value_dim * hidden + gates + convolution


def mlp_width(mixer: Mixer, subject: MixersSubject) -> int:
    hidden = subject.block.hidden
    if subject.block.match == "width":
        return MLP_FACTOR * hidden
    missing = mixer_parameters(SOFTMAX, subject) - mixer_parameters(mixer, subject)
    return max(1, MLP_FACTOR * hidden + round(missing / (2 * hidden)))


def parameters_of(mixer: Mixer, subject: MixersSubject, vocabulary: int, length: int) -> int:
    """Return all parameters: embeddings of tokens and positions, blocks with two norms, the last norm, the head."""
    hidden = subject.block.hidden
    layer = mixer_parameters(mixer, subject) + 2 * hidden * mlp_width(mixer, subject) + 2 * hidden
    return subject.block.layers * layer + (2 * vocabulary + length + 1) * hidden


def block_facts(mixer: Mixer, subject: MixersSubject, length: int) -> BlockFacts:
    sizes = subject.block.vocabulary, length
    parameters = parameters_of(mixer, subject, *sizes)
    return BlockFacts(
        parameters=parameters,
        mixer_parameters=mixer_parameters(mixer, subject),
        mlp_width=mlp_width(mixer, subject),
        residual=parameters / parameters_of(SOFTMAX, subject, *sizes) - 1,
        short_conv=subject.block.short_conv,
    )


def training_demand(mixer: Mixer, subject: MixersSubject, point: LengthPoint) -> MixersDemand:
    """Return FLOPs and bytes of one training step.

    FLOPs: 6 per multiplied weight and token, and those of the mixers. Bytes: each weight is read twice and its gradient
    written; AdamW reads weight, gradient and two moments, and writes weight and moments.
    """
    shape = shape_of(subject, point)
    layer = demand_of(mixer, shape._replace(mode="forward_backward"))
    parameters = parameters_of(mixer, subject, subject.block.vocabulary, shape.seq_len)
    embedded = (subject.block.vocabulary + shape.seq_len) * subject.block.hidden
    mixers = layer.flops * subject.block.layers
    return layer.model_copy(
        update={
            "forward_flops": 2 * (parameters - embedded) * shape.tokens + layer.forward_flops * subject.block.layers,
            "flops": 6 * (parameters - embedded) * shape.tokens + mixers,
            "bytes": 10 * 4 * parameters,
            "mixer_flops": mixers,
        }
    )


class MixerLayer(nn.Module):
    def __init__(
        self, implementation: MixerImplementation, subject: MixersSubject, shape: MixerShape, device: str
    ) -> None:
        super().__init__()
        self._mixer, self._shape = implementation.mixer, shape
        self._is_heads_first = implementation.layout == "heads first"
        self._operation = implementation.open(shape, device)
        self._widths = [shape.heads * size for size in (shape.head_dim, shape.head_dim, shape.value_dim)]
        inner = sum(self._widths)
        self.inward = nn.Linear(subject.block.hidden, inner, bias=False)
        self.outward = nn.Linear(self._widths[2], subject.block.hidden, bias=False)
        if self._mixer.is_gated_delta:
            self.gates = nn.Linear(subject.block.hidden, 2 * shape.heads)
        self.convolution = (
            nn.Conv1d(inner, inner, CONVOLUTION, groups=inner, bias=False) if subject.block.short_conv else None
        )

    def forward(self, hidden: Tensor) -> Tensor:
        projected = self.inward(hidden)
        if self.convolution is not None:
            padded = functional.pad(projected.transpose(1, 2), (CONVOLUTION - 1, 0))
            projected = functional.silu(self.convolution(padded).transpose(1, 2))
        query, key, value = (
            tensor.unflatten(-1, (self._shape.heads, -1)) for tensor in projected.split(self._widths, dim=-1)
        )
        arguments = [scaled(query, self._mixer, self._shape), scaled(key, self._mixer, self._shape), value]
        if self._mixer.is_gated_delta:
            decay, strength = self.gates(hidden).float().chunk(2, dim=-1)
            arguments += [functional.logsigmoid(decay + GATE_OFFSET), strength.sigmoid()]
        dtype = getattr(torch, self._shape.dtype)
        # The log decays (number 3) stay in float32.
        arguments = [tensor if number == 3 else tensor.to(dtype) for number, tensor in enumerate(arguments)]
        if self._is_heads_first:
            arguments = [tensor.transpose(1, 2).contiguous() for tensor in arguments]
        with self._operation.around():
            output = self._operation.call(*arguments)
        if self._is_heads_first:
            output = output.transpose(1, 2)
        if self._mixer.state_products is not None:
            output = functional.rms_norm(output.float(), output.shape[-1:])
        result: Tensor = self.outward(output.flatten(-2))
        return result


class SmallModel(nn.Module):
    """Language model: tokens [batch, length] to logits [batch, length, vocabulary]. One seed gives the same weights on
    every device."""

    def __init__(
        self,
        implementation: MixerImplementation,
        subject: MixersSubject,
        shape: MixerShape,
        device: str,
        *,
        vocabulary: int,
        seed: int,
    ) -> None:
        super().__init__()
        torch.manual_seed(seed)
        hidden, width = subject.block.hidden, mlp_width(implementation.mixer, subject)
        layers = range(subject.block.layers)
        self.tokens = nn.Embedding(vocabulary, hidden)
        self.positions = nn.Embedding(shape.seq_len, hidden)
        self.mixers = nn.ModuleList(MixerLayer(implementation, subject, shape, device) for _ in layers)
        self.feeds = nn.ModuleList(
            nn.Sequential(
                nn.RMSNorm(hidden),
                nn.Linear(hidden, width, bias=False),
                nn.GELU(),
                nn.Linear(width, hidden, bias=False),
            )
            for _ in layers
        )
        self.norms = nn.ModuleList(nn.RMSNorm(hidden) for _ in layers)
        self.last = nn.RMSNorm(hidden)
        self.head = nn.Linear(hidden, vocabulary, bias=False)
        self.to(device)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for norm, mixer, feed in zip(self.norms, self.mixers, self.feeds, strict=True):
            hidden = hidden + mixer(norm(hidden))
            hidden = hidden + feed(hidden)
        logits: Tensor = self.head(self.last(hidden))
        return logits


class ModelStep:
    """Timed repeat: forward, backward and AdamW's step on random tokens, with the next token as the label."""

    def __init__(
        self, implementation: MixerImplementation, subject: MixersSubject, point: LengthPoint, device: Device
    ) -> None:
        name, vocabulary, shape = device.torch_name, subject.block.vocabulary, shape_of(subject, point)
        model = SmallModel(implementation, subject, shape, name, vocabulary=vocabulary, seed=subject.seed)
        size = point.batch_size, point.seq_len + 1
        tokens = torch.randint(vocabulary, size, generator=torch.Generator().manual_seed(subject.seed)).to(name)

        def loss() -> Tensor:
            with autocast(name, shape.dtype):
                logits = model(tokens[:, :-1])
            return functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())

        optimizer = torch.optim.AdamW(model.parameters(), lr=subject.tasks.learning_rate)
        self._step = TrainingStep(loss, optimizer, device, times_parts=False)

    def __call__(self) -> OperationSample:
        return OperationSample(latency_s=self._step().latency_s)

    def passes(self) -> PassMemory:
        """Run an untimed step; return its bytes of live tensors without weights and optimizer state."""
        memory = self._step.memory()
        if memory.before_bytes is None or memory.forward_peak_bytes is None or memory.backward_peak_bytes is None:
            return PassMemory()
        forward_bytes = memory.forward_peak_bytes - memory.before_bytes
        backward_bytes = memory.backward_peak_bytes - memory.before_bytes
        return PassMemory(
            forward_peak_bytes=forward_bytes, kept_bytes=memory.kept_bytes, backward_peak_bytes=backward_bytes
        )
