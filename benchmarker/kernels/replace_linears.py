"""How a decode step's linears are put to the compiler on a GPU, where one query makes each a matrix times a vector.

Such a product is as fast as its weights can be read, if nothing else is done in it. Left alone, the compiler computes
what comes before it, such as a norm or an activation, in the product itself: once for each row of the matrix. So the
vector is made a tensor of its own first.

Where a kernel can start while the one before it ends, products are a kernel of our own that reads its weights meanwhile
(see `gemv_dense`); inductor's has the memory rest between two products.

GPTQ's weights lie as eight 4-bit numbers a word. gptqmodel's `torch` kernel makes a 16-bit matrix of them and
multiplies by that, which moves nine times the bytes. Here the same product is one kernel over the words (see
`gemv_gptq`), where groups follow one another: `desc_act` mixes them, and is left to the library. bitsandbytes' own
kernel reads its codes once too, but takes almost four times as long as that needs (H100); ours (see `gemv_nf4`) is
for scales that are not quantized themselves, where kernels can start early.

All of this is for the compiled decode step alone. Whoever else calls a layer gets what it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from benchmarker.kernels import gemv_dense, gemv_gptq, gemv_nf4
from benchmarker.kernels.custom_op import through_operator
from benchmarker.kernels.forward_override import with_forward


def replace_linears(model: nn.Module) -> dict[str, list[nn.Module]]:
    """Give the model's linears the form that compiles best. Doing it twice changes nothing.

    Returns:
        Linears that a kernel of this package multiplies by, for each kernel.
    """
    replaced: dict[str, list[nn.Module]] = {"gemv_dense": [], "gemv_gptq": [], "gemv_nf4": []}
    kernels = {rows_forward: "gemv_dense", _packed: "gemv_gptq", _coded: "gemv_nf4"}
    for module in model.modules():
        form = _form_for(module)
        if form:
            module.__class__ = with_forward(type(module), form)
        # Where products are joined, the form is what they have by themselves.
        forward = cast("Any", type(module)).alone if hasattr(module, "part") else type(module).forward
        if forward in kernels:
            replaced[kernels[forward]].append(module)
    return replaced


def _form_for(module: nn.Module) -> Callable[..., Tensor] | None:
    """None for what stays as it is, or has its form already."""
    if type(module) is nn.Linear:
        return rows_forward if gemv_dense.supports(module) is None else _plain
    if type(module).forward is not _packed and gemv_gptq.supports(module) is None:
        return _packed
    return _coded if not hasattr(module, "alone") and gemv_nf4.supports(module) is None else None


def is_one_query(hidden: Tensor, linear: Any) -> bool:
    """Whether this is a decode step of one sequence, as the compiler sees it."""
    return torch.compiler.is_compiling() and hidden.numel() == linear.in_features


def is_compiled_prompt(hidden: Tensor) -> bool:
    """Whether this is a prompt, [batch, tokens, in], that the compiler sees: a decode step has one token a sequence."""
    return torch.compiler.is_compiling() and hidden.dim() == 3 and hidden.shape[1] > 1


def _plain(linear: nn.Linear, hidden: Tensor) -> Tensor:
    return nn.Linear.forward(linear, apart(hidden) if torch.compiler.is_compiling() else hidden)


def rows_forward(linear: nn.Linear, hidden: Tensor) -> Tensor:
    """A linear with `rows_times` for one query."""
    if not is_one_query(hidden, linear):
        return _plain(linear, hidden)
    return _finished(gemv_dense.gemv_dense(hidden.flatten(), *gemv_dense.as_rows(linear.weight)), linear, hidden)


def _packed(linear: Any, hidden: Tensor) -> Tensor:
    if is_compiled_prompt(hidden):
        # The compiler makes one kernel of it, where the library's own takes several passes over the matrix.
        matrix = gemv_gptq.unpacked(linear.qweight, linear.qzeros, linear.scales)
        return _finished(torch.matmul(hidden, matrix.to(hidden.dtype)), linear, hidden)
    if not is_one_query(hidden, linear):
        return through_operator(linear, hidden)
    sums = gemv_gptq.gemv_gptq(apart(hidden).flatten(), linear.qweight, linear.qzeros, linear.scales)
    return _finished(sums.sum(0).to(hidden.dtype), linear, hidden)


def _coded(linear: Any, hidden: Tensor) -> Tensor:
    if not is_one_query(hidden, linear):
        from bitsandbytes.nn.modules import Linear4bit

        return cast("Tensor", Linear4bit.forward(linear, hidden))
    state = linear.weight.quant_state
    parts = gemv_nf4.parts_of(linear.in_features)
    sums = gemv_nf4.gemv_nf4(apart(hidden).flatten(), linear.weight, state.absmax, state.code, parts)
    return _finished(sums.sum(0).to(hidden.dtype), linear, hidden)


def _finished(product: Tensor, linear: Any, hidden: Tensor) -> Tensor:
    """A product with its bias, in the shape that follows from the vector's."""
    if linear.bias is not None:
        # bitsandbytes leaves a bias in the type that its kernel computes in.
        product = product + linear.bias.to(product.dtype)
    return product.view(*hidden.shape[:-1], -1)


def apart(hidden: Tensor) -> Tensor:
    """The same, as a tensor that the compiler writes to memory rather than computing it again wherever it is read."""
    return hidden.as_strided(hidden.shape, hidden.stride())
