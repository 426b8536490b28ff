"""Tasks on which small models are trained, and judged on held-out data.

mqar, multi-query associative recall, follows Arora et al., "Zoology" (arXiv 2312.04927): pairs of a key and a value,
then each key once more at a random position, where the model must predict the value. Keys and values are different
tokens, drawn anew for every sequence, so that nothing can be memorized. copy: tokens, then the same tokens again.
bytes: the shipped evaluation text, nine tenths for training and the last tenth held out.

For one seed, every mixer sees the same sequences in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from benchmarker.core.errors import UnsupportedError
from benchmarker.schema.record import Missing
from benchmarker.workloads.mixers.mixer import MixerImplementation
from benchmarker.workloads.mixers.mixer_variants import refused_compiler_is_unsupported
from benchmarker.workloads.mixers.record import TaskScore
from benchmarker.workloads.mixers.small_model import SmallModel
from benchmarker.workloads.mixers.spec import (
    MixersSubject,
    MixersTasks,
    TaskName,
    shape_of,
    shipped_bytes,
    training_bytes,
)
from benchmarker.workloads.operation.spec import LengthPoint
from benchmarker.workloads.training.training_step import TrainingStep, autocast

if TYPE_CHECKING:
    from benchmarker.hardware.device import Device

IGNORED = -100
"""Label of a position without a prediction, as in torch's cross_entropy."""
HELD_OUT_SEED = 10**6
"""Offset of the seed of held-out data."""
HELD_OUT_BATCHES = 8
BYTES = 256
MAX_EPOCHS = 4
"""Passes over the text. Up to four teach almost as much as new text, later ones ever less (Muennighoff et al., arXiv
2305.16264); after 22 passes the models of configs/mixers-block.yaml were overconfident."""


class Batch(NamedTuple):
    """Tokens and labels, [batch, length]. The label of a position is the token to predict there."""

    tokens: Tensor
    labels: Tensor


class Setting(NamedTuple):
    task: TaskName
    size: int

    def length(self) -> int:
        return {"mqar": 8 * self.size, "copy": 2 * self.size, "bytes": self.size}[self.task]

    def vocabulary(self, tasks: MixersTasks) -> int:
        return BYTES if self.task == "bytes" else tasks.vocabulary

    def steps(self, tasks: MixersTasks) -> int:
        """Return the training steps; for text, at most MAX_EPOCHS passes."""
        if self.task != "bytes":
            return tasks.steps
        most = MAX_EPOCHS * training_bytes() // (tasks.batch_size * self.size)
        return max(1, min(tasks.steps, most))

    def chance(self, tasks: MixersTasks) -> float:
        return {"mqar": 1 / self.size, "copy": 1 / (tasks.vocabulary - 1), "bytes": 0.0}[self.task]


def settings_of(tasks: MixersTasks) -> list[Setting]:
    sizes = {"mqar": tasks.pairs, "copy": tasks.copied, "bytes": (tasks.text_len,)}
    return [Setting(name, size) for name in tasks.names for size in sizes[name]]


def make_batch(setting: Setting, tasks: MixersTasks, generator: torch.Generator, *, held_out: bool = False) -> Batch:
    if setting.task == "bytes":
        return _bytes_batch(setting.size, tasks.batch_size, generator, held_out=held_out)
    return (_recall_batch if setting.task == "mqar" else _copy_batch)(setting.size, tasks, generator)


def _recall_batch(pairs: int, tasks: MixersTasks, generator: torch.Generator) -> Batch:
    rows, half = tasks.batch_size, tasks.vocabulary // 2
    keys = 1 + torch.rand(rows, half - 1, generator=generator).argsort(-1)[:, :pairs]
    values = half + torch.randint(tasks.vocabulary - half, (rows, pairs), generator=generator)
    tokens = torch.zeros(rows, 8 * pairs, dtype=torch.long)
    labels = torch.full_like(tokens, IGNORED)
    tokens[:, : 2 * pairs] = torch.stack([keys, values], dim=-1).flatten(1)
    positions = 2 * pairs + torch.rand(rows, 6 * pairs, generator=generator).argsort(-1)[:, :pairs]
    return Batch(tokens.scatter(1, positions, keys), labels.scatter(1, positions, values))


def _copy_batch(count: int, tasks: MixersTasks, generator: torch.Generator) -> Batch:
    first = 1 + torch.randint(tasks.vocabulary - 1, (tasks.batch_size, count), generator=generator)
    tokens = torch.cat([first, torch.zeros_like(first[:, :1]), first[:, :-1]], dim=1)
    return Batch(tokens, torch.cat([torch.full_like(first, IGNORED), first], dim=1))


def _bytes_batch(length: int, rows: int, generator: torch.Generator, *, held_out: bool) -> Batch:
    text, border = torch.frombuffer(bytearray(shipped_bytes()), dtype=torch.uint8), training_bytes()
    section = text[border:] if held_out else text[:border]
    starts = torch.randint(len(section) - length, (rows,), generator=generator)
    windows = section[starts[:, None] + torch.arange(length + 1)]
    return Batch(windows[:, :-1].long(), windows[:, 1:].long())


def train(
    implementation: MixerImplementation, subject: MixersSubject, setting: Setting, seed: int, device: Device
) -> TaskScore:
    tasks, name = subject.tasks, device.torch_name
    shape = shape_of(subject, _training_point(subject, setting))
    vocabulary = setting.vocabulary(tasks)
    model = SmallModel(implementation, subject, shape, name, vocabulary=vocabulary, seed=seed)
    generator = torch.Generator().manual_seed(seed)

    def loss() -> Tensor:
        batch = make_batch(setting, tasks, generator)
        with autocast(name, shape.dtype):
            logits = model(batch.tokens.to(name))
        return functional.cross_entropy(logits.float().flatten(0, 1), batch.labels.to(name).flatten())

    step = TrainingStep(loss, torch.optim.AdamW(model.parameters(), lr=tasks.learning_rate), device, times_parts=False)
    steps = setting.steps(tasks)
    for _ in range(steps):
        step()
    total = right = 0
    nats = 0.0
    held_out = torch.Generator().manual_seed(HELD_OUT_SEED + seed)
    with torch.no_grad(), autocast(name, shape.dtype):
        for _ in range(HELD_OUT_BATCHES):
            tokens, labels = make_batch(setting, tasks, held_out, held_out=True)
            logits, expected = model(tokens.to(name)).float().flatten(0, 1), labels.to(name).flatten()
            is_labelled = expected != IGNORED
            total += int(is_labelled.sum())
            right += int((logits.argmax(-1) == expected)[is_labelled].sum())
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


def _training_point(subject: MixersSubject, setting: Setting) -> LengthPoint:
    return LengthPoint(setting.length(), subject.tasks.batch_size, "training_step")


def scores(
    implementation: MixerImplementation, subject: MixersSubject, device: Device, report: Callable[[str], object]
) -> dict[str, Any]:
    """Train on every task in every size, once per seed; return fields of the record."""
    results: list[TaskScore] = []
    missing: Missing | None = None
    try:
        for setting, seed in product(settings_of(subject.tasks), range(subject.tasks.seeds)):
            implementation.check_available(shape_of(subject, _training_point(subject, setting)), device.kind)
            with refused_compiler_is_unsupported():
                score = train(implementation, subject, setting, subject.seed + seed, device)
            results.append(score)
            report(
                f"  {setting.task} {setting.size}, seed {seed}: {score.right:,} of {score.asked:,} correct, "
                f"{score.bits:.3f} bits per token"
            )
    except UnsupportedError as error:
        missing = Missing(error_kind=error.kind, reason=str(error))
    return {"tasks": tuple(results), "no_tasks": missing}
