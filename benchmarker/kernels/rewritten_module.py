"""Replacement of a module's class, by which a model's modules get this package's forwards and attributes.

`module.__class__ = with_forward(type(module), forward)` changes the forward of one module in place. Parameters, hooks
and references to the module are not changed, all layers of a kind have one class for torch.compile, and `base_class`
returns the old class. A wrapper module would change parameter names; a `forward` attribute would be a new function in
each layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

_classes: dict[tuple[type[nn.Module], Callable[..., Any]], type[nn.Module]] = {}

ADDED = ("packed_form", "max_packed_rows", "has_gemv", "fused_slice", "swiglu_kernels")
"""Attributes that `restore` removes; `RewrittenModule` describes them."""


class RewrittenModule(nn.Module):
    """Attributes of a linear or MLP after `optimize`. Used only for type checks: no module has this class."""

    in_features: int
    out_features: int
    weight: Any
    bias: Tensor | None
    packed_form: str | None  # `Packed.form` of the weights; None if the quantized GEMM does not support them.
    max_packed_rows: int  # Maximum number of rows of the quantized GEMM; 0 if `packed_form` is None.
    has_gemv: bool  # False if the quantized GEMM supports the linear, but no GEMV kernel does.
    fused_slice: FusedSlice  # Outputs of the linear in a fused linear; missing if it is not fused.
    swiglu_kernels: SwigluKernels  # Kernels that compute an MLP's SwiGLU; missing if no kernel does.
    own_class: type[Any]  # The library's class of a linear that calls the opaque operator; not removed by `restore`.
    opaque_number: Tensor  # Number of the linear in the opaque operator.
    original_forward: Callable[..., Any]  # Forward of the module's class before `with_forward`.


@dataclass
class FusedLinear:
    linear: nn.Module  # Linear with the outputs of all fused linears; not a registered module of the model.
    output: Tensor | None = None
    """Output, [batch, tokens, outputs of all], from the first to the last linear's call in a forward; else None."""


@dataclass
class FusedSlice:
    """Outputs of one linear in a fused linear."""

    fused: FusedLinear
    start: int
    stop: int
    is_last: bool  # True for the linear that the model calls last.


@dataclass(frozen=True)
class SwigluKernels:
    """Cases, one row and prefills, in which a kernel of this package computes an MLP's SwiGLU."""

    for_one_query: bool
    for_prompts: bool


def with_forward(kind: type[nn.Module], forward: Callable[..., Any]) -> type[nn.Module]:
    """Return a subclass of `kind` with the same name and this forward; `original_forward` is the forward of `kind`.

    The result is cached: layers of a kind must have the same class, because the compiler distinguishes classes.
    """
    if (kind, forward) not in _classes:
        _classes[kind, forward] = type(kind.__name__, (kind,), {"forward": forward, "original_forward": kind.forward})
    return _classes[kind, forward]


def base_class(kind: type[nn.Module]) -> type[nn.Module]:
    """Return the library's class, from which `with_forward` made subclasses."""
    overridden = set(_classes.values())
    while kind in overridden:
        kind = kind.__bases__[0]
    return kind
