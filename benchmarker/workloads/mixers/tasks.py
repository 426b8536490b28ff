"""Models trained on a task, and judged on data that they were not trained on.

mqar, multi-query associative recall, after Arora et al., "Zoology" (arXiv 2312.04927): pairs of a key and a value, then
each key once more, at a random place; the model has to tell the value. Keys and values are different tokens, and
anew in every sequence, so that nothing can be learned by heart. copy: tokens, then the same again. bytes: the shipped
text for evaluation, nine tenths to train on and the last tenth to judge by.

Every mixer sees the same sequences in the same order for one seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from benchmarker.measure.training_step import TrainingStep
from benchmarker.workloads.mixers.block import autocast, make_model
from benchmarker.workloads.mixers.record import TaskScore
from benchmarker.workloads.mixers.spec import MixersPoint, MixersSubject, MixersTasks, TaskName, shape_of
from benchmarker.workloads.mixers.task_text import shipped_bytes, trained_bytes
from benchmarker.workloads.mixers.variants.base import Implementation

if TYPE_CHECKING:
    from benchmarker.hardware.device import Device

IGNORED = -100
"""Label of a position that asks nothing, as torch's cross_entropy has it."""
JUDGED_SEED = 10**6
"""Added to a seed for the data that models are judged on."""
JUDGED_BATCHES = 8
BYTES = 256
MOST_PASSES = 4
"""Over the text. Up to four passes teach almost as much as new text, later ones ever less (Muennighoff et al., arXiv
2305.16264); after 22 passes the models of configs/mixers-block.yaml were surer than they were right."""


class Batch(NamedTuple):
    """Tokens and labels, [batch, length]. A label is what the model has to tell at its position."""

    tokens: Tensor
    labels: Tensor


class Setting(NamedTuple):
    """One task in one size."""

    task: TaskName
    size: int

    def length(self) -> int:
        """Positions of a sequence."""
        return {"mqar": 8 * self.size, "copy": 2 * self.size, "bytes": self.size}[self.task]

    def vocabulary(self, tasks: MixersTasks) -> int:
        return BYTES if self.task == "bytes" else tasks.vocabulary

    def steps(self, tasks: MixersTasks) -> int:
        """Training steps: as many as are asked for, of text no more than four passes over it."""
        if self.task != "bytes":
            return tasks.steps
        most = MOST_PASSES * trained_bytes() // (tasks.batch_size * self.size)
        return max(1, min(tasks.steps, most))

    def chance(self, tasks: MixersTasks) -> float:
        """Share that guessing gets right."""
        return {"mqar": 1 / self.size, "copy": 1 / (tasks.vocabulary - 1), "bytes": 0.0}[self.task]


def settings_of(tasks: MixersTasks) -> list[Setting]:
    """Every task in every size that is asked for."""
    sizes = {"mqar": tasks.pairs, "copy": tasks.copied, "bytes": (tasks.text_len,)}
    return [Setting(name, size) for name in tasks.names for size in sizes[name]]


def make_batch(setting: Setting, tasks: MixersTasks, generator: torch.Generator, *, judged: bool = False) -> Batch:
    """Random sequences of a task."""
    if setting.task == "bytes":
        return _bytes(setting.size, tasks.batch_size, generator, judged=judged)
    return (_recall if setting.task == "mqar" else _copy)(setting.size, tasks, generator)


def _recall(pairs: int, tasks: MixersTasks, generator: torch.Generator) -> Batch:
    rows, half = tasks.batch_size, tasks.vocabulary // 2
    keys = 1 + torch.rand(rows, half - 1, generator=generator).argsort(-1)[:, :pairs]
    values = half + torch.randint(tasks.vocabulary - half, (rows, pairs), generator=generator)
    tokens = torch.zeros(rows, 8 * pairs, dtype=torch.long)
    labels = torch.full_like(tokens, IGNORED)
    tokens[:, : 2 * pairs] = torch.stack([keys, values], dim=-1).flatten(1)
    places = 2 * pairs + torch.rand(rows, 6 * pairs, generator=generator).argsort(-1)[:, :pairs]
    return Batch(tokens.scatter(1, places, keys), labels.scatter(1, places, values))


def _copy(count: int, tasks: MixersTasks, generator: torch.Generator) -> Batch:
    """The tokens, a mark, and the tokens but for the last; from the mark on each asks for the one that comes next."""
    first = 1 + torch.randint(tasks.vocabulary - 1, (tasks.batch_size, count), generator=generator)
    tokens = torch.cat([first, torch.zeros_like(first[:, :1]), first[:, :-1]], dim=1)
    return Batch(tokens, torch.cat([torch.full_like(first, IGNORED), first], dim=1))


def _bytes(length: int, rows: int, generator: torch.Generator, *, judged: bool) -> Batch:
    text, border = torch.frombuffer(bytearray(shipped_bytes()), dtype=torch.uint8), trained_bytes()
    part = text[border:] if judged else text[:border]
    starts = torch.randint(len(part) - length, (rows,), generator=generator)
    windows = part[starts[:, None] + torch.arange(length + 1)]
    return Batch(windows[:, :-1].long(), windows[:, 1:].long())


def train(
    implementation: Implementation, subject: MixersSubject, setting: Setting, seed: int, device: Device
) -> TaskScore:
    """Train one model, and judge it."""
    tasks, where = subject.tasks, device.torch_name
    shape = shape_of(subject, MixersPoint(setting.length(), tasks.batch_size, "training_step"))
    vocabulary = setting.vocabulary(tasks)
    model = make_model(implementation, subject, shape, where, vocabulary=vocabulary, seed=seed)
    generator = torch.Generator().manual_seed(seed)

    def loss() -> Tensor:
        batch = make_batch(setting, tasks, generator)
        with autocast(shape, where):
            logits = model(batch.tokens.to(where))
        return functional.cross_entropy(logits.float().flatten(0, 1), batch.labels.to(where).flatten())

    step = TrainingStep(loss, torch.optim.AdamW(model.parameters(), lr=tasks.learning_rate), device, parts=False)
    steps = setting.steps(tasks)
    for _ in range(steps):
        step()
    total = right = 0
    nats = 0.0
    with torch.no_grad(), autocast(shape, where):
        for tokens, labels in _judged(setting, tasks, seed):
            logits, expected = model(tokens.to(where)).float().flatten(0, 1), labels.to(where).flatten()
            is_asked = expected != IGNORED
            total += int(is_asked.sum())
            right += int((logits.argmax(-1) == expected)[is_asked].sum())
            nats += float(functional.cross_entropy(logits, expected, reduction="sum"))
    return TaskScore(
        task=setting.task,
        size=setting.size,
        seed=seed,
        steps=steps,
        asked=total,
        right=right,
        chance=setting.chance(tasks),
        bits=nats / total / math.log(2),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
    )


def _judged(setting: Setting, tasks: MixersTasks, seed: int) -> Iterator[Batch]:
    generator = torch.Generator().manual_seed(JUDGED_SEED + seed)
    for _ in range(JUDGED_BATCHES):
        yield make_batch(setting, tasks, generator, judged=True)
