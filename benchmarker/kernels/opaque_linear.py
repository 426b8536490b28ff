"""Opaque operator for quantized linears that torch.compile cannot trace.

gptqmodel's kernels call extensions or compare addresses, which would break the graph. As an operator, the layer runs
the library's kernel, and everything else is compiled as one graph. The operator finds its layer by number, a tensor, so
that all decoder layers look the same to the compiler and share one compilation.
"""

import weakref
from typing import Any

import torch
from torch import Tensor, nn

from benchmarker.kernels.rewritten_module import RewrittenModule, with_forward

# No `from __future__ import annotations`: torch reads the operator's types from its annotations.

TRACEABLE = ("TorchAtenLinear",)
"""Classes of gptqmodel that can be traced: on a CPU this one calls an operator of torch."""

# Weak references: a model may be freed to make room for the quality baseline.
_layers: list[weakref.ref[nn.Module]] = []


@torch.library.custom_op("benchmarker::quantized_linear", mutates_args=())
def quantized_linear(hidden: Tensor, number: Tensor, features: int) -> Tensor:
    """Run the library's forward of layer `number` (a scalar on the CPU) for [..., in], and return [..., features]."""
    linear: Any = _layers[int(number)]()
    assert linear is not None, f"quantized linear {int(number)} is gone, with its model"
    result: Tensor = linear.own_class.forward(linear, hidden)
    return result


@quantized_linear.register_fake
def _shape(hidden: Tensor, number: Tensor, features: int) -> Tensor:
    return hidden.new_empty((*hidden.shape[:-1], features))


def make_opaque(model: nn.Module) -> None:
    """Route every untraceable linear through the operator. A second call changes nothing."""
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
    """Call the operator while the compiler traces, and the library's forward otherwise, which costs the host less."""
    result: Tensor = (
        quantized_linear(hidden, linear.opaque_number, linear.out_features)
        if torch.compiler.is_compiling()
        else linear.own_class.forward(linear, hidden)
    )
    return result
