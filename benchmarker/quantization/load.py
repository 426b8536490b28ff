"""Loading a model in any of its forms, in one call: the loader factory as a function.

model = load_model("Qwen/Qwen3-4B", "int8", device="cuda:0")
model.generate(...)
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from benchmarker.checkpoints.base import Checkpoint, Progress, Silent, Target
from benchmarker.core.errors import FieldError, SpecError, UnsupportedError
from benchmarker.hardware.device import Device, find_device
from benchmarker.quantization.base import Loaded, Options
from benchmarker.quantization.inspect import quantized_linears
from benchmarker.quantization.output_layer import with_head
from benchmarker.quantization.prepare import file_refusal, prepare_checkpoint
from benchmarker.quantization.registry import LOADERS, loader_options, resolved_quant
from benchmarker.schema.base import DType, Scalar
from benchmarker.schema.config_io import validated
from benchmarker.schema.model import ModelSpec, QuantSpec

if TYPE_CHECKING:
    from transformers import PreTrainedModel


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
    """A model ready to generate.

    Args:
        model: A hub id, a folder, or a model that ships with benchmarker: `qwen3-small`, or with `load_format="dummy"`
            the shape `qwen3-tiny`.
        quant: As `--quant`: a name in `quantization.registry.LOADERS`, such as `int8`, or one of its aliases.
        device: `auto`, `cpu`, `cuda` or `cuda:1`.
        dtype: Of what is not quantized.
        options: The loader's own, such as `{"group_size": 64}`.

    Raises:
        BenchmarkerError: One line that says what was wrong and what to do.
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
    """Find, make and load.

    Raises:
        BenchmarkerError: As for `load_model`.
    """
    progress = progress or Silent()
    checkpoint = prepare_checkpoint(model, form, device, progress)
    target = Target(device.torch_name, model.dtype)
    return load_form(form.quant, checkpoint, loader_options(form), target, progress), checkpoint


def load_form(quant: str, checkpoint: Checkpoint, options: Options, target: Target, progress: Progress) -> Loaded:
    """A prepared checkpoint in its form, with the output layer that the options ask for.

    Raises:
        BenchmarkerError: As for `load_model`.
    """
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
    """Return the error for a model in which the quantization found no layer, with the types of the layers."""
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
