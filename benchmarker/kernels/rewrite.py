"""Replacement of a model's modules by modules with this package's kernels, and its reversal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarker.kernels.fuse_qkv_gate_up import fuse_linears, separate_gptq
from benchmarker.kernels.fuse_swiglu import fuse_swiglu
from benchmarker.kernels.linear_dispatch import kernel_of, replace_linears
from benchmarker.kernels.rewritten_module import ADDED, base_class

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Replacement:
    kernel: str  # Name in records: `gemv_*`, `packed_matmul` (quantized GEMM), `fuse_qkv_gate_up`, or `gemv_swiglu`.
    modules: tuple[nn.Module, ...]  # Linears that use the kernel; for `gemv_swiglu`, MLPs.


def optimize(model: PreTrainedModel) -> tuple[Replacement, ...]:
    """Make a transformers model on a GPU, in evaluation mode, use these kernels; return each kernel with its modules.

    A linear that no kernel supports keeps its library's kernel. A second call changes nothing.
    """
    replaced = replace_linears(model)
    fused_linears, fused_mlps = fuse_linears(model), fuse_swiglu(model)
    packed = [module for module in model.modules() if getattr(module, "packed_form", None)]
    fused = [("packed_matmul", packed), ("fuse_qkv_gate_up", fused_linears), ("gemv_swiglu", fused_mlps)]
    uses = [*replaced.items(), *fused]
    return tuple(Replacement(kernel, tuple(modules)) for kernel, modules in uses if modules)


def restore(model: nn.Module) -> None:
    """Restore the library's class of every module.

    Fused weights remain views of one matrix, with the same values. GPTQ's words, which are its columns, are copied.
    """
    for module in model.modules():
        if hasattr(module, "fused_slice") and kernel_of(module) == "gemv_gptq":
            separate_gptq(module)
        module.__class__ = base_class(type(module))
        for name in ADDED:
            vars(module).pop(name, None)
