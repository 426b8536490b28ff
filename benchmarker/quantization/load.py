"""Preparation and loading of a model in any quantization: `load_model("Qwen/Qwen3-4B", "int8").generate(...)`."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from benchmarker.checkpoints.base import Checkpoint, Progress, QuantizationNeeds, Silent, Target
from benchmarker.checkpoints.find import find_for_quantization, gguf_file, stored_quantization
from benchmarker.core.errors import BenchmarkerError, FieldError, ModelError, SpecError, UnsupportedError
from benchmarker.hardware.device import Device, find_device
from benchmarker.quantization.base import Loaded, Options, check_supported, is_tied, with_head
from benchmarker.quantization.registry import LOADERS, loader_options, quant_named, resolved_quant, stored_quant
from benchmarker.quantization.stored_formats import QuantT, with_scheme
from benchmarker.schema.base import DType, Scalar
from benchmarker.schema.config_io import validated
from benchmarker.schema.model import AUTO, LoadFacts, ModelSpec, QuantSpec

if TYPE_CHECKING:
    import torch
    from torch import nn
    from transformers import PreTrainedModel

OPTION = re.compile(r"--(quant|load-format|device|dtype) (\w[\w:-]*)")
"""Options in error messages that are arguments of `load_model`."""
Linear = Any  # Module with in_features and out_features, of any library.


def weight_bytes(model: nn.Module) -> int:
    """Return the bytes of all parameters, buffers and scales of a model; shared storage counts once."""
    return storage_bytes(tensor for module in model.modules() for tensor in module_tensors(module))


def load_facts(loaded: Loaded, *, load_s: float, peak_bytes: int | None, quantize_s: float | None = None) -> LoadFacts:
    model = loaded.model
    linears: list[Linear] = [module for module in model.modules() if is_linear(module)]
    head: Linear | None = model.get_output_embeddings()
    embedding: Any = model.get_input_embeddings()
    stored_bytes, parameters = weight_bytes(model), parameter_count(model)
    experts = (
        parameter.numel()
        for module in model.modules()
        if not is_linear(module)
        for parameter in module.parameters(recurse=False)
        if has_low_bits(parameter)
    )
    return LoadFacts(
        load_s=load_s,
        quantize_s=quantize_s,
        # A process that reuses freed pages grows by less than the weights; its peak is then unknown.
        peak_bytes=peak_bytes if peak_bytes and peak_bytes >= stored_bytes else None,
        weight_bytes=stored_bytes,
        parameters=parameters,
        bits_per_weight=8 * stored_bytes / parameters,
        quantized_fraction=(sum(map(weights_of, quantized_linears(model))) + sum(experts)) / parameters,
        linear_classes=_counted(type(linear).__name__ for linear in linears),
        weight_classes=_counted(_weight_class(linear) for linear in linears),
        lm_head_dtype=_stored_dtype(head.weight) if head is not None else "none",
        lm_head_tied=head is not None and shares_storage(head.weight, embedding.weight),
        notes=loaded.notes,
        file_types=loaded.file_types,
    )


def parameter_count(model: PreTrainedModel) -> int:
    """Return the number of parameters that the unquantized model has; shared ones count once."""
    packed_linears: list[Linear] = [module for module in model.modules() if is_linear(module) and _is_packed(module)]
    packed_ids = {id(tensor) for module in packed_linears for tensor in module.parameters(recurse=False)}
    head: Linear | None = model.get_output_embeddings()
    embedding: Any = model.get_input_embeddings()
    if head is not None and is_tied(model) and not shares_storage(head.weight, embedding.weight):
        packed_ids.add(id(head.weight))  # A copy of the embedding.
    plain = sum(tensor.numel() for tensor in model.parameters() if id(tensor) not in packed_ids)
    packed = sum(
        weights_of(module) + (module.out_features if getattr(module, "bias", None) is not None else 0)
        for module in packed_linears
    )
    return int(plain + packed)


def quantized_linears(model: PreTrainedModel) -> list[Linear]:
    return [module for module in model.modules() if is_linear(module) and is_narrow(module)]


def is_linear(module: nn.Module) -> bool:
    return hasattr(module, "in_features") and hasattr(module, "out_features")


def weights_of(linear: Linear) -> int:
    return int(linear.in_features) * int(linear.out_features)


def _is_packed(linear: Linear) -> bool:
    weight = getattr(linear, "weight", None)
    return hasattr(linear, "qzeros") or weight is None or weight.numel() != weights_of(linear)


def is_narrow(linear: Linear) -> bool:
    return _is_packed(linear) or has_low_bits(linear.weight)


def has_low_bits(weight: torch.Tensor) -> bool:
    # torchao's int4 packs eight codes into a 32-bit word. Fused weights share a storage.
    return sum(part.nbytes for part in flat(weight)) < 2 * _own_part(weight).numel()


def _own_part(weight: torch.Tensor) -> torch.Tensor:
    part: torch.Tensor = getattr(weight, "to_local", lambda: weight)()
    return part


def _weight_class(linear: Linear) -> str:
    weight = getattr(linear, "qweight", None) if hasattr(linear, "qzeros") else getattr(linear, "weight", None)
    if weight is None:
        return "none"
    kind = type(weight.data).__name__ if type(weight).__name__ == "Parameter" else type(weight).__name__
    return f"{kind} {_stored_dtype(weight)}"


def module_tensors(module: nn.Module) -> Iterator[torch.Tensor]:
    """Yield a module's parameters, buffers and extra tensors of its quantization."""
    yield from module.parameters(recurse=False)
    yield from module.buffers(recurse=False)
    for loader in LOADERS.values():
        yield from loader.extra_tensors(module)


def flat(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the tensors that a tensor subclass consists of; of a tensor split over GPUs, only those of this rank."""
    tensor = _own_part(tensor)
    flatten: Any = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        yield tensor
        return
    names, _ = flatten()
    for name in names:
        yield from flat(getattr(tensor, name))


def storage_bytes(tensors: Iterator[torch.Tensor]) -> int:
    sizes: dict[tuple[str, int], int] = {}
    for tensor in tensors:
        for part in flat(tensor):
            storage = part.untyped_storage()
            # On the meta device all addresses are 0.
            sizes[str(part.device), storage.data_ptr() or id(part)] = storage.nbytes()
    return sum(sizes.values())


def shares_storage(first: torch.Tensor, second: torch.Tensor) -> bool:
    def places(tensor: torch.Tensor) -> set[int]:
        return {part.untyped_storage().data_ptr() or id(part) for part in flat(tensor)}

    return places(first) == places(second)


def _stored_dtype(weight: torch.Tensor) -> str:
    return str(max(flat(weight), key=lambda part: part.numel()).dtype).removeprefix("torch.")


def _counted(names: Iterator[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items()))


def prepare_checkpoint(
    checkpoint: Checkpoint, variant: QuantSpec, dtype: DType, device: Device, progress: Progress
) -> Checkpoint:
    target = Target(device.torch_name, dtype)
    return LOADERS[variant.quant].prepare(checkpoint, loader_options(variant), target, progress)


def find_checkpoint(
    model: ModelSpec,
    variant: QuantSpec,
    *,
    progress: Progress | None = None,
    device: str = "cpu",
    check_config: Callable[[dict[str, Any]], None] = lambda config: None,
    is_external: bool = False,
) -> Checkpoint:
    """Return the checkpoint of a model and variant, downloaded or made if necessary, and not yet quantized.

    Args:
        is_external: True if stored formats are read elsewhere, such as by an engine with its own libraries.
    """
    loader = LOADERS[variant.quant]
    if variant.quant == "gguf" and gguf_file(model) is None:
        raise ModelError(
            f"{model.id}: not a GGUF file, which --quant gguf reads: give one with --model FILE.gguf; "
            "--engine llama-cpp --engine-option gguf=Q8_0 makes one of a checkpoint"
        )
    if model.load_format == "dummy" and loader.stored_only and loader.packing is None:
        raise ModelError(f"{variant.quant}: random weights of {loader.summary} are not made; give a checkpoint")
    options = loader_options(variant)
    is_passed_on = is_external and loader.stored_only is not None
    target = Target(device, model.dtype)
    if not is_passed_on:
        check_supported(loader, options, target)

    def check_found(config: dict[str, Any]) -> None:
        check_config(config)
        if model.load_format == "dummy" or gguf_file(model):
            return
        check_stored(variant.quant, model.id, config)
        if not is_passed_on and (stored := config.get("quantization_config")):
            loader.check(options.model_copy(update=loader.stored_options(stored)), target)

    needs = QuantizationNeeds(() if is_passed_on else loader.packages, loader.packing, options)
    return find_for_quantization(model, needs, progress=progress, device=device, check_config=check_found)


def of_checkpoint(form: QuantT, model: ModelSpec) -> QuantT:
    """Return the variant with the quantization (if `auto`) and the options that the model's checkpoint determines.

    For a hub id, only `auto` reads the config, because reading requires a request to the hub.
    """
    form = with_scheme(form)
    # Unlike Path.is_dir, this is False for a name that is too long.
    if form.quant != AUTO and not os.path.isdir(os.path.expanduser(model.id)):
        return form
    stored = stored_quantization(model) or {}
    if stored and model.load_format == "dummy" and not gguf_file(model):
        if form.quant == AUTO:
            raise FieldError(f"{model.id} is quantized; choose the quantization of the random weights", field="quant")
        stored = {}
    quant = stored_quant(stored) or "fp16" if form.quant == AUTO else quant_named(form.quant)
    loader = LOADERS[quant]
    if stored:
        check_stored(quant, model.id, {"quantization_config": stored})
    own = loader.stored_options(stored) if loader.reads(stored) else {}
    for name, value in form.options.items():
        if own.get(name, value) != value:
            has, choice = ("is ", "--quant") if name == "scheme" else (f"has {name}=", f"--option {name}")
            field = "quant" if name == "scheme" else "options"
            raise FieldError(f"{model.id} {has}{own[name]} and not {value}; leave {choice} out", field=field)
    options = {name: value for name, value in own.items() if value != getattr(loader.options(), name)}
    return form.model_copy(update={"quant": quant, "options": options | form.options})


def options_of(quant: str, options: Options, checkpoint: Checkpoint) -> Options:
    stored, loader = checkpoint.quantization or {}, LOADERS[quant]
    return options.model_copy(update=loader.stored_options(stored)) if loader.reads(stored) else options


def file_refusal(quant: str, checkpoint: Checkpoint) -> str | None:
    if not checkpoint.is_gguf or quant == "gguf":
        return None
    by = "--quant gguf reads it through transformers, --engine llama-cpp through llama.cpp"
    return f"{checkpoint.model_id} is a GGUF file: {by}"


def check_stored(quant: str, model_id: str, config: dict[str, Any]) -> None:
    """Raise ModelError if `quant` cannot load the checkpoint of this config.json: another quantization, or none."""
    stored, loader = config.get("quantization_config"), LOADERS[quant]
    if not isinstance(stored, dict) and loader.stored_only:
        dummy = ", or add --load-format dummy for random weights" if loader.packing else ""
        raise ModelError(f"{model_id}: {loader.stored_only}{dummy}")
    if not isinstance(stored, dict) or loader.reads(stored):
        return
    method = str(stored.get("quant_method", "an unnamed method"))
    able = stored_quant(stored)
    if able is None:
        raise ModelError(f"{model_id}: quantized with {method}, which no --quant loads; use an unquantized checkpoint")
    scheme = LOADERS[able].stored_options(stored).get("scheme")
    method = f"{method}, {scheme}" if scheme and scheme != method else method
    way_on = f"use --quant {able}, or an unquantized checkpoint"
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
        quant: A name in `quantization.registry.LOADERS`, such as `int8`, or an alias; `auto` for the checkpoint's own
            quantization.
        device: `auto`, `cpu`, `cuda` or `cuda:1`.
        dtype: Type of tensors that are not quantized.
    """
    fields = {"id": model, "revision": revision, "load_format": load_format, "dtype": dtype}
    spec = validated(ModelSpec, fields | {"trust_remote_code": trust_remote_code}, where="load_model")
    variant = validated(QuantSpec, {"quant": quant, "options": options or {}}, where="load_model")
    try:
        variant = resolved_quant(of_checkpoint(variant, spec))
        loaded, _ = prepare_and_load(spec, variant, find_device(device), Silent())
    except FieldError as error:
        raise SpecError(f"load_model: {error.field + ': ' if error.field else ''}{error}") from error
    except BenchmarkerError as error:
        error.args = (OPTION.sub(lambda found: f'{found[1].replace("-", "_")}="{found[2]}"', str(error)),)
        raise
    return loaded.model


def find_and_prepare(
    model: ModelSpec, variant: QuantSpec, device: Device, progress: Progress, *, is_external: bool = False
) -> Checkpoint:
    checkpoint = find_checkpoint(model, variant, progress=progress, device=device.torch_name, is_external=is_external)
    return prepare_checkpoint(checkpoint, variant, model.dtype, device, progress)


def prepare_and_load(
    model: ModelSpec, variant: QuantSpec, device: Device, progress: Progress
) -> tuple[Loaded, Checkpoint]:
    checkpoint = find_and_prepare(model, variant, device, progress)
    target = Target(device.torch_name, model.dtype)
    return load_quantized(variant.quant, checkpoint, loader_options(variant), target), checkpoint


def load_quantized(quant: str, checkpoint: Checkpoint, options: Options, target: Target) -> Loaded:
    """Load a prepared checkpoint with the requested output layer; UnsupportedError if no weight is quantized."""
    if refusal := file_refusal(quant, checkpoint):
        raise UnsupportedError(refusal)
    return with_output_layer(LOADERS[quant].load(checkpoint, options, target), quant, checkpoint, options)


def with_output_layer(loaded: Loaded, quant: str, checkpoint: Checkpoint, options: Options) -> Loaded:
    """Return the model with the requested output layer; UnsupportedError if no weight is quantized."""
    is_made_here = checkpoint.quantization is None or checkpoint.is_gguf
    if LOADERS[quant].has_low_bits and is_made_here and not quantized_linears(loaded.model):
        raise UnsupportedError(_nothing_quantized(quant, loaded.model))
    if checkpoint.is_text_part:
        note = f"only the text part ({checkpoint.config['model_type']}) of the multimodal checkpoint is loaded"
        loaded = replace(loaded, notes=(note, *loaded.notes))
    return with_head(loaded, options)


def _nothing_quantized(quant: str, model: PreTrainedModel) -> str:
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
