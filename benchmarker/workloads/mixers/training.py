"""The timed training step of a small model around a mixer, and the tasks that such models are trained on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from benchmarker.core.errors import UnsupportedError
from benchmarker.measure.training_step import TrainingStep
from benchmarker.schema.record import Missing
from benchmarker.workloads.attention.record import AttentionMemory, AttentionSample
from benchmarker.workloads.mixers.block import autocast, make_model
from benchmarker.workloads.mixers.record import TaskScore
from benchmarker.workloads.mixers.spec import MixersPoint, MixersSubject, shape_of
from benchmarker.workloads.mixers.tasks import settings_of, train
from benchmarker.workloads.mixers.variants.base import Implementation
from benchmarker.workloads.mixers.variants.fla import refused_compiler_is_unsupported
from benchmarker.workloads.mixers.variants.registry import missing_module

if TYPE_CHECKING:
    from torch import Tensor

    from benchmarker.hardware.device import Device


class ModelStep:
    """One timed repeat: forward, backward and AdamW's step on random tokens. The next token is the label."""

    def __init__(
        self, implementation: Implementation, subject: MixersSubject, point: MixersPoint, device: Device
    ) -> None:
        where, vocabulary = device.torch_name, subject.block.vocabulary
        shape = shape_of(subject, point)
        model = make_model(implementation, subject, shape, where, vocabulary=vocabulary, seed=subject.seed)
        size = point.batch_size, point.seq_len + 1
        tokens = torch.randint(vocabulary, size, generator=torch.Generator().manual_seed(subject.seed)).to(where)

        def loss() -> Tensor:
            with autocast(shape, where):
                logits = model(tokens[:, :-1])
            return functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())

        optimizer = torch.optim.AdamW(model.parameters(), lr=subject.tasks.learning_rate)
        self._step = TrainingStep(loss, optimizer, device, parts=False)

    def __call__(self) -> AttentionSample:
        return AttentionSample(latency_s=self._step().latency_s)

    def passes(self) -> AttentionMemory:
        """Bytes of live tensors beside weights and the optimizer's state, in one untimed step. None on CPU."""
        memory = self._step.memory()
        if memory.before_bytes is None or memory.forward_peak_bytes is None or memory.backward_peak_bytes is None:
            return AttentionMemory()
        return AttentionMemory(
            forward_peak_bytes=memory.forward_peak_bytes - memory.before_bytes,
            kept_bytes=memory.kept_bytes,
            backward_peak_bytes=memory.backward_peak_bytes - memory.before_bytes,
        )


def scores(
    implementation: Implementation, subject: MixersSubject, device: Device, say: Callable[[str], object]
) -> dict[str, Any]:
    """Fields of the record: every task in every size, once for each seed; or why there are none."""
    results: list[TaskScore] = []
    for setting in settings_of(subject.tasks):
        for seed in range(subject.tasks.seeds):
            try:
                _refuse(implementation, subject, setting.length(), device)
                with refused_compiler_is_unsupported():
                    score = train(implementation, subject, setting, subject.seed + seed, device)
            except UnsupportedError as error:
                return {"tasks": tuple(results), "no_tasks": Missing(error_kind=error.kind, reason=str(error))}
            results.append(score)
            say(
                f"  {setting.task} {setting.size}, seed {seed}: {score.right:,} of {score.asked:,} right, "
                f"{score.bits:.3f} bits a token"
            )
    return {"tasks": tuple(results), "no_tasks": None}


def _refuse(implementation: Implementation, subject: MixersSubject, length: int, device: Device) -> None:
    """Raises UnsupportedError where the implementation cannot run here."""
    shape = shape_of(subject, MixersPoint(length, subject.tasks.batch_size, "training_step"))
    missing = missing_module(implementation)
    reason = implementation.unsupported(shape, device.kind) or (missing and f"needs {missing}: {implementation.remedy}")
    if reason:
        raise UnsupportedError(reason)
