"""What a run does once its steps are timed: it profiles one, and sees whether the recipe learns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarker.core.console import Terminal
from benchmarker.core.errors import BenchmarkerError, first_line
from benchmarker.hardware.device import Device, kind_of
from benchmarker.measure.profile import profile_step
from benchmarker.profiling.table import profile_table
from benchmarker.schema.record import Missing
from benchmarker.workloads.finetune.record import Learned
from benchmarker.workloads.finetune.spec import FinetuneJob, FinetunePoint
from benchmarker.workloads.finetune.text import TokenText, on_device, windows
from benchmarker.workloads.finetune.trainee import Trainee
from benchmarker.workloads.training.training_step import TrainingStep

if TYPE_CHECKING:
    from torch import Tensor

SEEDS = (0, 1, 2)
STEPS = 20
LEARNING_LENGTH = 128
LEARNING_BATCH = 4
HELD_OUT_BATCHES = 4
RATES = {"full": 1e-4, "lora": 1e-3}
"""Higher than usual: twenty steps are few."""


def profiled(
    job: FinetuneJob, step: TrainingStep, point: FinetunePoint, device: Device, path: Path, terminal: Terminal
) -> dict[str, Any]:
    """One more step under the profiler, with its trace beside the record at `path`."""
    terminal.line("profiling one step")
    try:
        step.profiled()
        profile = profile_step(step.profiled, device=device, trace_path=path.with_suffix(".trace.json.gz"))
    except Exception as error:
        if not isinstance(error, BenchmarkerError) and not device.is_out_of_memory(error):
            raise
        missing = Missing(error_kind=kind_of(error, device), reason=first_line(error))
    else:
        if not job.part:
            what = f"step of {point.accumulate * point.batch_size} x {point.seq_len} tokens"
            terminal.table(profile_table(profile, what=what, limit=job.subject.profile_rows), detail=True)
        return {"profile": profile}
    # Outside the except block, whose traceback keeps the failed step's tensors alive.
    device.release()
    terminal.line(f"no profile: {missing.reason}")
    return {"no_profile": missing}


def learned(trainee: Trainee, text: TokenText, terminal: Terminal) -> Learned:
    """Loss on held-out text before and after some steps, once for each seed. The trained weights are lost."""
    import torch

    terminal.line(f"training {len(SEEDS)} times for {STEPS} steps")
    where = trainee.device.torch_name
    _restart(trainee, SEEDS[0])
    trained = trainee.trained
    first = [parameter.detach().clone() for parameter in trained]
    held_out = on_device(windows(text.held_out, LEARNING_LENGTH, LEARNING_BATCH, HELD_OUT_BATCHES), where)
    before, after = mean_loss(trainee.loss, held_out), []
    rate = RATES[trainee.recipe.train]
    for seed in SEEDS:
        with torch.no_grad():
            for parameter, value in zip(trained, first, strict=True):
                parameter.copy_(value)
        _restart(trainee, seed)
        # Another stretch of the text for each seed.
        stretch = text.train[seed * len(text.train) // len(SEEDS) :]
        batches = iter(on_device(windows(stretch, LEARNING_LENGTH, LEARNING_BATCH, STEPS), where))
        step = TrainingStep(
            lambda batches=batches: trainee.loss(next(batches)),  # type: ignore[misc]
            trainee.optimizer(learning_rate=rate),
            trainee.device,
            parts=False,
        )
        for _ in range(STEPS):
            step()
        after.append(mean_loss(trainee.loss, held_out))
    return Learned(steps=STEPS, learning_rate=rate, before=before, after=tuple(after), seeds=SEEDS)


def _restart(trainee: Trainee, seed: int) -> None:
    """Give the adapters their first values, drawn from a seed."""
    import torch

    torch.manual_seed(seed)
    for module in trainee.model.modules():
        if hasattr(module, "reset_lora_parameters"):
            module.reset_lora_parameters("default", init_lora_weights=True)


def mean_loss(loss: Callable[[Tensor], Tensor], batches: list[Tensor]) -> float:
    """Over batches of equal size, without a graph."""
    import torch

    with torch.no_grad():
        losses = [loss(batch).item() for batch in batches]
    return float(sum(losses) / len(losses))
