"""Which tensors a checkpoint of a model holds: names, shapes and random values, from its config alone.

The model is built on torch's meta device, where tensors have shapes and no memory, so that names and shapes are
transformers' own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarker.checkpoints.base import Form, PlannedLinear, PlannedTensor
from benchmarker.checkpoints.model_config import transformers_config
from benchmarker.core.errors import ModelError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

Fill = Callable[["torch.Tensor", "torch.Generator"], "torch.Tensor"]


def plan_tensors(source: Path, config: dict[str, Any], form: Form, *, trusted: bool) -> tuple[PlannedTensor, ...]:
    """Every tensor to be written, a shared one once.

    Args:
        source: The folder that the config came from; the model's own code is in it where it has any.
        form: Says how linear layers are stored.

    Raises:
        ModelError: transformers has no such architecture.
    """
    model = empty_model(source, trusted=trusted)
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")
    std = float(getattr(model.config, "initializer_range", None) or 0.02)
    packed = packable_linears(model) if form.packing else {}
    planned: list[PlannedTensor] = []
    for name, linear in packed.items():
        assert form.packing is not None
        planned += form.packing.tensors(
            PlannedLinear(name, linear.in_features, linear.out_features, linear.bias is not None, std), form.options
        )
    for name, tensor in _stored(model):
        module, _, last = name.rpartition(".")
        if module not in packed:
            owner = type(model.get_submodule(module)).__name__
            planned.append(plain_tensor(name, dtype, tuple(tensor.shape), _fill(owner, last, std)))
    return tuple(planned)


def empty_model(source: Path, *, trusted: bool = False) -> PreTrainedModel:
    """The model without memory for its weights.

    Raises:
        ModelError: transformers has no such architecture, or the config is not one of a language model.
    """
    import torch
    from transformers import AutoModelForCausalLM

    config = transformers_config(source, trusted=trusted).get_text_config(decoder=True)
    try:
        with torch.device("meta"):
            model: PreTrainedModel = AutoModelForCausalLM.from_config(config, trust_remote_code=trusted)
    except (ValueError, KeyError, ImportError, OSError, TypeError, AttributeError) as error:
        raise ModelError(
            f"{source}: transformers cannot build this model: {' '.join(str(error).split())[:200]}"
        ) from error
    return model


def packable_linears(model: PreTrainedModel) -> dict[str, torch.nn.Linear]:
    """The linear layers inside the model's blocks; the output layer is not among them."""
    import torch

    head = model.get_output_embeddings()
    return {
        name: module
        for name, module in model.named_modules()
        # The exact class, as optimum asks for: subclasses are routers and the like.
        if type(module) is torch.nn.Linear and module is not head
    }


def _stored(model: PreTrainedModel) -> list[tuple[str, torch.Tensor]]:
    """What a checkpoint holds: parameters without their second names, and the buffers that are saved."""
    parameters = dict(model.named_parameters())
    shared = {name for name, _ in model.named_parameters(remove_duplicate=False)} - parameters.keys()
    return [(name, tensor) for name, tensor in model.state_dict().items() if name not in shared]


def _fill(owner: str, name: str, std: float) -> Fill:
    if "norm" in owner.lower() and name == "weight":
        return lambda tensor, _: tensor.fill_(1.0)
    if name == "bias":
        return lambda tensor, _: tensor.zero_()
    return lambda tensor, generator: tensor.normal_(0.0, std, generator=generator)


def plain_tensor(name: str, dtype: str, shape: tuple[int, ...], fill: Fill) -> PlannedTensor:
    """A tensor that is allocated on the generator's device and then filled."""
    import torch

    def make(generator: torch.Generator) -> torch.Tensor:
        return fill(torch.empty(shape, dtype=getattr(torch, dtype), device=generator.device), generator)

    return PlannedTensor(name, dtype, shape, make)
