"""Making a checkpoint ready to load: downloaded, written with random weights, or quantized, whatever it needs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarker.checkpoints.base import Checkpoint, Form, Progress, Target
from benchmarker.checkpoints.find import find_in_form, gguf_file
from benchmarker.core.errors import ModelError
from benchmarker.hardware.device import Device
from benchmarker.quantization.output_layer import check_head
from benchmarker.quantization.registry import LOADERS, loader_options
from benchmarker.schema.model import ModelSpec, QuantSpec


def prepare_checkpoint(model: ModelSpec, variant: QuantSpec, device: Device, progress: Progress) -> Checkpoint:
    """The checkpoint that the variant's loader takes; the slow part is done once and cached.

    Raises:
        BenchmarkerError: The model cannot be had, or not in this form on this device.
    """
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
    """The checkpoint that a model and a variant ask for, downloaded or made where need be, and not yet quantized.

    Args:
        device: Where the model will go, as torch names it. A dummy's random numbers are made there.
        check_config: Raises where the model's config.json does not suit, before any weight is downloaded or made.

    Raises:
        BenchmarkerError: It cannot be found, reached, read or used with this quantization on this device.
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
    """Why a quantization cannot load a GGUF file in a transformers model; None for a folder, and for those that can."""
    if not checkpoint.is_gguf or LOADERS[quant].of_gguf:
        return None
    able = next(name for name, loader in LOADERS.items() if loader.of_gguf)
    return (
        f"{checkpoint.model_id} is a GGUF file: --quant {able} reads it through transformers, --engine llama-cpp "
        "through llama.cpp"
    )


def check_stored(quant: str, model_id: str, config: dict[str, Any]) -> None:
    """Refuse a checkpoint that is quantized already in a way that this quantization does not read, and a plain one
    where it has to be quantized already.

    Raises:
        ModelError: Naming the quantization that takes it, if there is one.
    """
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
