"""Opaque operator for quantized linears that torch.compile cannot trace.

gptqmodel's kernels call extensions or compare addresses, which would break the graph. Inside an operator, the linear
runs the library's kernel, and everything else is compiled as one graph. The operator finds its linear by number. The
number is a tensor, so that all decoder layers are equal for the compiler and share one compilation.
"""

import weakref
from typing import Any

import torch
from torch import Tensor, nn

from benchmarker.kernels.rewritten_module import RewrittenModule, with_forward

# No `from __future__ import annotations`: torch reads the operator's types from its annotations.

TRACEABLE = ("TorchAtenLinear",)
"""Classes of gptqmodel that can be traced: on a CPU, TorchAtenLinear calls an operator of torch."""

# Weak references, so that a model can be freed, for example before the baseline of quality is loaded.
_layers: list[weakref.ref[nn.Module]] = []


@torch.library.custom_op("benchmarker::quantized_linear", mutates_args=())
def quantized_linear(hidden: Tensor, number: Tensor, features: int) -> Tensor:
    """Run the library's forward of linear `number` (scalar, on the CPU) for [..., in], and return [..., features]."""
    linear: Any = _layers[int(number)]()
    assert linear is not None, f"quantized linear {int(number)} is gone, with its model"
    result: Tensor = linear.own_class.forward(linear, hidden)
    return result


@quantized_linear.register_fake
def _shape(hidden: Tensor, number: Tensor, features: int) -> Tensor:
    return hidden.new_empty((*hidden.shape[:-1], features))


def make_opaque(model: nn.Module) -> None:
    """Make every untraceable linear call the operator. A second call changes nothing."""
    for module in model.modules():
        if _is_untraceable(module):
            hide(module)


def _is_untraceable(module: nn.Module) -> bool:
    kind = type(module)
    return kind.__module__.startswith("gptqmodel.") and hasattr(module, "qweight") and kind.__name__ not in TRACEABLE


def hide(linear: Any) -> None:
    library_class = type(linear)
    linear.opaque_number = torch.tensor(len(_layers))
    _layers.append(weakref.ref(linear))
    linear.own_class = library_class
    linear.__class__ = with_forward(library_class, through_operator)


def through_operator(linear: RewrittenModule, hidden: Tensor) -> Tensor:
    """Call the operator while the compiler traces; else call the library's forward, which takes less host time."""
    result: Tensor = (
        quantized_linear(hidden, linear.opaque_number, linear.out_features)
        if torch.compiler.is_compiling()
        else linear.own_class.forward(linear, hidden)
    )
    return result
