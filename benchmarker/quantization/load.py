"""Preparation and loading of a model in any quantization: `load_model("Qwen/Qwen3-4B", "int8").generate(...)`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from benchmarker.checkpoints.base import Checkpoint, Form, Progress, Silent, Target
from benchmarker.checkpoints.find import find_in_form, gguf_file
from benchmarker.core.errors import FieldError, ModelError, SpecError, UnsupportedError
from benchmarker.hardware.device import Device, find_device
from benchmarker.quantization.base import Loaded, Options, check_head, with_head
from benchmarker.quantization.inspect import quantized_linears
from benchmarker.quantization.registry import LOADERS, loader_options, resolved_quant
from benchmarker.schema.base import DType, Scalar
from benchmarker.schema.config_io import validated
from benchmarker.schema.model import ModelSpec, QuantSpec

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def prepare_checkpoint(model: ModelSpec, variant: QuantSpec, device: Device, progress: Progress) -> Checkpoint:
    """Return the checkpoint for the variant's loader; slow steps are done once and cached."""
    checkpoint = find_checkpoint(model, variant, progress=progress, device=device.torch_name)
    target = Target(device.torch_name, model.dtype)
    return LOADERS[variant.quant].prepare(checkpoint, loader_options(variant), target, progress)


def find_checkpoint(
    model: ModelSpec,
    variant: QuantSpec,
    *,
    progress: Progress | None = None,
    device: str = "cpu",
    check_config: Callable[[dict[str, Any]], None] = lambda config: None,
) -> Checkpoint:
    """Return the checkpoint of a model and variant, downloaded or made if necessary, and not yet quantized.

    Args:
        device: torch's name of the model's device, on which a dummy's random numbers are made.
        check_config: Raises if the config is not suitable, before any weight is downloaded or made.
    """
    loader = LOADERS[variant.quant]
    if loader.of_gguf and gguf_file(model) is None:
        raise ModelError(
            f"{model.id}: not a GGUF file, which --quant {variant.quant} reads: give one with --model FILE.gguf; "
            "--engine llama-cpp --engine-option gguf=Q8_0 makes one of a checkpoint"
        )
    loader.check(loader_options(variant), Target(device, model.dtype))
    check_head(loader_options(variant))
    form = Form(loader.packages, partial(check_stored, variant.quant), loader.packing, loader_options(variant))
    return find_in_form(model, form, progress=progress, device=device, check_config=check_config)


def file_refusal(quant: str, checkpoint: Checkpoint) -> str | None:
    """Return why a quantization cannot load a GGUF file through transformers, or None."""
    if not checkpoint.is_gguf or LOADERS[quant].of_gguf:
        return None
    able = next(name for name, loader in LOADERS.items() if loader.of_gguf)
    return (
        f"{checkpoint.model_id} is a GGUF file: --quant {able} reads it through transformers, --engine llama-cpp "
        "through llama.cpp"
    )


def check_stored(quant: str, model_id: str, config: dict[str, Any]) -> None:
    """Raise ModelError if the quantization cannot read the stored one, or requires a quantized checkpoint."""
    stored, loader = config.get("quantization_config"), LOADERS[quant]
    if not isinstance(stored, dict):
        if loader.stored_only:
            raise ModelError(f"{model_id}: {loader.stored_only}")
        return
    if loader.reads(stored):
        return
    method = str(stored.get("quant_method", "an unnamed method"))
    able = next((name for name, loader in LOADERS.items() if loader.reads(stored)), None)
    way_on = f"use --quant {able}, or an unquantized checkpoint" if able else "use an unquantized checkpoint"
    raise ModelError(f"{model_id}: quantized already ({method}), which --quant {quant} cannot take; {way_on}")


def load_model(
    model: str = "Qwen/Qwen3-4B",
    quant: str = "fp16",
    *,
    device: str = "auto",
    dtype: DType = "float16",
    revision: str | None = None,
    load_format: Literal["auto", "dummy"] = "auto",
    options: dict[str, Scalar] | None = None,
    trust_remote_code: bool = False,
) -> PreTrainedModel:
    """Return a model that is ready to generate; a BenchmarkerError has one line with the cause and the remedy.

    Args:
        model: A hub id, a folder, or a shipped model: `qwen3-small`, or with `load_format="dummy"` the shape
            `qwen3-tiny`.
        quant: A name in `quantization.registry.LOADERS`, such as `int8`, or an alias.
        device: `auto`, `cpu`, `cuda` or `cuda:1`.
        dtype: Type of tensors that are not quantized.
    """
    fields: dict[str, Any] = {
        "id": model,
        "revision": revision,
        "load_format": load_format,
        "dtype": dtype,
        "trust_remote_code": trust_remote_code,
    }
    spec = validated(ModelSpec, fields, where="load_model")
    form = validated(QuantSpec, {"quant": quant, "options": options or {}}, where="load_model")
    try:
        form = resolved_quant(form)
    except FieldError as error:
        raise SpecError(f"load_model: {error.field + ': ' if error.field else ''}{error}") from error
    loaded, _ = open_model(spec, form, find_device(device))
    return loaded.model


def open_model(
    model: ModelSpec, form: QuantSpec, device: Device, progress: Progress | None = None
) -> tuple[Loaded, Checkpoint]:
    progress = progress or Silent()
    checkpoint = prepare_checkpoint(model, form, device, progress)
    target = Target(device.torch_name, model.dtype)
    return load_form(form.quant, checkpoint, loader_options(form), target, progress), checkpoint


def load_form(quant: str, checkpoint: Checkpoint, options: Options, target: Target, progress: Progress) -> Loaded:
    """Load a prepared checkpoint, with the output layer that the options request. No quantized weight is an error."""
    refusal = file_refusal(quant, checkpoint)
    if refusal:
        raise UnsupportedError(refusal)
    loaded = LOADERS[quant].load(checkpoint, options, target, progress)
    if min(LOADERS[quant].bits, default=16) < 16 and not quantized_linears(loaded.model):
        raise UnsupportedError(_nothing_quantized(quant, loaded.model))
    if checkpoint.is_text_part:
        note = f"only the text part ({checkpoint.config['model_type']}) of the multimodal checkpoint is loaded"
        loaded = replace(loaded, notes=(note, *loaded.notes))
    return with_head(loaded, options)


def _nothing_quantized(quant: str, model: PreTrainedModel) -> str:
    """Return the error for a model without layers for this quantization."""
    embeddings = {model.get_input_embeddings(), model.get_output_embeddings()}
    layers = Counter(
        type(module).__name__
        for module in model.modules()
        if module not in embeddings and getattr(getattr(module, "weight", None), "ndim", 0) == 2
    )
    del layers["Embedding"]
    kinds = ", ".join(f"{kind} ({count})" for kind, count in layers.most_common(3)) or "none with a matrix"
    return (
        f"{quant}: no weight of {type(model).__name__} was quantized: this quantization takes nn.Linear, and the "
        f"model's layers are {kinds}; use --quant fp16, or a quantization that takes them"
    )
