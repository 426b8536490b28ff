"""The measuring of fine-tuning: a model loaded and made trainable, its gradients checked, its steps timed.

The order for each cell: the loss and the gradients against their references, one step whose memory is read part by
part, then the clock. After all cells one step is profiled, and with real weights some steps on text show whether the
recipe learns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarker.checkpoints.base import Checkpoint, Target
from benchmarker.checkpoints.find import shapes_sha256
from benchmarker.checkpoints.read_model import load_tokenizer
from benchmarker.core.errors import SpecError, WrongResultError
from benchmarker.core.formatting import gib, seconds
from benchmarker.engines.base import Form
from benchmarker.engines.decoders.torch_engine import load
from benchmarker.measure.training_step import TrainingStep
from benchmarker.quantization.prepare import find_checkpoint
from benchmarker.quantization.registry import LOADERS, loader_options
from benchmarker.workloads.base import Nothing, Session, refuse_other_commit
from benchmarker.workloads.finetune.afterwards import learned, mean_loss, profiled
from benchmarker.workloads.finetune.built import built_facts, frozen_sha256, seen_dtypes, state_bytes
from benchmarker.workloads.finetune.demand import AttentionShape, demand_of
from benchmarker.workloads.finetune.gradients import check_gradients, wrong
from benchmarker.workloads.finetune.record import FinetuneCell, FinetuneFacts
from benchmarker.workloads.finetune.spec import QUANTS, FinetuneJob, FinetunePoint
from benchmarker.workloads.finetune.text import JUDGED, TokenText, inputs_sha256, on_device, token_text, windows
from benchmarker.workloads.finetune.trainee import Trainee, attention_shape, make_trainee

if TYPE_CHECKING:
    from torch import Tensor

    from benchmarker.hardware.device import Device
    from benchmarker.measure.repeat import Measured

LOSS_TOLERANCE = 0.05
"""Nats by which the first loss may differ from the unquantized base's."""


class FinetuneBench(Nothing):
    """Measures one variant."""

    def __init__(
        self,
        job: FinetuneJob,
        trainee: Trainee,
        text: TokenText,
        attention: AttentionShape,
        session: Session,
        *,
        base_loss: Callable[[list[Tensor]], float | None],
    ) -> None:
        """Wrap what is trained.

        Args:
            base_loss: Of the unquantized base on some batches; None where it is not to be judged.
        """
        self._job = job
        self._trainee = trainee
        self._text = text
        self._attention = attention
        self._session = session
        self._base_loss = base_loss
        self._device = trainee.device
        self._optimizer = trainee.optimizer()
        self._frozen = frozen_sha256(trainee)
        self._built: FinetuneFacts | None = None
        self._ready: tuple[FinetunePoint, TrainingStep] | None = None
        self._losses: dict[FinetunePoint, float] = {}
        self._fields: dict[str, Any] = {}

    def facts(self) -> Mapping[str, Any]:
        """What was built, once a step has run, and whether what is frozen is what it was."""
        if self._built is None:
            return self._fields
        unchanged = None if self._frozen is None else frozen_sha256(self._trainee) == self._frozen
        return {**self._fields, "built": self._built.model_copy(update={"frozen_unchanged": unchanged})}

    def cell(self, point: FinetunePoint) -> FinetuneCell:
        """What is known of a cell before it is measured."""
        self._ready = None
        batches = self._text.batches(point)
        return FinetuneCell(
            status="ok",
            **point._asdict(),
            inputs_sha256=inputs_sha256(batches),
            input_source=self._text.source,
            demand=demand_of(self._facts_by_count(), self._attention, point),
        )

    def correct(self, point: FinetunePoint) -> Mapping[str, Any]:
        """Loss and gradients beside their references, and the memory of one step.

        Raises:
            WrongResultError: One is too far off.
        """
        batches = on_device(self._text.batches(point), self._device.torch_name)
        self._check_loss()
        checked = check_gradients(self._trainee, batches[0])
        self._device.release()
        if problem := wrong(checked):
            raise WrongResultError(problem)
        step = self._step(point, batches)
        # The first step makes the optimizer's state; the second is like every other.
        step.memory()
        memory = step.memory()
        self._losses[point] = step.losses[0].item()
        self._ready = point, step
        self._see(batches[0])
        return {"checked": checked, "step_memory": memory}

    def step(self, point: FinetunePoint) -> TrainingStep:
        """What one repeat runs."""
        if self._ready is None or self._ready[0] != point:
            batches = on_device(self._text.batches(point), self._device.torch_name)
            self._ready = point, self._step(point, batches)
        return self._ready[1]

    def measured(
        self,
        cell: FinetuneCell,  # noqa: ARG002
        step: TrainingStep,
        measured: Measured[Any],  # noqa: ARG002
    ) -> Mapping[str, Any]:
        """First and last loss.

        Raises:
            WrongResultError: One is not a number, or what is frozen changed.
        """
        losses = self._losses[self._ready[0]] if self._ready else None, step.losses[0].item()
        finite = tuple(loss for loss in losses if loss is not None and math.isfinite(loss))
        if len(finite) < len(losses):
            raise WrongResultError(f"wrong result: the loss came to {losses[-1]}")
        if self._frozen is not None and frozen_sha256(self._trainee) != self._frozen:
            raise WrongResultError("wrong result: frozen weights changed while the adapters were trained")
        return {"losses": finite}

    def afterwards(self, record: Any, path: Path) -> dict[str, Any]:
        """A profile of one step, and whether the recipe learns."""
        last = record.last_good
        if last is None or not self._job.procedure.profile:
            return {}
        session, point = self._session, self._job.points()[last]
        # Back to the largest that ran, where a larger one did not.
        step = self.step(point)
        fields = profiled(self._job, step, point, self._device, path, session.terminal)
        session.keep(**fields)
        if self._text.held_out and not self._is_dummy:
            fields["learned"] = learned(self._trainee, self._text, session.terminal)
        return fields

    @property
    def _is_dummy(self) -> bool:
        return self._job.model.load_format == "dummy"

    def _step(self, point: FinetunePoint, batches: list[Tensor]) -> TrainingStep:
        turns = cycle(batches)
        step = TrainingStep(
            lambda: self._trainee.loss(next(turns)), self._optimizer, self._device, accumulate=point.accumulate
        )
        self._trainee.wrap_recomputing(step)
        return step

    def _check_loss(self) -> None:
        """Of untrained adapters, which add nothing: only before the first step."""
        if self._built is not None or self._fields:
            return
        batches = on_device(windows(self._text.train, *JUDGED), self._device.torch_name)
        expected = self._base_loss(batches)
        self._device.release()
        if expected is None:
            return
        first = mean_loss(self._trainee.loss, batches)
        if not (math.isfinite(first) and math.isfinite(expected)):
            raise WrongResultError(f"wrong result: the first loss is {first}, and {expected} of the unquantized model")
        self._fields = {"base_loss": expected, "first_loss": first}
        if abs(first - expected) > LOSS_TOLERANCE:
            raise WrongResultError(
                f"wrong result: the first loss is {first:.4f}, and {expected:.4f} of the unquantized model; "
                f"{LOSS_TOLERANCE} is allowed"
            )

    def _see(self, batch: Tensor) -> None:
        """What only a step that ran can tell, once."""
        if self._built is None:
            self._built = built_facts(
                self._trainee,
                dtypes=seen_dtypes(self._trainee, self._optimizer, batch),
                trained_bytes=state_bytes(self._trainee.trained, self._optimizer),
                frozen=self._frozen,
            )

    def _facts_by_count(self) -> FinetuneFacts:
        """Counts alone, for formulas."""
        from benchmarker.workloads.finetune.record import DTypes

        return self._built or built_facts(self._trainee, dtypes=DTypes(), trained_bytes=1, frozen=None)


@contextmanager
def open_bench(job: FinetuneJob, device: Device, session: Session) -> Iterator[FinetuneBench]:
    """Find the checkpoint, load it in its form, and make it trainable.

    Raises:
        BenchmarkerError: The model cannot be had or used for this.
    """
    recipe, terminal = job.recipe, session.terminal
    checkpoint = find_checkpoint(
        job.model, recipe.quant, progress=terminal, device=device.torch_name, check_config=lambda c: _check_fits(job, c)
    )
    refuse_other_commit(job, job.model.id, checkpoint.revision)
    tokenizer = load_tokenizer(checkpoint)
    text = token_text(tokenizer, checkpoint.config["vocab_size"], seed=job.subject.seed)
    session.ready()
    model = _loaded(job, checkpoint, device, session)
    attention = attention_shape(model)
    trainee = make_trainee(model, recipe, device, dtype=job.model.dtype, seed=job.subject.seed)
    trained = sum(parameter.numel() for parameter in trainee.trained)
    terminal.line(f"trained: {trained:,} parameters")
    judged = job.model.load_format != "dummy"

    def base_loss(batches: list[Tensor]) -> float | None:
        return _base_loss(job, device, session, batches) if judged else None

    yield FinetuneBench(job, trainee, text, attention, session, base_loss=base_loss)


def _loaded(job: FinetuneJob, checkpoint: Checkpoint, device: Device, session: Session) -> Any:
    """The model in its form, with the record's facts of it."""
    quant, packages = job.recipe.quant, ["peft"] if job.recipe.train == "lora" else []
    form = Form(quant.quant, loader_options(quant), job.model.dtype)
    loaded, facts = load(checkpoint, form, device, session.terminal, packages=packages)
    model = session.record.model.model_copy(
        update={
            "revision": checkpoint.revision,
            "config_sha256": shapes_sha256(checkpoint.config),
            "parameters": facts.parameters,
        }
    )
    session.keep(model=model, load=facts)
    session.terminal.line(f"loaded in {seconds(facts.load_s)}: weights {gib(facts.weight_bytes)}")
    return loaded


def _base_loss(job: FinetuneJob, device: Device, session: Session, batches: list[Tensor]) -> float:
    """Of the unquantized model in the same type, which is loaded for this and let go."""
    quant = QUANTS["plain"]
    checkpoint = find_checkpoint(job.model, quant, progress=session.terminal, device=device.torch_name)
    target = Target(device.torch_name, job.model.dtype)
    model: Any = LOADERS[quant.quant].load(checkpoint, loader_options(quant), target, session.terminal).model
    return mean_loss(lambda ids: model(input_ids=ids, labels=ids, use_cache=False).loss, batches)


def _check_fits(job: FinetuneJob, config: dict[str, Any]) -> None:
    """Refuse what the model cannot take, before any weight is read.

    Raises:
        SpecError: With the numbers.
    """
    positions = config.get("max_position_embeddings")
    longest = max(job.grid.seq_len)
    if positions is not None and longest > positions:
        raise SpecError(
            f"--seq-len {longest}: is past the {positions} positions of {job.model.id}; use at most {positions}"
        )
    narrowest = config.get("hidden_size")
    recipe = job.recipe
    if recipe.train == "lora" and narrowest is not None and recipe.rank > narrowest:
        raise SpecError(f"--rank {recipe.rank}: is above the model's width of {narrowest}; use a lower rank")
