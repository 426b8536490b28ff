"""Fusion of SwiGLU into other kernels, for MLPs whose gate and up are fused (`fuse_qkv_gate_up`).

For one row, the GEMV of gate and up computes SwiGLU, which saves a kernel, 2 us per layer on an H100. For a prefill
with packed weights, the kernel that permutes rows for `prefill_gemm` computes SwiGLU (`permute_rows`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarker.kernels import gemv_dense
from benchmarker.kernels.gemv_nf4 import is_4bit
from benchmarker.kernels.linear_dispatch import is_one_query, is_packed_product, rows_forward
from benchmarker.kernels.packed_weights import ONE_TILE, pack_factor
from benchmarker.kernels.permute_rows import swiglu_by_lane
from benchmarker.kernels.quantized_gemm import packed_product, product_of_permuted, uses_permute_kernel
from benchmarker.kernels.rewritten_module import SwigluKernels, with_forward
from benchmarker.kernels.scaled_linear import ScaledLinear

CLOSE = 0.02  # Largest relative difference from the MLP's own forward that passes, in 16 bits.
SCALES = (1, 16)  # Factors on the random inputs.


def fuse_swiglu(model: nn.Module) -> list[nn.Module]:
    """Fuse SwiGLU into MLPs with fused gate and up; return the MLPs that use the GEMV with SwiGLU for one row.

    The linears of these MLPs, and hooks on the linears, are not called. A second call changes nothing.
    """
    modules: list[Any] = list(model.modules())
    for module in modules:
        if type(module).forward is _swiglu_forward or not _has_fused_gate(module):
            continue
        for_one_query = _has_gemv(module) and _is_swiglu(module, _fused)
        for_prompts = _has_packed_prompts(module) and (for_one_query or _is_swiglu(module, by_operators))
        if for_one_query or for_prompts:
            module.swiglu_kernels = SwigluKernels(for_one_query, for_prompts)
            module.__class__ = with_forward(type(module), _swiglu_forward)
    return [module for module in modules if hasattr(module, "swiglu_kernels") and module.swiglu_kernels.for_one_query]


def _has_fused_gate(mlp: Any) -> bool:
    if not all(hasattr(mlp, name) for name in ("gate_proj", "up_proj", "down_proj")):
        return False
    gate, up = mlp.gate_proj, mlp.up_proj
    if not (
        hasattr(gate, "fused_slice") and hasattr(up, "fused_slice") and gate.fused_slice.fused is up.fused_slice.fused
    ):
        return False
    is_alone = gate.fused_slice.start == 0 and gate.fused_slice.fused.linear.out_features == 2 * gate.out_features
    # The kernels would not quantize the inputs of a `ScaledLinear`.
    return bool(is_alone and gate.bias is None and not isinstance(gate, ScaledLinear))


def _has_gemv(mlp: Any) -> bool:
    return type(mlp.gate_proj).original_forward is rows_forward


def _has_packed_prompts(mlp: Any) -> bool:
    linears = (mlp.gate_proj.fused_slice.fused.linear, mlp.down_proj)
    are_packed = all(getattr(linear, "max_packed_rows", 0) > ONE_TILE for linear in linears)
    return are_packed and mlp.down_proj.bias is None


def _is_swiglu(mlp: Any, form: Callable[[Any, Tensor], Tensor]) -> bool:
    gate = mlp.gate_proj
    numbers = gate.scales if hasattr(gate, "qweight") else gate.weight
    dtype = numbers.quant_state.dtype if is_4bit(gate) else numbers.dtype
    return reproduces(mlp, form, like=torch.empty(gate.in_features, dtype=dtype, device=numbers.device))


def reproduces(mlp: Any, form: Callable[[Any, Tensor], Tensor], *, like: Tensor) -> bool:
    """Return True if `form` reproduces an MLP's outputs for random inputs of the shape, type and device of `like`.

    Large inputs are included because some models clip activations.
    """
    sample = torch.randn(1, 1, len(like), generator=torch.Generator().manual_seed(0))
    ordinary, *larger = (_difference(mlp, form, (scale * sample).to(like)) for scale in SCALES)
    # With real weights, large inputs may overflow 16 bits: a NaN for a large input is not counted as a difference.
    return ordinary <= CLOSE and not any(difference > CLOSE for difference in larger)


def _difference(mlp: Any, form: Callable[[Any, Tensor], Tensor], hidden: Tensor) -> float:
    # force_eager: gptqmodel would otherwise compile its dequantization for this single token.
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        expected, made = mlp(hidden).float(), form(mlp, hidden).float()
    return float((made - expected).norm() / expected.norm())


def _swiglu_forward(mlp: Any, hidden: Tensor) -> Tensor:
    kernels: SwigluKernels = mlp.swiglu_kernels
    if kernels.for_one_query and is_one_query(hidden, mlp.gate_proj):
        return _fused(mlp, hidden)
    if kernels.for_prompts and _is_long(hidden, mlp.gate_proj.fused_slice.fused.linear):
        return _by_lane(mlp, hidden)
    result: Tensor = mlp.original_forward(hidden)
    return result


def _is_long(hidden: Tensor, linear: Any) -> bool:
    rows = hidden.shape[0] * hidden.shape[1]
    return is_packed_product(hidden, linear) and uses_permute_kernel(rows, linear, linear.packed_form)


def _by_lane(mlp: Any, hidden: Tensor) -> Tensor:
    whole, down = mlp.gate_proj.fused_slice.fused.linear, mlp.down_proj
    gate_up = packed_product(hidden, whole, whole.packed_form)
    permuted = swiglu_by_lane(gate_up, pack_factor(down.packed_form))
    return product_of_permuted(permuted, down, down.packed_form).view(*hidden.shape[:-1], -1)


def by_operators(mlp: Any, hidden: Tensor) -> Tensor:
    """Compute down(silu(gate) * up) with the MLP's own linears."""
    product: Tensor = mlp.down_proj(nn.functional.silu(mlp.gate_proj(hidden)) * mlp.up_proj(hidden))
    return product


def _fused(mlp: Any, hidden: Tensor) -> Tensor:
    product = gemv_dense.gemv_swiglu(hidden.flatten(), *gemv_dense.as_rows(mlp.gate_proj.fused_slice.fused.linear))
    result: Tensor = mlp.down_proj(product.view(*hidden.shape[:-1], -1))
    return result
