"""The workload finetune."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from benchmarker.checkpoints.cache import expected_model
from benchmarker.checkpoints.files import model_fingerprint
from benchmarker.checkpoints.find import look_for
from benchmarker.comparison.rows import Circumstance
from benchmarker.core.errors import MissingLibraryError, SpecError, install_hint, installed_version
from benchmarker.hardware.device import Device
from benchmarker.schema.options import GROUPS, Option, field_options
from benchmarker.schema.registry import Axis, Metric, metric
from benchmarker.workloads.base import Workload
from benchmarker.workloads.finetune.finetune_reading import timed_step
from benchmarker.workloads.finetune.record import FinetuneRecord, FinetuneVariantFacts
from benchmarker.workloads.finetune.spec import FinetuneExperiment, FinetuneJob
from benchmarker.workloads.operation.operation_workload import share_metric
from benchmarker.workloads.session import Bench, Session
from benchmarker.workloads.training_step import StepPart

MODEL_FILES = (".json", ".safetensors", ".model", ".txt", ".py")
"""Suffixes of the files that are read from a model's folder. Chat templates are not used."""


def _part_metric(part: StepPart, formula: str) -> Metric:
    return metric(part, f"{part} ms", formula, of_sample=lambda cell, sample: sample.drained_parts_s.get(part))


METRICS = (
    metric(
        "tokens",
        "tok/s",
        "batch_size * seq_len * accumulate divided by the seconds of one undivided step",
        better="higher",
        of_latency=lambda cell, latency_s: cell.batch_size * cell.seq_len * cell.accumulate / latency_s,
    ),
    share_metric(
        "mfu",
        "MFU %",
        "tokens * (4 * frozen + 6 * trained linear weights) + 3.5 * attention's forward pass, divided by the seconds "
        "of a step and by the matmul rate that the same process measured",
    ),
    share_metric(
        "hfu",
        "HFU %",
        "MFU with the FLOPs that gradient checkpointing repeats: tokens * 2 * linear weights of the checkpointed "
        "layers, and attention's forward pass once more",
        flops_of=lambda demand: demand.flops + demand.recompute_flops,
    ),
    _part_metric("forward", "seconds of the forward passes of a step that waits for the device after each part"),
    _part_metric("backward", "seconds of the backward passes of the same step, recomputation included"),
    _part_metric("optimizer", "seconds of the optimizer in the same step"),
    metric(
        "weights",
        "frozen GiB",
        "bytes of all that is not trained: unique storages, scales of quantized weights included; none if every "
        "weight is trained",
        combine="max",
        # If every weight is trained, only a few constants are frozen.
        of_cell=lambda record, cell: (
            record.built.weight_bytes if record.built and record.built.frozen_linear_weights else None
        ),
    ),
    metric(
        "trained",
        "trained GiB",
        "bytes of trained weights, of their gradients and of the optimizer's state",
        combine="max",
        of_cell=lambda record, cell: record.built.trained_bytes if record.built else None,
    ),
    metric(
        "activations",
        "activations GiB",
        "live bytes after the forward pass minus those before it, in one untimed step",
        combine="max",
        of_cell=lambda record, cell: cell.step_memory.kept_bytes if cell.step_memory else None,
    ),
)


class Finetune(Workload[FinetuneJob, FinetuneRecord]):
    """One training step of a whole model."""

    name = "finetune"
    unit = "step"
    experiment = FinetuneExperiment
    job = FinetuneJob
    record = FinetuneRecord
    axes = (
        Axis("seq_len", "S", lambda length: f"{length:,} tokens"),
        Axis("batch_size", "batch", lambda sequences: f"batch of {sequences}"),
        # Not a size: each micro-batch reuses the memory of the previous micro-batch.
        Axis("accumulate", "micro-batches", lambda n: f"{n} micro-batch{'es' if n > 1 else ''}", is_size=False),
    )
    metrics = METRICS
    headline = "tokens"
    imports = ("benchmarker.workloads.finetune.finetune_bench", "transformers.models.auto.modeling_auto")
    example = "--variant qlora --model qwen3-small --seq-len 512"
    must_be_equal = ("model", "model shapes (config_sha256)", "load_format")
    subject_fields = ("model",)

    def options(self) -> list[Option]:
        # The option `--seed` is the seed of a sweep.
        flags = {"subject.model.id": "--model", "subject.seed": "--input-seed"}
        return field_options(self.job, flags=flags, panels={"subject.model": "Model", **GROUPS})

    def check(self, job: FinetuneJob, typed: Mapping[str, Any]) -> None:
        if typed.get("procedure.profile_tokens") is not None:
            raise SpecError("--profile-tokens: one whole step is profiled; leave it out")
        recipe, name = job.variant.recipe, f"variant {job.variant.name}"
        if recipe.train == "full" and recipe.is_quantized:
            raise SpecError(f"{name}: quantized weights ({recipe.base}) are not trained; use base plain, or train lora")
        if recipe.prepare != "keep" and not recipe.is_quantized:
            raise SpecError(
                f"{name}: prepare {recipe.prepare} is for a quantized base; it would make all weights float32; use keep"
            )
        if job.model.dtype == "float16":
            raise SpecError("--dtype float16: needs a scaled loss, which is not measured; use bfloat16 or float32")
        if job.model.chat_template:
            raise SpecError("--chat-template: wraps a prompt, and there is none; leave it out")
        if job.procedure.energy:
            raise SpecError("--energy: is not counted for fine-tuning; leave it out")
        packages = {"bitsandbytes": "8bit" in recipe.optimizer, "peft": recipe.train == "lora"}
        for package, is_used in packages.items():
            if is_used and installed_version(package) is None:
                hint = install_hint("finetune")
                raise MissingLibraryError(f"{name}: the library '{package}' is not installed; {hint}")

    def open(self, job: FinetuneJob, device: Device, session: Session) -> AbstractContextManager[Bench]:
        from benchmarker.workloads.finetune.finetune_bench import open_bench

        return open_bench(job, device, session)

    def key_parts(self, job: FinetuneJob) -> dict[str, Any]:
        return {
            "subject": job.subject.model_dump(mode="json", exclude={"profile_rows"}),
            "files": self.inputs(job, judged=False),
            "recipe": vars(job.variant.recipe),
        }

    def record_fields(self, job: FinetuneJob) -> dict[str, Any]:
        recipe, variant = job.variant.recipe, job.variant
        facts: dict[str, Any] = {**vars(recipe), "options": variant.model_dump(exclude={"name"})}
        if recipe.train != "lora":
            facts |= {"rank": None, "targets": None}
        return {
            "model": expected_model(job.model, job.model),
            "variant": FinetuneVariantFacts(name=variant.name, variant=variant.variant, **facts),
        }

    def inputs(self, job: FinetuneJob, *, judged: bool) -> dict[str, str]:  # noqa: ARG002
        """Return the fingerprint of the model's folder or shipped shape; empty for a model on the hub."""
        fingerprint = model_fingerprint(job.model.id, MODEL_FILES)
        return {f"model {job.model.id}": fingerprint} if fingerprint else {}

    def look_for(self, job: FinetuneJob) -> str | None:
        return look_for(job.model)

    def circumstances(self, records: Sequence[Any]) -> Mapping[str, Circumstance]:  # noqa: ARG002
        return {
            "model": lambda record: record.model.id,
            "model revision": lambda record: record.model.revision,
            "model shapes (config_sha256)": lambda record: (record.model.config_sha256 or "")[:12] or None,
            "load_format": lambda record: record.model.load_format,
        }

    timed = staticmethod(timed_step)


WORKLOAD = Finetune()
