"""Text on which recipes are trained, and the check that they learn: the loss on held-out text before and after.

Token batches are windows of the shipped text, all different, the same for every variant: the loss on one constant batch
falls with any recipe. Without a tokenizer the ids come from a seeded generator, which the record states.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarker.checkpoints.files import shipped_text
from benchmarker.core.console import Terminal
from benchmarker.workloads.finetune.record import Learned
from benchmarker.workloads.finetune.spec import FinetunePoint
from benchmarker.workloads.finetune.trainee import Trainee
from benchmarker.workloads.training.training_step import TrainingStep

if TYPE_CHECKING:
    from torch import Tensor

TEXT = "calibration.txt"
BATCHES = 8
BASE_LOSS_WINDOWS = 256, 4, 2
"""Length, batch size and batches of the tokens on which the first loss is compared with the unquantized model's."""
HELD_OUT_SHARE = 0.1
"""Share of the text, at its end, that no step trains on."""
RANDOM_IDS = 2**20
"""Random ids: at least as many as the longest step reads."""


@dataclass(frozen=True)
class TokenText:
    train: tuple[int, ...]
    held_out: tuple[int, ...]
    """Empty for random ids."""
    source: str

    def batches(self, point: FinetunePoint) -> list[list[list[int]]]:
        return windows(self.train, point.seq_len, point.batch_size, BATCHES)


def token_text(tokenizer: Any | None, vocabulary: int, *, seed: int) -> TokenText:
    if tokenizer is None:
        ids = tuple(random.Random(seed).choices(range(vocabulary), k=RANDOM_IDS))
        return TokenText(ids, (), "random ids (no tokenizer)")
    ids = tuple(tokenizer.encode(shipped_text(TEXT), add_special_tokens=False))
    end = round(len(ids) * (1 - HELD_OUT_SHARE))
    return TokenText(ids[:end], ids[end:], "shipped text")


def windows(ids: Sequence[int], length: int, batch_size: int, count: int) -> list[list[list[int]]]:
    total = length * batch_size * count
    repeated = list(ids) * -(-total // len(ids))
    rows = [repeated[start : start + length] for start in range(0, total, length)]
    return [rows[start : start + batch_size] for start in range(0, len(rows), batch_size)]


def on_device(batches: Sequence[Sequence[Sequence[int]]], device: str) -> list[Tensor]:
    import torch

    return [torch.tensor(batch, device=device) for batch in batches]


def inputs_sha256(batches: Sequence[Sequence[Sequence[int]]]) -> str:
    digest = hashlib.sha256(f"{len(batches[0])} x {len(batches[0][0])}:".encode())
    for batch in batches:
        for row in batch:
            digest.update(",".join(map(str, row)).encode() + b";")
    return digest.hexdigest()


SEEDS = (0, 1, 2)
STEPS = 20
LENGTH = 128
BATCH_SIZE = 4
HELD_OUT_BATCHES = 4
LEARNING_RATES = {"full": 1e-4, "lora": 1e-3}
"""Higher than usual, since there are only twenty steps."""


def learned(trainee: Trainee, text: TokenText, terminal: Terminal) -> Learned:
    """Train once per seed and return the losses. Leaves the model with changed weights."""
    import torch

    terminal.line(f"training {len(SEEDS)} times for {STEPS} steps")
    device = trainee.device.torch_name
    _reset_adapters(trainee, SEEDS[0])
    trained = trainee.trained
    initial = [parameter.detach().clone() for parameter in trained]
    held_out = on_device(windows(text.held_out, LENGTH, BATCH_SIZE, HELD_OUT_BATCHES), device)
    before, after = mean_loss(trainee.loss, held_out), []
    learning_rate = LEARNING_RATES[trainee.recipe.train]
    for seed in SEEDS:
        with torch.no_grad():
            for parameter, value in zip(trained, initial, strict=True):
                parameter.copy_(value)
        _reset_adapters(trainee, seed)
        # Each seed starts at another position of the text.
        stretch = text.train[seed * len(text.train) // len(SEEDS) :]
        batches = iter(on_device(windows(stretch, LENGTH, BATCH_SIZE, STEPS), device))
        step = TrainingStep(
            lambda batches=batches: trainee.loss(next(batches)),  # type: ignore[misc]
            trainee.optimizer(learning_rate=learning_rate),
            trainee.device,
            parts=False,
        )
        for _ in range(STEPS):
            step()
        after.append(mean_loss(trainee.loss, held_out))
    return Learned(steps=STEPS, learning_rate=learning_rate, before=before, after=tuple(after), seeds=SEEDS)


def _reset_adapters(trainee: Trainee, seed: int) -> None:
    import torch

    torch.manual_seed(seed)
    for module in trainee.model.modules():
        if hasattr(module, "reset_lora_parameters"):
            module.reset_lora_parameters("default", init_lora_weights=True)


def mean_loss(loss: Callable[[Tensor], Tensor], batches: list[Tensor]) -> float:
    import torch

    with torch.no_grad():
        return sum(loss(batch).item() for batch in batches) / len(batches)
