"""Forwards of a model's linears, which select a kernel by weight format and number of rows while torch.compile traces.

One row uses a GEMV, several rows use `quantized_gemm`, longer prefills use `dequantize_matrix` and torch's product.
Code that is not compiled runs the library's forward.

A GEMV takes the time to read its weights if it computes nothing else. Inductor would recompute the previous norm or
activation for each row of the matrix, so the vector is written to memory first (`materialized`). gptqmodel's `torch`
kernel dequantizes to 16 bits first and moves nine times the bytes; bitsandbytes' kernel takes almost four times the
time to read its weights (H100).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from benchmarker.kernels import gemv_dense, gemv_gptq, gemv_nf4, gemv_tensor_core
from benchmarker.kernels.dequantize_matrix import unpack_matrix
from benchmarker.kernels.int4_linear import repack_awq
from benchmarker.kernels.opaque_linear import hide, through_operator
from benchmarker.kernels.packed_weights import INT4_ZEROS, ONE_TILE
from benchmarker.kernels.quantized_gemm import (
    is_supported,
    max_packed_rows,
    packed_form,
    packed_product,
    packed_tensors,
)
from benchmarker.kernels.rewritten_module import RewrittenModule, with_forward
from benchmarker.kernels.scaled_linear import ScaledLinear, quantized_rows

EXPONENT = 0x7F800000  # Bits of a float32's exponent.


def replace_linears(model: nn.Module) -> dict[str, list[nn.Module]]:
    """Replace the forwards of supported linears; return the linears by GEMV kernel. A second call changes nothing."""
    replaced: dict[str, list[nn.Module]] = {"gemv_dense": [], "gemv_scaled": [], "gemv_gptq": [], "gemv_nf4": []}
    modules: list[Any] = list(model.modules())
    for module in modules:
        if type(module).__name__ == "AwqTorchLinear" and module.bits == 4 and module.qweight.is_cuda:
            repack_awq(module)
        forward = _forward_for(module)
        if forward:
            module.packed_form = packed_form(module)
            module.max_packed_rows = max_packed_rows(module, module.packed_form)
            module.has_gemv = forward is not _nf4_forward or gemv_nf4.why_not(module) is None
            if forward is _gptq_forward and not hasattr(module, "opaque_number"):
                hide(module)
            module.__class__ = with_forward(type(module), forward)
        kernel = kernel_of(module)
        if kernel:
            replaced[kernel].append(module)
    return replaced


def kernel_of(module: nn.Module) -> str | None:
    kernels = {rows_forward: "gemv_dense", scaled_forward: "gemv_scaled"}
    kernels |= {_gptq_forward: "gemv_gptq", _nf4_forward: "gemv_nf4"}
    return kernels.get(_forward_of(module)) if getattr(module, "has_gemv", True) else None


def _forward_of(module: nn.Module) -> Callable[..., Any]:
    kind: Any = type(module)
    forward: Callable[..., Any] = kind.original_forward if hasattr(module, "fused_slice") else kind.forward
    return forward


def _forward_for(module: nn.Module) -> Callable[..., Tensor] | None:
    if type(module) is nn.Linear:
        return rows_forward if gemv_dense.why_not(module) is None else _plain_forward
    if type(module) is ScaledLinear:
        return scaled_forward if gemv_dense.why_not(module) is None else None
    if _forward_of(module) is not _gptq_forward and gemv_gptq.why_not(module) is None:
        return _gptq_forward
    is_new_4bit = not hasattr(module, "original_forward") and gemv_nf4.is_4bit(module)
    return _nf4_forward if is_new_4bit and (gemv_nf4.why_not(module) is None or packed_form(module)) else None


def is_one_query(hidden: Tensor, linear: RewrittenModule) -> bool:
    """Return True if the compiler traces a decode step of one sequence (`hidden` is one vector)."""
    return torch.compiler.is_compiling() and hidden.numel() == linear.in_features


def is_several_queries(hidden: Tensor) -> bool:
    """Return True if the compiler traces a decode step of several sequences, or a prefill of at most 128 tokens."""
    if not _is_compiled(hidden):
        return False
    rows = hidden.shape[0] * hidden.shape[1]
    return rows > 1 and (rows <= ONE_TILE or hidden.shape[1] == 1)


def is_packed_product(hidden: Tensor, linear: RewrittenModule) -> bool:
    return _is_compiled(hidden) and is_supported(hidden, linear)


def is_unpacked_product(hidden: Tensor, linear: RewrittenModule) -> bool:
    """Return True if compiled code dequantizes first, because the quantized GEMM does not support so many rows."""
    is_many = is_compiled_rows(hidden) and hidden.dtype in gemv_tensor_core.HALF_TYPES
    return is_many and linear.packed_form is not None and not is_supported(hidden, linear)


def is_compiled_rows(hidden: Tensor) -> bool:
    """Return True if the compiler traces a product of several rows, [batch, tokens, in]."""
    return _is_compiled(hidden) and hidden.shape[0] * hidden.shape[1] > 1


def _is_compiled(hidden: Tensor) -> bool:
    return torch.compiler.is_compiling() and hidden.dim() == 3


def _plain_forward(linear: nn.Linear, hidden: Tensor) -> Tensor:
    return nn.Linear.forward(linear, materialized(hidden) if torch.compiler.is_compiling() else hidden)


def rows_forward(linear: Any, hidden: Tensor) -> Tensor:
    if is_packed_product(hidden, linear):
        return _packed_forward(linear, hidden)
    if is_unpacked_product(hidden, linear):
        return _unpacked_forward(linear, hidden)
    if not is_one_query(hidden, linear):
        return _plain_forward(linear, hidden)
    return _with_bias(gemv_dense.gemv_dense(hidden.flatten(), *gemv_dense.as_rows(linear)), linear, hidden)


def _packed_forward(linear: Any, hidden: Tensor) -> Tensor:
    return _with_bias(packed_product(hidden, linear, linear.packed_form), linear, hidden)


def _unpacked_forward(linear: Any, hidden: Tensor) -> Tensor:
    # The default form: GPTQ with groups that the quantized GEMM does not support.
    form = linear.packed_form or INT4_ZEROS
    matrix = unpack_matrix(*packed_tensors(linear, form), form, linear.out_features, hidden.dtype)
    return _with_bias(torch.matmul(hidden, matrix), linear, hidden)


def scaled_forward(linear: Any, hidden: Tensor) -> Tensor:
    """Return a W8A8 product. Few rows use the kernels for 16-bit activations, in which the codes are exact.

    torch's int8 GEMM needs 17 rows and writes 32 bits: a decode step of Qwen3-4B for one sequence took 1.8 times as
    long as with 16-bit weights (H100).
    """
    if is_one_query(hidden, linear):
        product = gemv_dense.gemv_dense(hidden.flatten(), *gemv_dense.as_rows(linear), True)
    elif is_packed_product(hidden, linear):
        codes, scales = quantized_rows(hidden, linear.weight.dtype)
        # The largest power of two up to the scale: products in float16 stay finite.
        power = scales.view(torch.int32).bitwise_and(EXPONENT).view(torch.float32)
        rows = packed_product((codes.float() * power).to(hidden.dtype), linear, linear.packed_form)
        product = (rows.float() * (scales / power).view(-1, 1)).to(hidden.dtype)
    else:
        return ScaledLinear.forward(linear, hidden)
    return _with_bias(product, linear, hidden)


def _gptq_forward(linear: Any, hidden: Tensor) -> Tensor:
    if is_packed_product(hidden, linear):
        return _packed_forward(linear, hidden)
    if is_compiled_rows(hidden):
        return _unpacked_forward(linear, hidden)
    if not is_one_query(hidden, linear):
        return through_operator(linear, hidden)
    zeros = None if linear.packed_form == "int4 by group" else linear.qzeros
    product = gemv_gptq.gemv_gptq(materialized(hidden).flatten(), linear.qweight, zeros, linear.scales)
    return _with_bias(product, linear, hidden)


def _nf4_forward(linear: Any, hidden: Tensor) -> Tensor:
    if is_packed_product(hidden, linear):
        return _packed_forward(linear, hidden)
    if is_unpacked_product(hidden, linear):
        return _unpacked_forward(linear, hidden)
    if not is_one_query(hidden, linear) or not linear.has_gemv or hidden.dtype not in gemv_tensor_core.HALF_TYPES:
        from bitsandbytes.nn.modules import Linear4bit

        return cast("Tensor", Linear4bit.forward(linear, hidden))
    state = linear.weight.quant_state
    product = gemv_nf4.gemv_nf4(materialized(hidden).flatten(), linear.weight, state.absmax, state.code)
    return _with_bias(product, linear, hidden)


def _with_bias(product: Tensor, linear: Any, hidden: Tensor) -> Tensor:
    if linear.bias is not None:
        # bitsandbytes stores a bias in its compute type.
        product = product + linear.bias.to(product.dtype)
    return product.view(*hidden.shape[:-1], -1)


def materialized(hidden: Tensor) -> Tensor:
    """Return `hidden` as a tensor that the compiler writes to memory instead of recomputing it."""
    return hidden.as_strided(hidden.shape, hidden.stride())
