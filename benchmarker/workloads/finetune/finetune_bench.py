"""Measurement of fine-tuning: load a model, make it trainable, check its gradients, and time its steps.

Order for each cell: compare loss and gradients with references; measure the memory of one step; time the steps. After
all cells one step is profiled, and real weights are trained to show if the recipe lowers the loss on held-out text.

Batches are different windows of the shipped text, the same for every variant: on one constant batch, the loss falls
with any recipe. Without a tokenizer, a seeded generator makes the ids; the record contains their source.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarker.checkpoints.base import Target
from benchmarker.checkpoints.files import shipped_text
from benchmarker.checkpoints.read_model import found_model, load_tokenizer
from benchmarker.core.console import Terminal
from benchmarker.core.errors import SpecError, UnsupportedError, WrongResultError
from benchmarker.core.formatting import gib, seconds
from benchmarker.engines.base import Form
from benchmarker.engines.decoders.torch_engine import TorchDecoder, TorchEngine
from benchmarker.hardware.device import Device
from benchmarker.measure.profile_repeat import profile_step
from benchmarker.profiling.profile_table import profile_table
from benchmarker.quantization.load import find_checkpoint
from benchmarker.quantization.registry import LOADERS, loader_options
from benchmarker.schema.record import Missing, Profile
from benchmarker.workloads.finetune import trainee as trainees
from benchmarker.workloads.finetune.gradient_check import check_gradients, refuse_inaccurate
from benchmarker.workloads.finetune.record import FinetuneCell, FinetuneFacts, Learned
from benchmarker.workloads.finetune.spec import QUANTS, FinetuneJob, FinetunePoint
from benchmarker.workloads.finetune.trainee import Trainee
from benchmarker.workloads.session import Bench, Session, refuse_other_commit, tried
from benchmarker.workloads.training_step import TrainingStep

TEXT = "calibration.txt"
BATCHES = 8
BASE_LOSS_WINDOWS = 256, 4, 2
"""(length, batch size, number of batches) for the comparison of the first loss with that of the unquantized model."""
HELD_OUT_SHARE = 0.1  # Share of the text, at its end, on which no step trains.
RANDOM_IDS = 2**20  # Number of random ids if there is no tokenizer: enough for the largest step.
LOSS_TOLERANCE = 0.05  # Largest difference, in nats, between the first loss and the loss of the unquantized model.
LEARNING_SEEDS = (0, 1, 2)
LEARNING_STEPS = 20
LEARNING_LENGTH = 128
LEARNING_BATCH_SIZE = 4
HELD_OUT_BATCHES = 4
LEARNING_RATES = {"full": 1e-4, "lora": 1e-3}  # Higher than usual, since there are only twenty steps.


@dataclass(frozen=True)
class TokenText:
    train: tuple[int, ...]
    held_out: tuple[int, ...]  # Empty for random ids.
    source: str

    def batches(self, point: FinetunePoint) -> Tensor:
        return windows(self.train, point.seq_len, point.batch_size, BATCHES)


def token_text(tokenizer: Any | None, vocabulary: int, *, seed: int) -> TokenText:
    if tokenizer is None:
        ids = tuple(random.Random(seed).choices(range(vocabulary), k=RANDOM_IDS))
        return TokenText(ids, (), "random ids (no tokenizer)")
    ids = tuple(tokenizer.encode(shipped_text(TEXT), add_special_tokens=False))
    end = round(len(ids) * (1 - HELD_OUT_SHARE))
    return TokenText(ids[:end], ids[end:], "shipped text")


def windows(ids: Sequence[int], length: int, batch_size: int, count: int) -> Tensor:
    """Return consecutive windows of the ids, [count, batch_size, length]; too few ids are repeated."""
    return torch.tensor(list(islice(cycle(ids), length * batch_size * count))).view(count, batch_size, length)


def inputs_sha256(batches: Tensor) -> str:
    rows = (",".join(map(str, row)) + ";" for batch in batches.tolist() for row in batch)
    header = f"{batches.shape[1]} x {batches.shape[2]}:"
    return hashlib.sha256((header + "".join(rows)).encode()).hexdigest()


class FinetuneBench(Bench):
    def __init__(self, job: FinetuneJob, trainee: Trainee, text: TokenText, session: Session) -> None:
        self._job, self._trainee, self._text, self._session = job, trainee, text, session
        self._has_weights = session.record.model.load_format != "dummy"
        self._device = trainee.device
        self._pair_flops = trainees.attention_pair_flops(trainee.base)
        self._optimizer = trainee.optimizer()
        self._frozen = trainees.frozen_sha256(trainee)
        self._built: FinetuneFacts | None = None
        self._ready: tuple[FinetunePoint, TrainingStep] | None = None
        self._first_losses: dict[FinetunePoint, float] = {}
        self._loss_fields: dict[str, Any] = {}

    def facts(self) -> Mapping[str, Any]:
        if self._built is None:
            return self._loss_fields
        unchanged = None if self._frozen is None else trainees.frozen_sha256(self._trainee) == self._frozen
        return {**self._loss_fields, "built": self._built.model_copy(update={"frozen_unchanged": unchanged})}

    def cell(self, point: FinetunePoint) -> FinetuneCell:
        self._ready = None
        # Before the first step the types are unknown; the formulas need only counts of weights.
        facts = self._built or trainees.built_facts(self._trainee)
        return FinetuneCell(
            status="ok",
            **point._asdict(),
            inputs_sha256=inputs_sha256(self._text.batches(point)),
            input_source=self._text.source,
            demand=trainees.demand_of(facts, self._pair_flops, point),
        )

    def correct(self, point: FinetunePoint) -> Mapping[str, Any]:
        self._check_first_loss()
        step, batch = self._new_step(point)
        checked = check_gradients(self._trainee, batch)
        self._device.release()
        refuse_inaccurate(checked)
        # The first step allocates the optimizer's state; every later step has the memory of the second.
        step.memory()
        memory = step.memory()
        self._first_losses[point] = step.losses[0].item()
        self._ready = point, step
        if self._built is None:
            self._built = trainees.built_facts(self._trainee, self._optimizer, batch, frozen=self._frozen)
        return {"checked": checked, "step_memory": memory}

    def step(self, point: FinetunePoint) -> TrainingStep:
        if self._ready is None or self._ready[0] != point:
            self._ready = point, self._new_step(point)[0]
        return self._ready[1]

    def measured(self, cell: FinetuneCell, step: TrainingStep) -> Mapping[str, Any]:
        point = FinetunePoint(cell.seq_len, cell.batch_size, cell.accumulate)
        losses = self._first_losses[point], step.losses[0].item()
        if not all(map(math.isfinite, losses)):
            raise WrongResultError(f"wrong result: the loss came to {losses[-1]}")
        if trainees.frozen_sha256(self._trainee) != self._frozen:
            raise WrongResultError("wrong result: frozen weights changed while the adapters were trained")
        return {"losses": losses}

    def afterwards(self, record: Any, path: Path) -> dict[str, Any]:
        if record.last_good is None or not self._job.procedure.profile:
            return {}
        point, device, terminal = self._job.points()[record.last_good], self._device, self._session.terminal
        terminal.line("profiling one step")

        def work() -> Profile:
            step = self.step(point)
            step.profiled()
            return profile_step(step.profiled, device=device, trace_path=path.with_suffix(".trace.json.gz"))

        profile = tried(work, device)
        fields: dict[str, Any] = {"no_profile" if isinstance(profile, Missing) else "profile": profile}
        if isinstance(profile, Missing):
            terminal.line(f"no profile: {profile.reason}")
        elif not self._job.part:
            what = f"step of {point.accumulate * point.batch_size} x {point.seq_len} tokens"
            terminal.detail(profile_table(profile, what=what, limit=self._job.subject.profile_rows))
        self._session.keep(**fields)
        if self._text.held_out and self._has_weights:
            fields["learned"] = learned(self._trainee, self._text, terminal)
        return fields

    def _new_step(self, point: FinetunePoint) -> tuple[TrainingStep, Tensor]:
        batches = self._text.batches(point).to(self._device.torch_name)
        turns = cycle(batches)
        step = TrainingStep(
            lambda: self._trainee.loss(next(turns)), self._optimizer, self._device, accumulate=point.accumulate
        )
        self._trainee.wrap_recomputing(step)
        return step, batches[0]

    def _check_first_loss(self) -> None:
        """Compare the loss before the first step, when adapters add zero, with the loss of the unquantized model."""
        if self._has_weights and not self._loss_fields:
            batches = windows(self._text.train, *BASE_LOSS_WINDOWS).to(self._device.torch_name)
            expected = self._base_loss(batches)
            self._device.release()
            first = mean_loss(self._trainee.loss, batches)
            if not (math.isfinite(first) and math.isfinite(expected)):
                raise WrongResultError(
                    f"wrong result: the first loss is {first}, and {expected} of the unquantized model"
                )
            self._loss_fields = {"base_loss": expected, "first_loss": first}
        if not self._loss_fields:
            return
        first, expected = self._loss_fields["first_loss"], self._loss_fields["base_loss"]
        if abs(first - expected) > LOSS_TOLERANCE:
            raise WrongResultError(
                f"wrong result: the first loss is {first:.4f}, and {expected:.4f} of the unquantized model; "
                f"{LOSS_TOLERANCE} is allowed"
            )

    def _base_loss(self, batches: Tensor) -> float:
        model, device, terminal = self._job.model, self._device.torch_name, self._session.terminal
        quant, target = QUANTS["plain"], Target(device, model.dtype)
        checkpoint = find_checkpoint(model, quant, progress=terminal, device=device)
        base: Any = LOADERS[quant.quant].load(checkpoint, loader_options(quant), target).model
        return mean_loss(lambda ids: base(input_ids=ids, labels=ids, use_cache=False).loss, batches)


@contextmanager
def open_bench(job: FinetuneJob, device: Device, session: Session) -> Iterator[FinetuneBench]:
    """Find the checkpoint, load it quantized as the recipe requires, and make it trainable. Raises BenchmarkerError."""
    recipe, terminal = job.variant.recipe, session.terminal
    checkpoint = find_checkpoint(
        job.model, recipe.quant, progress=terminal, device=device.torch_name, check_config=lambda c: _check_fits(job, c)
    )
    refuse_other_commit(job, job.model.id, checkpoint.revision)
    config = checkpoint.config
    text = token_text(load_tokenizer(checkpoint), config["vocab_size"], seed=job.subject.seed)
    session.ready()
    form = Form(recipe.quant.quant, loader_options(recipe.quant), job.model.dtype)
    engine = TorchEngine("finetune", TorchDecoder, packages=("peft",) if recipe.train == "lora" else ())
    if reason := engine.why_not_taken(form, checkpoint):
        raise UnsupportedError(reason)
    with engine.open(checkpoint, form, device, terminal) as source:
        facts = source.loaded
        assert facts is not None
        model = found_model(session.record.model, checkpoint)
        session.keep(model=model.model_copy(update={"parameters": facts.parameters}), load=facts)
        terminal.line(f"loaded in {seconds(facts.load_s)}: weights {gib(facts.weight_bytes)}")
        trainee = trainees.make_trainee(source.model, recipe, device, dtype=job.model.dtype, seed=job.subject.seed)
        terminal.line(f"trained: {sum(parameter.numel() for parameter in trainee.trained):,} parameters")
        yield FinetuneBench(job, trainee, text, session)


def _check_fits(job: FinetuneJob, config: dict[str, Any]) -> None:
    positions = config.get("max_position_embeddings")
    longest = max(job.grid.seq_len)
    if positions is not None and longest > positions:
        raise SpecError(
            f"--seq-len {longest}: is past the {positions} positions of {job.model.id}; use at most {positions}"
        )
    width, recipe = config.get("hidden_size"), job.variant.recipe
    if recipe.train == "lora" and width is not None and recipe.rank > width:
        raise SpecError(f"--rank {recipe.rank}: is above the model's width of {width}; use a lower rank")


def learned(trainee: Trainee, text: TokenText, terminal: Terminal) -> Learned:
    """Train once per seed and return the losses on held-out text. The model's weights are changed afterwards."""
    terminal.line(f"training {len(LEARNING_SEEDS)} times for {LEARNING_STEPS} steps")
    device = trainee.device.torch_name
    _reset_adapters(trainee, LEARNING_SEEDS[0])
    initial = [parameter.detach().clone() for parameter in trainee.trained]
    held_out = windows(text.held_out, LEARNING_LENGTH, LEARNING_BATCH_SIZE, HELD_OUT_BATCHES).to(device)
    before, after = mean_loss(trainee.loss, held_out), []
    learning_rate = LEARNING_RATES[trainee.recipe.train]
    for seed in LEARNING_SEEDS:
        with torch.no_grad():
            for parameter, value in zip(trainee.trained, initial, strict=True):
                parameter.copy_(value)
        _reset_adapters(trainee, seed)
        # Each seed starts at a different position of the text.
        stretch = text.train[seed * len(text.train) // len(LEARNING_SEEDS) :]
        batches = iter(windows(stretch, LEARNING_LENGTH, LEARNING_BATCH_SIZE, LEARNING_STEPS).to(device))
        step = TrainingStep(
            lambda batches=batches: trainee.loss(next(batches)),  # type: ignore[misc]
            trainee.optimizer(learning_rate=learning_rate),
            trainee.device,
            times_parts=False,
        )
        for _ in range(LEARNING_STEPS):
            step()
        after.append(mean_loss(trainee.loss, held_out))
    return Learned(
        steps=LEARNING_STEPS, learning_rate=learning_rate, before=before, after=tuple(after), seeds=LEARNING_SEEDS
    )


def _reset_adapters(trainee: Trainee, seed: int) -> None:
    torch.manual_seed(seed)
    for module in trainee.model.modules():
        if hasattr(module, "reset_lora_parameters"):
            module.reset_lora_parameters("default", init_lora_weights=True)


def mean_loss(loss: Callable[[Tensor], Tensor], batches: Tensor) -> float:
    with torch.no_grad():
        return sum(loss(batch).item() for batch in batches) / len(batches)
