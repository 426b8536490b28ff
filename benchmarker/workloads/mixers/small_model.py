"""Small language models with a mixer, their timed training step, and the tasks on which they are trained and judged.

    x += mixer(norm(x));  x += W2 gelu(W1 norm(x))

All mixers have the same projections to heads * head_dim and back. Gated mixers add a decay and a strength per head. A
mixer whose outputs are not averages scales them to a root mean square of 1, without weights. With `match: parameters`,
the width of the MLP is chosen so that every model has as many parameters as the softmax model. Position embeddings are
learned. Weights are float32; for 16-bit types the products run under autocast, as usual in training.

mqar, multi-query associative recall, follows Arora et al., "Zoology" (arXiv 2312.04927): pairs of a key and a value,
then each key again at a random position, where the model must predict its value. Keys and values are different tokens,
drawn at random for every sequence, so that the model cannot memorize pairs. copy: tokens, then the same tokens again.
bytes: the shipped evaluation text, nine tenths for training and the last tenth held out. With the same seed, all mixers
see the same sequences in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarker.core.errors import UnsupportedError
from benchmarker.hardware.device import Device
from benchmarker.schema.record import Missing
from benchmarker.workloads.mixers import mixer as mixers
from benchmarker.workloads.mixers import spec
from benchmarker.workloads.mixers.mixer import MixerImplementation
from benchmarker.workloads.mixers.record import BlockFacts, MixersDemand, TaskScore
from benchmarker.workloads.operation.record import OperationSample, PassMemory
from benchmarker.workloads.operation.spec import LengthPoint
from benchmarker.workloads.training_step import TrainingStep, autocast

Batch = tuple[Tensor, Tensor]
"""Tokens and labels, [batch, length]. The label of a position is the token to predict there."""
CONVOLUTION = 4  # Positions of the short convolution.
MLP_FACTOR = 4  # Width of the softmax model's MLP divided by the model's width.


def mixer_parameters(mixer: mixers.Mixer, subject: spec.MixersSubject) -> int:
    """Return the number of parameters in one layer's mixer: projections, gates, and convolution."""
    value_dim, hidden = subject.value_dim or subject.head_dim, subject.block.hidden
    inner = subject.heads * (2 * subject.head_dim + value_dim)
    gates = 2 * subject.heads * (hidden + 1) if mixer is mixers.GATED_DELTA else 0
    convolution = CONVOLUTION * inner if subject.block.short_conv else 0
    return hidden * inner + subject.heads * value_dim * hidden + gates + convolution


def mlp_width(mixer: mixers.Mixer, subject: spec.MixersSubject) -> int:
    hidden = subject.block.hidden
    if subject.block.match == "width":
        return MLP_FACTOR * hidden
    missing = mixer_parameters(mixers.SOFTMAX, subject) - mixer_parameters(mixer, subject)
    return max(1, MLP_FACTOR * hidden + round(missing / (2 * hidden)))


def parameters_of(mixer: mixers.Mixer, subject: spec.MixersSubject, vocabulary: int, length: int) -> int:
    """Return the number of all parameters: embeddings of tokens and positions, blocks, last norm, and head."""
    hidden = subject.block.hidden
    layer = mixer_parameters(mixer, subject) + 2 * hidden * mlp_width(mixer, subject) + 2 * hidden
    return subject.block.layers * layer + (2 * vocabulary + length + 1) * hidden


def block_facts(mixer: mixers.Mixer, subject: spec.MixersSubject, length: int) -> BlockFacts:
    vocabulary = subject.block.vocabulary
    parameters = parameters_of(mixer, subject, vocabulary, length)
    return BlockFacts(
        parameters=parameters,
        mixer_parameters=mixer_parameters(mixer, subject),
        mlp_width=mlp_width(mixer, subject),
        residual=parameters / parameters_of(mixers.SOFTMAX, subject, vocabulary, length) - 1,
        short_conv=subject.block.short_conv,
    )


def training_demand(mixer: mixers.Mixer, subject: spec.MixersSubject, point: LengthPoint) -> MixersDemand:
    """Return FLOPs and bytes of one training step.

    FLOPs: 6 per token and weight of a matrix product, and the FLOPs of the mixers. Bytes: each weight is read twice and
    its gradient written; AdamW reads weight, gradient and two moments, and writes weight and moments.
    """
    shape, block = spec.shape_of(subject, point), subject.block
    layer = mixers.demand_of(mixer, shape)
    parameters = parameters_of(mixer, subject, block.vocabulary, shape.seq_len)
    products = (parameters - (block.vocabulary + shape.seq_len) * block.hidden) * shape.tokens
    return MixersDemand(
        forward_flops=2 * products + layer.forward_flops * block.layers,
        flops=6 * products + layer.flops * block.layers,
        bytes=10 * 4 * parameters,
        state_floats=layer.state_floats,
        mixer_flops=layer.flops * block.layers,
    )


class MixerLayer(nn.Module):
    def __init__(
        self, implementation: MixerImplementation, subject: spec.MixersSubject, shape: spec.MixerShape, device: str
    ) -> None:
        super().__init__()
        self._mixer, self._shape = implementation.mixer, shape
        self._is_heads_first = implementation.layout == "heads first"
        self._operation = implementation.open(shape, device)
        self._widths = [shape.heads * size for size in (shape.head_dim, shape.head_dim, shape.value_dim)]
        self._has_convolution = subject.block.short_conv
        inner, hidden = sum(self._widths), subject.block.hidden
        self.inward = nn.Linear(hidden, inner, bias=False)
        self.outward = nn.Linear(self._widths[2], hidden, bias=False)
        if self._mixer is mixers.GATED_DELTA:
            self.gates = nn.Linear(hidden, 2 * shape.heads)
        if self._has_convolution:
            self.convolution = nn.Conv1d(inner, inner, CONVOLUTION, groups=inner, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        projected = self.inward(hidden)
        if self._has_convolution:
            padded = functional.pad(projected.transpose(1, 2), (CONVOLUTION - 1, 0))
            projected = functional.silu(self.convolution(padded).transpose(1, 2))
        query, key, value = (
            tensor.unflatten(-1, (self._shape.heads, -1)) for tensor in projected.split(self._widths, dim=-1)
        )
        arguments = [
            mixers.scaled(query, self._mixer, self._shape),
            mixers.scaled(key, self._mixer, self._shape),
            value,
        ]
        if self._mixer is mixers.GATED_DELTA:
            decay, strength = self.gates(hidden).float().chunk(2, dim=-1)
            arguments += [functional.logsigmoid(decay + mixers.GATE_OFFSET), strength.sigmoid()]
        dtype = getattr(torch, self._shape.dtype)
        # The log decays (argument 3) remain in float32.
        arguments = [tensor if number == 3 else tensor.to(dtype) for number, tensor in enumerate(arguments)]
        if self._is_heads_first:
            arguments = [tensor.transpose(1, 2).contiguous() for tensor in arguments]
        with self._operation.around():
            output = self._operation.call(*arguments)
        output = output.transpose(1, 2) if self._is_heads_first else output
        if self._mixer is not mixers.SOFTMAX:
            output = functional.rms_norm(output.float(), output.shape[-1:])
        result: Tensor = self.outward(output.flatten(-2))
        return result


def _feed_forward(hidden: int, width: int) -> nn.Module:
    first, last = nn.Linear(hidden, width, bias=False), nn.Linear(width, hidden, bias=False)
    return nn.Sequential(nn.RMSNorm(hidden), first, nn.GELU(), last)


class SmallModel(nn.Module):
    """Language model: tokens [batch, length] to logits [batch, length, vocabulary]. Equal seeds give equal weights on
    every device."""

    def __init__(
        self,
        implementation: MixerImplementation,
        subject: spec.MixersSubject,
        shape: spec.MixerShape,
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
        self.feeds = nn.ModuleList(_feed_forward(hidden, width) for _ in layers)
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


def _step_of(
    model: SmallModel, next_batch: Callable[[], Batch], subject: spec.MixersSubject, device: Device
) -> TrainingStep:
    name = device.torch_name

    def loss() -> Tensor:
        tokens, labels = next_batch()
        with autocast(name, subject.dtype):
            logits = model(tokens.to(name))
        return functional.cross_entropy(logits.float().flatten(0, 1), labels.to(name).flatten())

    optimizer = torch.optim.AdamW(model.parameters(), lr=subject.tasks.learning_rate)
    return TrainingStep(loss, optimizer, device, times_parts=False)


class ModelStep:
    """Callable that times one training step: forward, backward and AdamW on random tokens."""

    def __init__(
        self, implementation: MixerImplementation, subject: spec.MixersSubject, point: LengthPoint, device: Device
    ) -> None:
        name, vocabulary, seed = device.torch_name, subject.block.vocabulary, subject.seed
        model = SmallModel(
            implementation, subject, spec.shape_of(subject, point), name, vocabulary=vocabulary, seed=seed
        )
        size = point.batch_size, point.seq_len + 1
        tokens = torch.randint(vocabulary, size, generator=torch.Generator().manual_seed(seed)).to(name)
        self._step = _step_of(model, lambda: (tokens[:, :-1], tokens[:, 1:]), subject, device)

    def __call__(self) -> OperationSample:
        return OperationSample(latency_s=self._step().latency_s)

    def passes(self) -> PassMemory:
        """Run an untimed step; return the peak bytes of its passes, minus weights and optimizer state."""
        memory = self._step.memory().model_dump()
        if (before := memory["before_bytes"]) is None:
            return PassMemory()
        peaks = {name: memory[name] - before for name in ("forward_peak_bytes", "backward_peak_bytes")}
        return PassMemory(kept_bytes=memory["kept_bytes"], **peaks)


IGNORED = -100  # Label of a position without a prediction, as in torch's cross_entropy.
HELD_OUT_SEED = 10**6  # Number that is added to the seed for held-out data.
HELD_OUT_BATCHES = 8
BYTES = 256
MAX_EPOCHS = 4
"""Maximum number of passes over the text. Up to four passes are almost as good as new text, later passes are worse
(Muennighoff et al., arXiv 2305.16264); after 22, the models of configs/mixers-block.yaml were overconfident."""


class Setting(NamedTuple):
    task: spec.TaskName
    size: int

    def point(self, tasks: spec.MixersTasks) -> LengthPoint:
        length = {"mqar": 8, "copy": 2, "bytes": 1}[self.task] * self.size
        return LengthPoint(length, tasks.batch_size, "training_step")

    def vocabulary(self, tasks: spec.MixersTasks) -> int:
        return BYTES if self.task == "bytes" else tasks.vocabulary

    def steps(self, tasks: spec.MixersTasks) -> int:
        """Return the number of training steps; for the task bytes, at most MAX_EPOCHS passes over the text."""
        if self.task != "bytes":
            return tasks.steps
        most = MAX_EPOCHS * spec.training_bytes() // (tasks.batch_size * self.size)
        return max(1, min(tasks.steps, most))

    def chance(self, tasks: spec.MixersTasks) -> float:
        return {"mqar": 1 / self.size, "copy": 1 / (tasks.vocabulary - 1), "bytes": 0.0}[self.task]


def settings_of(tasks: spec.MixersTasks) -> list[Setting]:
    sizes = {"mqar": tasks.pairs, "copy": tasks.copied, "bytes": (tasks.text_len,)}
    return [Setting(name, size) for name in tasks.names for size in sizes[name]]


def make_batch(
    setting: Setting, tasks: spec.MixersTasks, generator: torch.Generator, *, held_out: bool = False
) -> Batch:
    if setting.task == "mqar":
        return _recall_batch(setting.size, tasks, generator)
    if setting.task == "bytes":
        text, border = torch.frombuffer(bytearray(spec.shipped_bytes()), dtype=torch.uint8), spec.training_bytes()
        section = text[border:] if held_out else text[:border]
        starts = torch.randint(len(section) - setting.size, (tasks.batch_size,), generator=generator)
        windows = section[starts[:, None] + torch.arange(setting.size + 1)]
        return windows[:, :-1].long(), windows[:, 1:].long()
    first = 1 + torch.randint(tasks.vocabulary - 1, (tasks.batch_size, setting.size), generator=generator)
    tokens = torch.cat([first, torch.zeros_like(first[:, :1]), first[:, :-1]], dim=1)
    return tokens, torch.cat([torch.full_like(first, IGNORED), first], dim=1)


def _recall_batch(pairs: int, tasks: spec.MixersTasks, generator: torch.Generator) -> Batch:
    rows, half = tasks.batch_size, tasks.vocabulary // 2
    keys = 1 + torch.rand(rows, half - 1, generator=generator).argsort(-1)[:, :pairs]
    values = half + torch.randint(tasks.vocabulary - half, (rows, pairs), generator=generator)
    tokens = torch.zeros(rows, 8 * pairs, dtype=torch.long)
    labels = torch.full_like(tokens, IGNORED)
    tokens[:, : 2 * pairs] = torch.stack([keys, values], dim=-1).flatten(1)
    positions = 2 * pairs + torch.rand(rows, 6 * pairs, generator=generator).argsort(-1)[:, :pairs]
    return tokens.scatter(1, positions, keys), labels.scatter(1, positions, values)


def train(
    implementation: MixerImplementation, subject: spec.MixersSubject, setting: Setting, seed: int, device: Device
) -> TaskScore:
    tasks, name, steps = subject.tasks, device.torch_name, setting.steps(subject.tasks)
    shape, vocabulary = spec.shape_of(subject, setting.point(tasks)), setting.vocabulary(tasks)
    model = SmallModel(implementation, subject, shape, name, vocabulary=vocabulary, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    step = _step_of(model, lambda: make_batch(setting, tasks, generator), subject, device)
    for _ in range(steps):
        step()
    total = right = 0
    nats = 0.0
    held_out = torch.Generator().manual_seed(HELD_OUT_SEED + seed)
    with torch.no_grad(), autocast(name, shape.dtype):
        for _ in range(HELD_OUT_BATCHES):
            tokens, labels = make_batch(setting, tasks, held_out, held_out=True)
            logits, expected = model(tokens.to(name)).float().flatten(0, 1), labels.to(name).flatten()
            total += int((expected != IGNORED).sum())
            right += int((logits.argmax(-1) == expected).sum())
            nats += float(functional.cross_entropy(logits, expected, reduction="sum"))
    return TaskScore(
        **setting._asdict(),
        seed=seed,
        steps=steps,
        asked=total,
        right=right,
        chance=setting.chance(tasks),
        bits=nats / total / math.log(2),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
    )


def scores(
    implementation: MixerImplementation, subject: spec.MixersSubject, device: Device, report: Callable[[str], object]
) -> dict[str, Any]:
    """Train on every task and size, once per seed; return the fields `tasks` and `no_tasks` of the record."""
    results: list[TaskScore] = []
    missing = None
    try:
        for setting, seed in product(settings_of(subject.tasks), range(subject.tasks.seeds)):
            implementation.check_available(spec.shape_of(subject, setting.point(subject.tasks)), device.kind)
            with mixers.refused_compiler_is_unsupported():
                score = train(implementation, subject, setting, subject.seed + seed, device)
            results.append(score)
            report(
                f"  {setting.task} {setting.size}, seed {seed}: {score.right:,} of {score.asked:,} correct, "
                f"{score.bits:.3f} bits per token"
            )
    except UnsupportedError as error:
        missing = Missing(error_kind=error.kind, reason=str(error))
    return {"tasks": tuple(results), "no_tasks": missing}
