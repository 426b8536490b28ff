"""Check that a recipe learns: loss on held-out text before and after some training steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from benchmarker.core.console import Terminal
from benchmarker.workloads.finetune.record import Learned
from benchmarker.workloads.finetune.token_batches import TokenText, on_device, windows
from benchmarker.workloads.finetune.trainee import Trainee
from benchmarker.workloads.training.training_step import TrainingStep

if TYPE_CHECKING:
    from torch import Tensor

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
    """Draw the adapters' initial values from a seed."""
    import torch

    torch.manual_seed(seed)
    for module in trainee.model.modules():
        if hasattr(module, "reset_lora_parameters"):
            module.reset_lora_parameters("default", init_lora_weights=True)


def mean_loss(loss: Callable[[Tensor], Tensor], batches: list[Tensor]) -> float:
    """Return the mean loss over batches of equal size, without a graph."""
    import torch

    with torch.no_grad():
        losses = [loss(batch).item() for batch in batches]
    return float(sum(losses) / len(losses))
