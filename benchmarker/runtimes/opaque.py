"""Quantized linears that the compiler cannot look into, made one opaque operator each.

gptqmodel's kernels call extensions or compare addresses, which torch.compile cannot trace: each would break the graph
in two, and a broken graph is most of the way back to eager mode. As an operator of its own the layer runs exactly the
kernel that it would run otherwise, and everything around it is compiled as one graph. What the compiler cannot do is
fuse into it.
"""

from typing import Any

import torch
from torch import Tensor, nn

# No `from __future__ import annotations` here: torch reads the operator's types from its annotations.

TRACEABLE = ("TorchAtenLinear",)
"""gptqmodel's classes that need no help: on CPU this one calls an operator of torch's own."""

# An operator takes tensors and numbers only, so it finds its layer by number. One process measures one model.
_layers: list[nn.Module] = []


@torch.library.custom_op("benchmarker::quantized_linear", mutates_args=())
def quantized_linear(hidden: Tensor, layer: int, features: int) -> Tensor:
    """Run layer number `layer` as its own class would; `features` is what comes out for each position."""
    linear = _layers[layer]
    result: Tensor = type(linear).forward(linear, hidden)
    return result


@quantized_linear.register_fake
def _shape(hidden: Tensor, layer: int, features: int) -> Tensor:
    return hidden.new_empty((*hidden.shape[:-1], features))


def make_opaque(model: nn.Module) -> None:
    """Route every untraceable linear of the model through the operator. Doing it twice changes nothing."""
    for module in model.modules():
        if _is_untraceable(module) and "forward" not in vars(module):
            _hide(module, features=module.out_features)


def _is_untraceable(module: nn.Module) -> bool:
    kind = type(module)
    return kind.__module__.startswith("gptqmodel.") and hasattr(module, "qweight") and kind.__name__ not in TRACEABLE


def _hide(linear: nn.Module, *, features: Any) -> None:
    number = len(_layers)
    _layers.append(linear)

    def forward(hidden: Tensor) -> Tensor:
        result: Tensor = quantized_linear(hidden, number, features)
        return result

    linear.forward = forward
