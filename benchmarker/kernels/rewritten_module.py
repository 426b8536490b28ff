"""Class replacement on the user's modules: how a model gets this package's forwards, and which attributes it gets.

`module.__class__ = with_forward(type(module), forward)` changes the forward of one module in place. Parameters, hooks
and references to the module stay, torch.compile sees one class for all layers of a kind, and `base_class` undoes it. A
wrapper module would change parameter names, and a patched `forward` attribute would make each layer a new function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

_classes: dict[tuple[type[nn.Module], Callable[..., Any]], type[nn.Module]] = {}

ADDED = ("packed_form", "most_packed_rows", "has_gemv", "fused_slice", "swiglu_kernels")
"""Attributes that `restore` removes; `RewrittenModule` describes them."""


class RewrittenModule(nn.Module):
    """Attributes of a linear or MLP after `optimize`. For types alone: no module has this class."""

    in_features: int
    out_features: int
    weight: Any
    bias: Tensor | None
    packed_form: str | None  # `Packed.form` of its weights; None if the quantized GEMM does not support them.
    most_packed_rows: int  # Most rows of the quantized GEMM; 0 without a form.
    has_gemv: bool  # False if a GEMV kernel does not support the linear, but the quantized GEMM does.
    fused_slice: FusedSlice  # Its outputs in a fused linear; missing if it is not fused.
    swiglu_kernels: SwigluKernels  # Kernels that compute an MLP's SwiGLU; missing if there are none.
    own_class: type[Any]  # The library's class of a linear behind the opaque operator; stays after `restore`.
    opaque_number: Tensor  # Its number there.
    original_forward: Callable[..., Any]  # The forward of the class before `with_forward`.


@dataclass
class FusedLinear:
    linear: nn.Module  # Linear with all outputs. It is not a registered module of the model.
    output: Tensor | None = None
    """[batch, tokens, outputs of all] between the first and the last linear's call; else None."""


@dataclass
class FusedSlice:
    """Outputs of one linear in a fused linear."""

    fused: FusedLinear
    start: int
    stop: int
    is_last: bool  # True for the linear that the model calls last.


@dataclass(frozen=True)
class SwigluKernels:
    """Cases in which an MLP's SwiGLU is computed by a kernel of this package."""

    for_one_query: bool
    for_prompts: bool


def with_forward(kind: type[nn.Module], forward: Callable[..., Any]) -> type[nn.Module]:
    """Return a subclass of the same name with another forward; `original_forward` is the class's own.

    All layers of a kind get the same class, since the compiler distinguishes classes.
    """
    if (kind, forward) not in _classes:
        _classes[kind, forward] = type(kind.__name__, (kind,), {"forward": forward, "original_forward": kind.forward})
    return _classes[kind, forward]


def base_class(kind: type[nn.Module]) -> type[nn.Module]:
    """Return the class from which `with_forward` started."""
    overridden = set(_classes.values())
    while kind in overridden:
        kind = kind.__bases__[0]
    return kind
