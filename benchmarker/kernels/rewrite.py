"""A whole model with this package's kernels in its linears, and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarker.kernels.fuse_qkv_gate_up import fuse_linears, separate_gptq
from benchmarker.kernels.fuse_swiglu import fuse_swiglu
from benchmarker.kernels.linear_dispatch import kernel_of, replace_linears
from benchmarker.kernels.rewritten_module import base_class

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel


ADDED = ("packed_form", "most_packed_rows", "has_gemv", "fused_slice", "swiglu_kernels")
"""What a rewritten module has besides its own attributes."""


@dataclass(frozen=True)
class Replacement:
    """A kernel, with the modules that it now computes."""

    kernel: str
    """The name of the kernel's file; `gemv_swiglu` is gemv_dense's with an MLP's activation."""
    modules: tuple[nn.Module, ...]
    """Linears; MLPs for `gemv_swiglu`."""


def optimize(model: PreTrainedModel) -> tuple[Replacement, ...]:
    """Give the model's linears these kernels where they fit. Doing it twice changes nothing.

    Returns:
        Each kernel that is used, with the linears that it took; a linear that is in none keeps its library's.
    """
    replaced = replace_linears(model)
    fused_linears, fused_mlps = fuse_linears(model), fuse_swiglu(model)
    packed = [module for module in model.modules() if getattr(module, "packed_form", None)]
    uses = [
        *replaced.items(),
        ("packed_matmul", packed),
        ("fuse_qkv_gate_up", fused_linears),
        ("gemv_swiglu", fused_mlps),
    ]
    return tuple(Replacement(kernel, tuple(modules)) for kernel, modules in uses if modules)


def restore(model: nn.Module) -> None:
    """Give every module of the model its own class back.

    Weights that were fused stay where they lie: each linear's is a view of the whole, with the same numbers. GPTQ's
    words, of which a linear has columns, are copied apart.
    """
    for module in model.modules():
        if hasattr(module, "fused_slice") and kernel_of(module) == "gemv_gptq":
            separate_gptq(module)
        module.__class__ = base_class(type(module))
        for name in ADDED:
            vars(module).pop(name, None)
