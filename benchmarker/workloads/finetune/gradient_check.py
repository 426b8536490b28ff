"""Gradients of the first layers, compared with a float32 reference.

The reference is transformers' model with the same number of layers in float32, with eager attention and neither
checkpointing nor autocast. This file dequantizes quantized weights by code table and scales, and computes an adapter as

    y = x W^T + scaling * (x A^T) B^T

so that the reference contains neither peft's layers nor bitsandbytes' kernels. B is zero before the first step, which
makes the gradient of A zero; therefore B is random during this check. The error is 1 - cosine over all trained weights
together. The error of the same reference in the model's type shows how much error the type alone causes.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.functional import linear as multiply

from benchmarker.core.errors import UnsupportedError, WrongResultError
from benchmarker.workloads.finetune.record import FinetuneChecked
from benchmarker.workloads.finetune.trainee import Trainee

LAYERS = 4
POSITIONS = 256
TOLERANCE = 0.01
INT8_TOLERANCE = 0.05  # Tolerance of LLM.int8(), which rounds activations too, unlike the reference.
PLAIN_RATIO = 2.0
B_STD = 0.02


def check_gradients(trainee: Trainee, ids: Tensor) -> FinetuneChecked:
    """Compare the gradients of the first sequence of `ids`, cut to POSITIONS. Raises WrongResultError if a loss or a
    gradient is not finite, and UnsupportedError if the model does not store its layers in a single list."""
    ids = ids[:1, :POSITIONS]
    with _first_layers(trainee.base) as layers, _random_b(trainee):
        loss, gradients = _gradients(trainee.loss(ids), trainee.trained)
        reference = reference_model(trainee, layers)
        exact_loss, exact = _reference_gradients(reference, trainee, ids)
        _, plain = _reference_gradients(reference.to(getattr(torch, trainee.dtype)), trainee, ids)
    del reference
    if not (math.isfinite(loss) and math.isfinite(exact_loss)):
        raise WrongResultError(f"wrong result: the loss of the first layers is {loss}, and {exact_loss} in float32")
    if len(gradients) != len(exact):
        raise WrongResultError(f"wrong result: {len(gradients)} weights have a gradient, and {len(exact)} in float32")
    cosines = [cosine(compared, exact) for compared in (gradients, plain)]
    if not all(map(math.isfinite, cosines)):
        raise WrongResultError("wrong result: a gradient holds a number that is not finite")
    error, plain_error = (max(0.0, 1 - value) for value in cosines)
    least = INT8_TOLERANCE if trainee.recipe.base == "int8" else TOLERANCE
    return FinetuneChecked(
        against="gradients in float32",
        error=error,
        tolerance=max(least, PLAIN_RATIO * plain_error),
        layers=layers,
        positions=ids.shape[1],
        plain_error=plain_error,
        loss=loss,
        reference_loss=exact_loss,
    )


def refuse_inaccurate(checked: FinetuneChecked) -> None:
    if checked.error > checked.tolerance:
        cosines = f"{1 - checked.error:.4f}; {1 - checked.tolerance:.4f} is allowed"
        raise WrongResultError(f"wrong result: the gradients' cosine with those in float32 is {cosines}")


def cosine(gradients: list[Tensor], references: list[Tensor]) -> float:
    """Return the cosine of two gradients, each concatenated into one vector, summed in float64."""
    product = square = reference_square = 0.0
    for gradient, reference in zip(gradients, references, strict=True):
        computed, expected = gradient.double().flatten(), reference.double().flatten()
        product += (computed @ expected).item()
        square += (computed @ computed).item()
        reference_square += (expected @ expected).item()
    return float(product / (square * reference_square) ** 0.5) if square and reference_square else 0.0


@contextmanager
def _first_layers(base: Any) -> Iterator[int]:
    """Reduce the model to its first layers until the context ends; yield their number."""
    decoder, config = base.get_decoder(), base.config.get_text_config()
    lists = [(name, child) for name, child in decoder.named_children() if isinstance(child, nn.ModuleList)]
    if len(lists) != 1:
        raise UnsupportedError(
            f"{type(decoder).__name__} keeps its layers in {len(lists)} lists and not in one: its gradients cannot be "
            "checked"
        )
    name, layers = lists[0]
    count = config.num_hidden_layers
    config.num_hidden_layers = min(LAYERS, count)
    setattr(decoder, name, layers[:LAYERS])
    try:
        yield config.num_hidden_layers
    finally:
        setattr(decoder, name, layers)
        config.num_hidden_layers = count


@contextmanager
def _random_b(trainee: Trainee) -> Iterator[None]:
    generator = torch.Generator(device=trainee.device.torch_name).manual_seed(0)
    matrices = [parameter for name, parameter in trainee.model.named_parameters() if ".lora_B." in name]
    for matrix in matrices:
        torch.nn.init.normal_(matrix, 0, B_STD, generator=generator)
    try:
        yield
    finally:
        for matrix in matrices:
            torch.nn.init.zeros_(matrix)


def _gradients(loss: Tensor, parameters: list[nn.Parameter]) -> tuple[float, list[Tensor]]:
    loss.backward()
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    for parameter in parameters:
        parameter.grad = None
    return loss.item(), gradients


def _reference_gradients(reference: Any, trainee: Trainee, ids: Tensor) -> tuple[float, list[Tensor]]:
    parameters = dict(reference.named_parameters())
    names = [name for name, parameter in trainee.model.named_parameters() if parameter.requires_grad]
    plain_names = [name.removeprefix("base_model.model.").replace(".default.weight", "") for name in names]
    trained = [parameters[name] for name in plain_names]
    return _gradients(reference(input_ids=ids, labels=ids, use_cache=False).loss, trained)


def reference_model(trainee: Trainee, layers: int) -> Any:
    """Return transformers' model in float32 with the trainee's dequantized weights and with adapters as formulas."""
    from transformers import AutoModelForCausalLM

    config = copy.deepcopy(trainee.base.config)
    text_config = config.get_text_config()
    text_config.num_hidden_layers = layers
    if getattr(text_config, "layer_types", None):
        text_config.layer_types = text_config.layer_types[:layers]
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with torch.device(trainee.device.torch_name):
        reference = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    reference.train()
    with torch.no_grad():
        for name, parameter in list(reference.named_parameters()):
            parent, _, last = name.rpartition(".")
            parameter.copy_(plain_weight(trainee.base.get_submodule(parent), last))
            parameter.requires_grad_(trainee.recipe.train == "full")
    for name, module in trainee.base.named_modules():
        if hasattr(module, "lora_A"):
            _adapt(reference.get_submodule(name), module)
    return reference


def _adapt(linear: Any, adapted: Any) -> None:
    """Copy an adapter's weights to a linear layer, and add scaling * (x A^T) B^T to the layer's output."""
    scaling: float = adapted.scaling["default"]
    for name in ("lora_A", "lora_B"):
        setattr(linear, name, Parameter(getattr(adapted, name)["default"].weight.detach().float().clone()))

    def add_adapter(layer: Any, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        return output + scaling * multiply(multiply(inputs[0], layer.lora_A), layer.lora_B)

    linear.register_forward_hook(add_adapter)


def plain_weight(module: Any, name: str) -> Tensor:
    """Return the parameter `name` of a module in float32, dequantized if it is quantized."""
    module = getattr(module, "base_layer", module)
    weight: Any = getattr(module, name)
    kind = type(weight).__name__
    if kind == "Params4bit":
        return unpacked_nf4(weight)
    plain: Tensor = weight.detach().float()
    if kind == "Int8Params":
        scales = weight.SCB if weight.SCB is not None else module.state.SCB
        plain = plain * (scales.float() / 127)[:, None]
    return plain


def unpacked_nf4(weight: Any) -> Tensor:
    """Return an NF4 weight in float32: table[code] * scale of the block; two codes per byte, high bits first."""
    state = weight.quant_state
    absmax = state.absmax
    if state.nested:
        from bitsandbytes.functional import dequantize_blockwise

        absmax = dequantize_blockwise(state.absmax, state.state2) + state.offset
    packed = weight.data.view(torch.uint8).flatten()
    codes = torch.stack((packed >> 4, packed & 15), dim=1).flatten().long()
    values: Tensor = state.code.float()[codes].view(-1, state.blocksize) * absmax.float()[:, None]
    return values.view(-1)[: state.shape.numel()].view(state.shape)
