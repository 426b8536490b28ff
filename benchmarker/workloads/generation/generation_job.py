"""Facts and checks of a generation job before anything is loaded, and the names of its quantization and engine.

A model in a folder is identified by the fingerprints of its files, a model on the hub by its commit in `Origin`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from benchmarker.checkpoints.cache import expected_model, has_random_weights
from benchmarker.checkpoints.files import SHIPPED, fingerprint, model_fingerprint, models_with_weights, only_shipped
from benchmarker.core.errors import FieldError, MemoryNeededError, SpecError, UnsupportedError, did_you_mean
from benchmarker.core.formatting import gib
from benchmarker.engines.base import Form
from benchmarker.engines.decoders.eager import static_cache_refusal, value_bytes
from benchmarker.engines.external.environments import engine_statuses
from benchmarker.engines.registry import ENGINES, MODEL_ENGINES
from benchmarker.hardware.device import Device
from benchmarker.hardware.read_environment import available_bytes
from benchmarker.quantization.base import Options
from benchmarker.quantization.load import of_checkpoint
from benchmarker.quantization.registry import LOADERS, loader_options, resolved_quant
from benchmarker.schema.base import DType, Scalar, first_problem
from benchmarker.schema.model import AUTO, ModelFacts, ModelSpec
from benchmarker.workloads.generation.read_architecture import describe, on_meta
from benchmarker.workloads.generation.record import GenerationRecord, GenerationVariant
from benchmarker.workloads.generation.spec import (
    GenerationJob,
    GenerationSubject,
    Point,
    VariantSpec,
    checkpoint_of,
    name_of,
)

VariantT = TypeVar("VariantT", bound=VariantSpec)


def resolve(variant: VariantSpec, subject: GenerationSubject | None = None) -> VariantSpec:
    """Return the variant with names from the registries; the default quantization is that of the checkpoint.

    Raises:
        FieldError: There is no such quantization, engine or option.
    """
    given = variant
    variant = with_checkpoint(variant, subject.model if subject else None)
    if variant.quant != AUTO:
        variant = resolved_quant(variant)
    if variant.engine not in ENGINES:
        raise FieldError(f"no engine '{variant.engine}'{did_you_mean(variant.engine, ENGINES)}", field="engine")
    try:
        engine_options(variant)
    except ValidationError as error:
        is_own = variant.engine in MODEL_ENGINES
        if is_own and (reason := static_cache_refusal(variant.engine, variant.engine_options)):
            raise FieldError(reason) from None
        raise FieldError(first_problem(error, ENGINES[variant.engine].options), field="engine_options") from None
    return renamed(variant, given)


def with_checkpoint(variant: VariantT, model: ModelSpec | None) -> VariantT:
    """Return the variant with the quantization of its checkpoint (by default, the model) if it names none."""
    if model is None and variant.checkpoint is None:
        return variant
    model = checkpoint_of(model or ModelSpec(), variant.checkpoint)
    if variant.checkpoint and model.load_format == "dummy":
        raise FieldError(f"{model.id} has its own weights; leave load_format dummy out", field="checkpoint")
    found = of_checkpoint(variant, model)
    is_named_by_file = variant.quant == AUTO and found.quant != "fp16"
    return found.model_copy(update={"checkpoint": variant.checkpoint or model.id}) if is_named_by_file else found


def renamed(variant: VariantT, given: VariantT) -> VariantT:
    """Rename a resolved variant to its default name, unless the user named the variant as typed, `given`."""
    is_named = given.name != name_of(given.model_dump())
    return variant if is_named else variant.model_copy(update={"name": name_of(variant.model_dump())})


def runs_in_generate(variant: GenerationVariant, model: ModelFacts) -> bool:
    """Return True if `benchmarker generate` can run this variant and the weights that it loads are not random."""
    model_id = model.checkpoint or model.id
    has_weights = not only_shipped(model_id) or model_id in models_with_weights()
    # `generate` loads the real weights of a hub id that was measured with dummy ones; a folder or format may have none.
    stored_only = {name for name, loader in LOADERS.items() if loader.stored_only}
    is_random = variant.quant in stored_only or (model.files_sha256 is not None and model_id not in SHIPPED)
    return variant.engine in MODEL_ENGINES and has_weights and not (is_random and model.load_format == "dummy")


def engine_options(variant: VariantSpec) -> Options:
    return ENGINES[variant.engine].options.model_validate(variant.engine_options)


def chosen_options(variant: GenerationVariant) -> tuple[dict[str, Scalar], dict[str, Scalar]]:
    """Return the options of quantization and engine that differ from the defaults; all of them for an unknown name."""
    of_quant = LOADERS[variant.quant].options().model_dump() if variant.quant in LOADERS else {}
    of_engine = ENGINES[variant.engine].options().model_dump() if variant.engine in ENGINES else {}
    return _without(of_quant, variant.options), _without(of_engine, variant.engine_options)


def _without(defaults: Mapping[str, Scalar], options: Mapping[str, Scalar]) -> dict[str, Scalar]:
    return {name: value for name, value in options.items() if name not in defaults or value != defaults[name]}


def form_of(variant: VariantSpec, dtype: DType) -> Form:
    return Form(
        variant.quant, loader_options(variant), dtype, engine_options(variant), gpus=variant.gpus, split=variant.split
    )


def refuse_too_large(job: GenerationJob, device: Device, config: Mapping[str, Any]) -> None:
    """Refuse a job if none of its cells fits into the device's free memory, before weights are made or loaded.

    Raises:
        MemoryNeededError: With a lower bound of the needed bytes, and the free bytes.
    """
    variant = job.variant
    if variant.engine not in MODEL_ENGINES:
        return
    model = on_meta(config, job.model.dtype)
    if model is None:
        return
    element_bytes = 4 if job.model.dtype == "float32" else 2
    stored = config.get("quantization_config") or {}
    given = stored.get("bits") or variant.options.get("bits") or min(LOADERS[variant.quant].bits, default=16)
    bits = 8 * element_bytes if variant.quant == "fp16" else float(given)
    kv_form: Any = variant.engine_options.get("kv_cache")
    kv_bytes = value_bytes(kv_form, element_bytes) if kv_form else element_bytes
    needed = dict.fromkeys(job.points(), 0)
    with contextlib.suppress(UnsupportedError):
        architecture = describe(model, kv_value_bytes=kv_bytes)
        needed = {point: architecture.cache_bytes(point.positions, point.batch_size) for point in needed}
    least = min(needed, key=lambda point: needed[point], default=None)  # None if quality alone is measured.
    needed_bytes = needed[least] if least else 0
    has_narrow_experts = bool(stored) or LOADERS[variant.quant].quantizes_experts
    weight_bytes = least_weight_bytes(
        model, bits=bits, value_bytes=element_bytes, has_narrow_experts=has_narrow_experts
    )
    if device.kind == "cpu":
        refuse_cell(least, needed_bytes, weight_bytes=weight_bytes)
    else:
        import torch

        gpu = torch.cuda.get_device_properties(device.torch_name)
        refuse_on_gpu(job, weight_bytes + needed_bytes, gpu.total_memory)


def refuse_on_gpu(job: GenerationJob, needed_bytes: int, gpu_bytes: int) -> None:
    """Raise MemoryNeededError if weights and KV cache exceed the whole memory of the GPUs."""
    if needed_bytes > job.gpus * gpu_bytes:
        have = "this GPU has" if job.gpus == 1 else f"{job.gpus} GPUs have"
        raise MemoryNeededError(
            f"{job.model.id} as {job.variant.quant} needs at least {gib(needed_bytes)}, {have} "
            f"{gib(job.gpus * gpu_bytes)}; use another quantization, a smaller model or batch, or more GPUs"
        )


def least_weight_bytes(model: Any, *, bits: float, value_bytes: int, has_narrow_experts: bool = True) -> int:
    """Return a lower bound of the weights' bytes: `bits` per weight in decoder layers, without scales.

    Experts that are fused in 3-D parameters have `bits` only if `has_narrow_experts`, else `value_bytes`.
    """
    most_axes = 3 if has_narrow_experts else 2
    ends = {id(end.weight) for end in (model.get_input_embeddings(), model.get_output_embeddings()) if end is not None}
    sizes = [(tensor.numel(), 1 < tensor.ndim <= most_axes and id(tensor) not in ends) for tensor in model.parameters()]
    least: float = sum(count * (bits / 8 if is_quantized else value_bytes) for count, is_quantized in sizes)
    return round(least)


def refuse_cell(point: Point | None, needed_bytes: int, *, weight_bytes: int = 0) -> None:
    """Raise MemoryNeededError if KV cache (`needed_bytes`) and weights not yet loaded exceed the free memory."""
    total_bytes, free_bytes = weight_bytes + needed_bytes, available_bytes()
    if total_bytes > free_bytes:
        held = f"the KV cache of a batch of {point.batch_size}" if point else "the weights"
        if point and weight_bytes:
            held = f"the weights ({gib(weight_bytes)}) and {held} ({gib(needed_bytes)})"
        raise MemoryNeededError(
            f"memory for {held}: {gib(total_bytes)} needed, {gib(free_bytes)} free; use a smaller model, batch, depth "
            "or prompt"
        )


def key_parts(job: GenerationJob) -> dict[str, Any]:
    variant = job.variant
    return {
        "model": job.model.model_dump(mode="json"),
        "files": _files(Path(job.model.id).expanduser()),
        "quant": variant.quant,
        "options": loader_options(variant).model_dump(mode="json"),
        "engine": variant.engine,
        "engine_options": engine_options(variant).model_dump(mode="json"),
        # Only for several GPUs, so that sweeps begun with an older version can be resumed.
        **({"gpus": variant.gpus, "split": variant.split} if variant.gpus > 1 else {}),
    }


def record_fields(job: GenerationJob) -> dict[str, Any]:
    variant = job.variant
    return {
        "model": expected_model(job.subject.model, job.model),
        "variant": GenerationVariant(
            name=variant.name,
            quant=variant.quant,
            engine=variant.engine,
            options=loader_options(variant).model_dump(),
            engine_options=engine_options(variant).model_dump(),
            gpus=variant.gpus,
            split=variant.split if variant.gpus > 1 else None,
        ),
    }


def inputs(job: GenerationJob, *, judged: bool) -> dict[str, str]:
    prints = {f"model {job.model.id}": model_fingerprint(job.model.id)}
    calibration = job.variant.options.get("calibration")
    if isinstance(calibration, str):
        prints[f"calibration text {calibration}"] = fingerprint(Path(calibration).expanduser())
    quality = job.quality
    if judged and quality.is_asked and quality.text:
        # A data set is identified by its name and has no file.
        text = Path(quality.text).expanduser()
        prints[f"evaluation text {quality.text}"] = fingerprint(text) if text.is_file() else None
    if judged and quality.is_asked and quality.baseline:
        prints[f"quality baseline {quality.baseline}"] = model_fingerprint(quality.baseline)
    return {name: text for name, text in prints.items() if text}


def lacking(job: GenerationJob) -> str | None:
    """Return how to install the engine's missing libraries or environment; None if nothing is missing.

    For the device `auto`, an environment for any kind of device is sufficient.
    """
    engine, kind = ENGINES[job.variant.engine], job.device.split(":")[0]
    statuses = engine_statuses(kind) if kind != "auto" and engine.name not in MODEL_ENGINES else []
    return next((each.remedy for each in statuses if each.engine == engine.name), None) or engine.why_not_installed()


def cell_fields(job: GenerationJob, point: Point, records: Sequence[GenerationRecord]) -> dict[str, Any] | None:
    tokens, text = point.prompt_tokens, job.grid.text_of(point)
    if text is not None:
        lengths = [record.text_tokens for record in records if record.text_tokens]
        tokens = lengths[-1][text] if lengths else None
    if tokens is None:
        return None
    return {
        "prompt_tokens": tokens,
        "text": text,
        "new_tokens": point.new_tokens,
        "batch_size": point.batch_size,
        "depth": point.depth,
        "distinct_prompts": point.batch_size if point.has_distinct_prompts else 1,
    }


def _files(source: Path) -> list[tuple[str, int, int]]:
    # A text that is too long for a path raises OSError; it is no folder.
    with contextlib.suppress(OSError, ValueError):
        paths = source.iterdir() if source.is_dir() else [source]
        files = ((path.name, path.stat()) for path in paths if path.is_file())
        return sorted((name, status.st_size, status.st_mtime_ns) for name, status in files)
    return []


IDLE = {
    "--eval-text": "subject.quality.text",
    "--quality-topk": "subject.quality.top_k",
    "--quality-baseline": "subject.quality.baseline",
}
"""Options that have no effect without --quality, and their fields."""


def overlay(typed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the typed values, and empty values for fields that they replace: typed prompt lengths clear the config's
    prompt texts, and vice versa. Raises SpecError if both were typed."""
    if typed.get("grid.prompt_tokens") is None:
        return dict(typed)
    if typed.get("grid.prompts"):
        raise SpecError("--prompt and --prompt-tokens: a text has its own length; give one of them")
    return {**typed, "grid.prompts": ()}


def check(job: GenerationJob, typed: Mapping[str, Any]) -> None:
    """Check options that depend on each other.

    Raises:
        SpecError: A typed option has no effect, or quality is requested for random weights.
        UnsupportedError: The engine, or the quantization's library, cannot divide the model among GPUs as requested.
    """
    quality = job.quality
    idle = [flag for flag, place in IDLE.items() if typed.get(place) is not None]
    if quality.size == "off" and typed.get("subject.quality.size") is None and idle:
        raise SpecError(f"{idle[0]}: does nothing without --quality; add --quality quick or --quality full")
    if typed.get("subject.quality.task_limit") is not None and not quality.tasks:
        raise SpecError("--task-limit: does nothing without --tasks; add --tasks hellaswag, or leave it out")
    is_random = has_random_weights(job.model)
    if quality.is_asked and is_random:
        raise SpecError(
            "--quality, --tasks: random weights have no quality to lose; measure real weights, or leave them out"
        )
    if job.variant.engine_options.get("speculative") and is_random:
        raise SpecError(
            "--engine-option speculative: random weights accept and reject drafts as no real "
            "model does; measure real weights, or leave it out"
        )
    if typed.get("subject.model.chat_template") and not job.grid.prompts:
        raise SpecError("--chat-template: wraps a text, and there is none; add --prompt TEXT, or leave it out")
    if job.variant.gpus > 1:
        _check_split(job)


def _check_split(job: GenerationJob) -> None:
    engine = ENGINES[job.variant.engine]
    if reason := engine.why_not_split(form_of(job.variant, job.model.dtype)):
        raise UnsupportedError(f"--gpus {job.variant.gpus}: {engine.name}: {reason}")
    if job.quality.is_asked and job.variant.split == "tensors":
        raise SpecError(
            "--quality, --tasks: dividing a model changes nothing but rounding; judge the form on one GPU, "
            "or leave them out"
        )
    if job.procedure.energy:
        raise SpecError("--energy: counts one GPU, and the model is on several; leave it out")
