"""Quantized linears that the compiler cannot look into, made one opaque operator each.

gptqmodel's kernels call extensions or compare addresses, which torch.compile cannot trace: each would break the graph
in two, and a broken graph is most of the way back to eager mode. As an operator of its own the layer runs exactly the
kernel that it would run otherwise, and everything around it is compiled as one graph. What the compiler cannot do is
fuse into it.

The operator finds its layer by a number. That number is a tensor, so that all decoder layers look the same to the
compiler, and one compilation serves them all.
"""

import weakref
from typing import Any

import torch
from torch import Tensor, nn

from benchmarker.kernels.rewritten_module import with_forward

# No `from __future__ import annotations` here: torch reads the operator's types from its annotations.

TRACEABLE = ("TorchAtenLinear",)
"""gptqmodel's classes that need no help: on CPU this one calls an operator of torch's own."""

# An operator takes tensors and numbers only, so it finds its layer by number. Held weakly: a model that has been judged
# makes room for its baseline.
_layers: list[weakref.ref[nn.Module]] = []


@torch.library.custom_op("benchmarker::quantized_linear", mutates_args=())
def quantized_linear(hidden: Tensor, number: Tensor, features: int) -> Tensor:
    """Run a quantized linear as its library's class would.

    Args:
        hidden: [..., in].
        number: The layer's number, a scalar on the CPU.
        features: Outputs of the layer.

    Returns:
        [..., out], where out is `features`.
    """
    linear: Any = _layers[int(number)]()
    assert linear is not None, f"quantized linear {int(number)} is gone, with its model"
    result: Tensor = linear.own_class.forward(linear, hidden)
    return result


@quantized_linear.register_fake
def _shape(hidden: Tensor, number: Tensor, features: int) -> Tensor:
    return hidden.new_empty((*hidden.shape[:-1], features))


def make_opaque(model: nn.Module) -> None:
    """Route every untraceable linear of the model through the operator. Doing it twice changes nothing."""
    for module in model.modules():
        if _is_untraceable(module):
            hide(module)


def _is_untraceable(module: nn.Module) -> bool:
    kind = type(module)
    return kind.__module__.startswith("gptqmodel.") and hasattr(module, "qweight") and kind.__name__ not in TRACEABLE


def hide(linear: Any) -> None:
    """Give a linear the forward `through_operator`, and a number by which the operator finds it."""
    library_class = type(linear)
    linear.opaque_number = torch.tensor(len(_layers))
    _layers.append(weakref.ref(linear))
    linear.own_class = library_class
    linear.__class__ = with_forward(library_class, through_operator)


def through_operator(linear: Any, hidden: Tensor) -> Tensor:
    """A linear's forward by the operator while the compiler is tracing; by the library's own otherwise.

    Calling the operator costs the host more than calling the layer, so that only compiled code does.
    """
    result: Tensor = (
        quantized_linear(hidden, linear.opaque_number, linear.out_features)
        if torch.compiler.is_compiling()
        else linear.own_class.forward(linear, hidden)
    )
    return result
