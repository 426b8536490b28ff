"""Are the gradients right? Those of the first layers against the same in float32.

The reference is transformers' model of as many layers in float32, with eager attention, no checkpointing and no
autocast. Quantized weights are unpacked here, by the table of values and the scales, and an adapter is written out as

    y = x W^T + scaling * (x A^T) B^T

so that neither peft's layers nor bitsandbytes' kernels are in it. B is zero before the first step, and A would have no
gradient: for this check B is random. The error is 1 - cosine over all trained weights together. The same reference in
the model's type tells what that alone costs.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from benchmarker.core.errors import UnsupportedError, WrongResultError
from benchmarker.workloads.finetune.record import FinetuneChecked
from benchmarker.workloads.finetune.trainee import Trainee

if TYPE_CHECKING:
    from torch import Tensor, nn

LAYERS = 4
POSITIONS = 256
TOLERANCE = 0.01
INT8_TOLERANCE = 0.05
"""LLM.int8() rounds activations too, which the reference does not."""
PLAIN_RATIO = 2.0
B_STD = 0.02


def check_gradients(trainee: Trainee, ids: Tensor) -> FinetuneChecked:
    """Compare one sequence's gradients.

    Args:
        ids: [batch, length]; the first sequence is cut to at most POSITIONS.

    Raises:
        WrongResultError: A loss or a gradient is no number.
        UnsupportedError: The model does not keep its layers in one list.
    """
    import torch

    ids = ids[:1, :POSITIONS]
    with _shortened(trainee.base) as layers, _random_b(trainee):
        row_loss, row = _of_row(trainee, ids)
        reference = reference_model(trainee, layers)
        exact_loss, exact = _of_reference(reference, trainee, ids)
        _, plain = _of_reference(reference.to(getattr(torch, trainee.dtype)), trainee, ids)
    del reference
    if not (math.isfinite(row_loss) and math.isfinite(exact_loss)):
        raise WrongResultError(f"wrong result: the loss of the first layers is {row_loss}, and {exact_loss} in float32")
    if len(row) != len(exact):
        raise WrongResultError(f"wrong result: {len(row)} weights have a gradient, and {len(exact)} in float32")
    cosines = [cosine(gradients, exact) for gradients in (row, plain)]
    if not all(map(math.isfinite, cosines)):
        raise WrongResultError("wrong result: a gradient is no number")
    error, plain_error = (max(0.0, 1 - value) for value in cosines)
    least = INT8_TOLERANCE if trainee.recipe.base == "int8" else TOLERANCE
    return FinetuneChecked(
        against="gradients in float32",
        error=error,
        tolerance=max(least, PLAIN_RATIO * plain_error),
        layers=layers,
        positions=ids.shape[1],
        plain_error=plain_error,
        loss=row_loss,
        reference_loss=exact_loss,
    )


def wrong(checked: FinetuneChecked) -> str | None:
    """What is wrong, in one line; None where the gradients are right."""
    if checked.error <= checked.tolerance:
        return None
    return (
        f"wrong result: the gradients' cosine with those in float32 is {1 - checked.error:.4f}; "
        f"{1 - checked.tolerance:.4f} is allowed"
    )


def cosine(gradients: list[Tensor], references: list[Tensor]) -> float:
    """Cosine of two gradients, each all of its tensors as one vector, summed in float64."""
    product = square = reference_square = 0.0
    for gradient, reference in zip(gradients, references, strict=True):
        computed, expected = gradient.double().flatten(), reference.double().flatten()
        product += (computed @ expected).item()
        square += (computed @ computed).item()
        reference_square += (expected @ expected).item()
    return float(product / (square * reference_square) ** 0.5) if square and reference_square else 0.0


@contextmanager
def _shortened(base: Any) -> Iterator[int]:
    """While open, the model has its first layers alone.

    Raises:
        UnsupportedError: It does not keep them in one list.
    """
    from torch import nn

    decoder, config = base.get_decoder(), base.config.get_text_config()
    lists = {name: child for name, child in decoder.named_children() if isinstance(child, nn.ModuleList)}
    if len(lists) != 1:
        raise UnsupportedError(
            f"{type(decoder).__name__} keeps its layers in {len(lists)} lists and not in one: its gradients cannot be "
            "checked"
        )
    ((name, layers),) = lists.items()
    count = config.num_hidden_layers
    least = min(LAYERS, count)
    setattr(decoder, name, nn.ModuleList(list(layers)[:least]))
    config.num_hidden_layers = least
    try:
        yield least
    finally:
        setattr(decoder, name, layers)
        config.num_hidden_layers = count


@contextmanager
def _random_b(trainee: Trainee) -> Iterator[None]:
    """While open, the adapters' second matrices are random."""
    import torch

    generator = torch.Generator(device=trainee.device.torch_name).manual_seed(0)
    matrices = [parameter for name, parameter in trainee.model.named_parameters() if ".lora_B." in name]
    with torch.no_grad():
        for matrix in matrices:
            matrix.normal_(0, B_STD, generator=generator)
    try:
        yield
    finally:
        with torch.no_grad():
            for matrix in matrices:
                matrix.zero_()


def _of_row(trainee: Trainee, ids: Tensor) -> tuple[float, list[Tensor]]:
    """The loss and gradients that this variant computes. Its own weights have no gradient afterwards."""
    loss = trainee.loss(ids)
    loss.backward()
    trained = trainee.trained
    gradients = [parameter.grad for parameter in trained if parameter.grad is not None]
    for parameter in trained:
        parameter.grad = None
    return loss.item(), gradients


def _of_reference(reference: Any, trainee: Trainee, ids: Tensor) -> tuple[float, list[Tensor]]:
    """The same from the reference, in the order of the trainee's weights."""
    loss = reference(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    parameters = dict(reference.named_parameters())
    gradients = []
    for name, parameter in trainee.model.named_parameters():
        if parameter.requires_grad and (gradient := parameters[_plain_name(name)].grad) is not None:
            gradients.append(gradient.detach().clone())
    reference.zero_grad(set_to_none=True)
    return loss.item(), gradients


def _plain_name(name: str) -> str:
    """The reference's name of a weight: `model.layers.0.mlp.up_proj.lora_A`."""
    return name.removeprefix("base_model.model.").replace(".default.weight", "")


def reference_model(trainee: Trainee, layers: int) -> Any:
    """A model in float32 with the trainee's weights, and adapters written out."""
    import torch
    from transformers import AutoModelForCausalLM

    config = copy.deepcopy(trainee.base.config)
    config.get_text_config().num_hidden_layers = layers
    if getattr(config.get_text_config(), "layer_types", None):
        config.get_text_config().layer_types = config.get_text_config().layer_types[:layers]
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with torch.device(trainee.device.torch_name):
        reference = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    reference.train()
    with torch.no_grad():
        for name, parameter in list(reference.named_parameters()):
            place, _, last = name.rpartition(".")
            module = trainee.base.get_submodule(place)
            parameter.copy_(plain_weight(module, last))
            parameter.requires_grad_(trainee.recipe.train == "full")
    for name, module in list(trainee.base.named_modules()):
        if hasattr(module, "lora_A"):
            parent, _, last = name.rpartition(".")
            adapted = _adapted(reference.get_submodule(name), module)
            setattr(reference.get_submodule(parent), last, adapted)
    return reference


def _adapted(linear: nn.Module, module: Any) -> nn.Module:
    """A linear layer with its adapter, in three products."""
    import torch
    from torch.nn.functional import linear as multiply

    class Adapted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = linear
            self.lora_A = torch.nn.Parameter(module.lora_A["default"].weight.detach().float().clone())
            self.lora_B = torch.nn.Parameter(module.lora_B["default"].weight.detach().float().clone())

        def forward(self, hidden: Tensor) -> Tensor:
            narrow = multiply(hidden, self.lora_A)
            added: Tensor = self.linear(hidden) + module.scaling["default"] * multiply(narrow, self.lora_B)
            return added

    return Adapted()


def plain_weight(module: Any, name: str) -> Tensor:
    """A parameter of a module of the trainee in float32, unpacked where it is packed."""
    module = getattr(module, "base_layer", module)
    weight: Any = getattr(module, name)
    kind = type(weight).__name__
    if kind == "Params4bit":
        return unpacked_nf4(weight)
    if kind == "Int8Params":
        scales = weight.SCB if weight.SCB is not None else module.state.SCB
        scaled: Tensor = weight.data.float() * (scales.float() / 127)[:, None]
        return scaled
    plain: Tensor = weight.detach().float()
    return plain


def unpacked_nf4(weight: Any) -> Tensor:
    """Two codes a byte, the high one first; each code a value of the table, times the scale of its block."""
    import torch

    state = weight.quant_state
    absmax = state.absmax
    if state.nested:
        from bitsandbytes.functional import dequantize_blockwise

        absmax = dequantize_blockwise(state.absmax, state.state2) + state.offset
    packed = weight.data.view(torch.uint8).flatten()
    codes = torch.stack((packed >> 4, packed & 15), dim=1).flatten().long()
    values = state.code.float()[codes].view(-1, state.blocksize) * absmax.float()[:, None]
    unpacked: Tensor = values.view(-1)[: state.shape.numel()].view(state.shape)
    return unpacked
