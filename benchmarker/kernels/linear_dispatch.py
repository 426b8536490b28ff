"""The linears of a compiled decode step by this package's kernels, where one query makes each a matrix times a vector.

Such a GEMV is as fast as its weights can be read, if nothing else is done in it. The compiler would compute what comes
before it, such as a norm or an activation, inside it: once for each row of the matrix. So the vector is written to
memory first (`materialized`).

- Floating point and int8: `gemv_dense` reads its weights while the kernel before it ends, where the GPU allows that.
  Inductor's own GEMV lets the memory rest between two kernels.
- GPTQ: gptqmodel's `torch` kernel unpacks a 16-bit matrix and multiplies by that, which moves nine times the bytes.
  `gemv_gptq` reads the packed weights, where groups follow one another; `desc_act` mixes them, and stays the library's.
- NF4 and FP4: bitsandbytes' kernel reads its codes once too, but takes almost four times as long as that needs (H100).
  `gemv_nf4` is for 16 bits, blocks of 64 and scales that are not quantized themselves.

For several vectors, of sequences or of a prompt, int8, GPTQ and NF4 are `quantized_gemm`, where they take the weights.
For a longer prompt `unpack_matrix` makes their matrix in 16 bit, and torch multiplies by it. What is not compiled does
what it did before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from benchmarker.kernels import gemv_dense, gemv_gptq, gemv_nf4, gemv_tensor_core
from benchmarker.kernels.dequantize_matrix import unpack_matrix
from benchmarker.kernels.opaque_linear import hide, through_operator
from benchmarker.kernels.packed_weights import ONE_TILE
from benchmarker.kernels.quantized_gemm import (
    most_packed_rows,
    packed_form,
    packed_product,
    packed_tensors,
    takes_rows,
)
from benchmarker.kernels.rewritten_module import with_forward


def replace_linears(model: nn.Module) -> dict[str, list[nn.Module]]:
    """Let the model's linears multiply by this package's kernels where they can. Doing it twice changes nothing.

    Returns:
        The linears of each kernel, by the kernel's name.
    """
    replaced: dict[str, list[nn.Module]] = {"gemv_dense": [], "gemv_gptq": [], "gemv_nf4": []}
    modules: list[Any] = list(model.modules())
    for module in modules:
        forward = _forward_for(module)
        if forward:
            module.packed_form = packed_form(module)
            module.most_packed_rows = most_packed_rows(module, module.packed_form)
            module.has_gemv = forward is not _nf4_forward or gemv_nf4.supports(module) is None
            if forward is _gptq_forward and not hasattr(module, "own_class"):
                hide(module)
            module.__class__ = with_forward(type(module), forward)
        kernel = kernel_of(module)
        if kernel:
            replaced[kernel].append(module)
    return replaced


def kernel_of(module: nn.Module) -> str | None:
    """The kernel by which a module multiplies by one vector; None for what is no linear, or its library's."""
    kernels = {rows_forward: "gemv_dense", _gptq_forward: "gemv_gptq", _nf4_forward: "gemv_nf4"}
    return kernels.get(_forward_of(module)) if getattr(module, "has_gemv", True) else None


def _forward_of(module: nn.Module) -> Callable[..., Any]:
    """The forward of a module's class; for a linear that was fused with others, the one that it had before."""
    kind: Any = type(module)
    forward: Callable[..., Any] = kind.original_forward if hasattr(module, "fused_slice") else kind.forward
    return forward


def _forward_for(module: nn.Module) -> Callable[..., Tensor] | None:
    """The forward that a module gets; None for a module that stays as it is."""
    if type(module) is nn.Linear:
        return rows_forward if gemv_dense.supports(module) is None else _plain_forward
    if _forward_of(module) is not _gptq_forward and gemv_gptq.supports(module) is None:
        return _gptq_forward
    is_new_4bit = not hasattr(module, "original_forward") and gemv_nf4.is_4bit(module)
    return _nf4_forward if is_new_4bit and (gemv_nf4.supports(module) is None or packed_form(module)) else None


def is_one_query(hidden: Tensor, linear: Any) -> bool:
    """Whether the compiler is tracing a decode step of one sequence: `hidden` is a single vector of inputs."""
    return torch.compiler.is_compiling() and hidden.numel() == linear.in_features


def is_several_queries(hidden: Tensor) -> bool:
    """Whether the compiler is tracing a decode step of several sequences, or a prompt of 128 tokens at most.

    Args:
        hidden: [batch, tokens, in].
    """
    if not _is_compiled(hidden):
        return False
    rows = hidden.shape[0] * hidden.shape[1]
    return rows > 1 and (rows <= ONE_TILE or hidden.shape[1] == 1)


def is_packed_product(hidden: Tensor, linear: Any) -> bool:
    """Whether what is compiled multiplies by the linear's packed weights."""
    return _is_compiled(hidden) and takes_rows(hidden, linear)


def is_unpacked_product(hidden: Tensor, linear: Any) -> bool:
    """Whether what is compiled unpacks the linear's weights first: more vectors than packed products are for."""
    is_many = is_compiled_rows(hidden) and hidden.dtype in gemv_tensor_core.TYPES
    return is_many and linear.packed_form is not None and not takes_rows(hidden, linear)


def is_compiled_rows(hidden: Tensor) -> bool:
    """Whether the compiler is tracing a product of several vectors, of sequences or of a prompt.

    Args:
        hidden: [batch, tokens, in].
    """
    return _is_compiled(hidden) and hidden.shape[0] * hidden.shape[1] > 1


def _is_compiled(hidden: Tensor) -> bool:
    """Whether the compiler is tracing, and `hidden` has tokens of sequences: [batch, tokens, in]."""
    return torch.compiler.is_compiling() and hidden.dim() == 3


def _plain_forward(linear: nn.Linear, hidden: Tensor) -> Tensor:
    """nn.Linear's own forward, whose input the compiler writes to memory first."""
    return nn.Linear.forward(linear, materialized(hidden) if torch.compiler.is_compiling() else hidden)


def rows_forward(linear: nn.Linear, hidden: Tensor) -> Tensor:
    """A linear of floating-point or int8 weights, by `gemv_dense` for one query."""
    if is_packed_product(hidden, linear):
        return _packed_forward(linear, hidden)
    if is_unpacked_product(hidden, linear):
        return _unpacked_forward(linear, hidden)
    if not is_one_query(hidden, linear):
        return _plain_forward(linear, hidden)
    return _with_bias(gemv_dense.gemv_dense(hidden.flatten(), *gemv_dense.as_rows(linear.weight)), linear, hidden)


def _packed_forward(linear: Any, hidden: Tensor) -> Tensor:
    """A linear of packed weights, for several queries."""
    return _with_bias(packed_product(hidden, linear, linear.packed_form), linear, hidden)


def _unpacked_forward(linear: Any, hidden: Tensor) -> Tensor:
    """A linear of packed weights, for a prompt: its matrix in 16 bit, and torch's product."""
    # Packed products do not take all of GPTQ's groups; this does.
    form = linear.packed_form or "int4 by group, zeros"
    matrix = unpack_matrix(*packed_tensors(linear, form), form, linear.out_features, hidden.dtype)
    return _with_bias(torch.matmul(hidden, matrix), linear, hidden)


def _gptq_forward(linear: Any, hidden: Tensor) -> Tensor:
    """A linear of GPTQ-packed weights, by `gemv_gptq` for one query."""
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
    """A linear of bitsandbytes' 4-bit codes, by `gemv_nf4` for one query."""
    if is_packed_product(hidden, linear):
        return _packed_forward(linear, hidden)
    if is_unpacked_product(hidden, linear):
        return _unpacked_forward(linear, hidden)
    if not is_one_query(hidden, linear) or not linear.has_gemv or hidden.dtype not in gemv_tensor_core.TYPES:
        from bitsandbytes.nn.modules import Linear4bit

        return cast("Tensor", Linear4bit.forward(linear, hidden))
    state = linear.weight.quant_state
    product = gemv_nf4.gemv_nf4(materialized(hidden).flatten(), linear.weight, state.absmax, state.code)
    return _with_bias(product, linear, hidden)


def _with_bias(product: Tensor, linear: Any, hidden: Tensor) -> Tensor:
    """The product with the linear's bias, in the shape of `hidden` but for its last dimension."""
    if linear.bias is not None:
        # bitsandbytes leaves a bias in the type that its kernel computes in.
        product = product + linear.bias.to(product.dtype)
    return product.view(*hidden.shape[:-1], -1)


def materialized(hidden: Tensor) -> Tensor:
    """`hidden` as a tensor that the compiler writes to memory, rather than computing it wherever it is read."""
    return hidden.as_strided(hidden.shape, hidden.stride())
