"""How a decode step's linears are put to the compiler on a GPU, where one query makes each a matrix times a vector.

Such a product is as fast as its weights can be read, if nothing else is done in it. Left alone, the compiler computes
what comes before it, such as a norm or an activation, in the product itself: once for each row of the matrix. So the
vector is made a tensor of its own first.

Where a kernel can start while the one before it ends, products are a kernel of our own that reads its weights meanwhile
(see `rows_kernel`); inductor's has the memory rest between two products.

GPTQ's weights lie as eight 4-bit numbers a word. gptqmodel's `torch` kernel makes a 16-bit matrix of them and
multiplies by that, which moves nine times the bytes. Here the same product is one kernel over the words (see
`words_kernel`), where groups follow one another: `desc_act` mixes them, and is left to the library. bitsandbytes' own
kernel reads its codes once too, but takes almost four times as long as that needs (H100); ours (see `codes_kernel`) is
for scales that are not quantized themselves, where kernels can start early.

All of this is for the compiled decode step alone. Whoever else calls a layer gets what it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from benchmarker.runtimes.early import can_start_early
from benchmarker.runtimes.forwards import with_forward
from benchmarker.runtimes.opaque import through_operator
from benchmarker.schema.old_products import CODES, PACKED, by_rows, counted

IN_A_WORD = 8
LARGEST_GROUP = 512
CODES_IN_BLOCKS = (32, 64, 128)
"""Of a scale of bitsandbytes', that `codes_times` knows."""
IN_A_LOAD = 16
"""Numbers of int8 in the longest load: rows that begin at a multiple of it need no shorter ones."""


def prepare_linears(model: nn.Module) -> list[str]:
    """Give the model's linears the form that compiles best. Doing it twice changes nothing.

    Returns:
        What the record says of products that are ours.
    """
    forms, words, codes = [], [], []
    for module in model.modules():
        form = _form_for(module)
        if form:
            module.__class__ = with_forward(type(module), form)
        # Where products are joined, the form is what they have by themselves.
        own = cast("Any", type(module)).alone if hasattr(module, "part") else type(module).forward
        if isinstance(module, nn.Linear) or hasattr(module, "qweight"):
            forms.append(own)
        if hasattr(module, "qweight"):
            words.append(own is _packed)
        if is_4bit(module):
            codes.append(own is _coded)
    said = [by_rows(forms.count(rows_forward), len(forms))] if rows_forward in forms else []
    return said + [counted(what, ours) for what, ours in ((PACKED, words), (CODES, codes)) if any(ours)]


def _form_for(module: nn.Module) -> Callable[..., Tensor] | None:
    """None for what stays as it is, or has its form already."""
    if type(module) is nn.Linear:
        return rows_forward if fits_rows(module) else _plain
    if type(module).forward is not _packed and fits_words(module) and cast("Tensor", module.qweight).is_cuda:
        return _packed
    return _coded if not hasattr(module, "alone") and fits_codes(module) else None


def is_one_query(hidden: Tensor, linear: Any) -> bool:
    """Whether this is a decode step of one sequence, as the compiler sees it."""
    return torch.compiler.is_compiling() and hidden.numel() == linear.in_features


def fits_rows(linear: nn.Linear) -> bool:
    """Whether a layer has weights that `rows_times` knows, on a device that gains by it."""
    weight: Any = linear.weight
    if linear.in_features % IN_A_LOAD or not can_start_early(weight.device):
        return False
    if type(weight) is nn.Parameter:
        return weight.is_floating_point() and weight.is_contiguous()
    return is_int8_by_row(weight)


def is_int8_by_row(weight: Any) -> bool:
    """Whether it is torchao's int8 with one scale a row and nothing done to the activations.

    torchao's own product of it adds no zero point either.
    """
    if type(weight).__name__ != "Int8Tensor" or weight.act_quant_kwargs is not None:
        return False
    is_by_row = weight.act_pre_scale is None and weight.scale.numel() == len(weight)
    return is_by_row and bool(weight.qdata.is_contiguous())


def as_rows(weight: Any) -> tuple[Tensor, Tensor | None]:
    """What lies in memory of such weights: the matrix, and a scale for each row of int8."""
    return (weight.qdata, weight.scale) if hasattr(weight, "qdata") else (weight, None)


def fits_words(linear: Any) -> bool:
    """Whether a layer is gptqmodel's `torch` kernel, with weights in a form that `words_times` knows."""
    if type(linear).__name__ != "TorchLinear" or linear.bits != 4:
        return False
    if linear.qzero_format() != 2 or getattr(linear, "adapter", None) is not None or linear.out_features % IN_A_WORD:
        return False
    group = len(linear.g_idx) // len(linear.scales)
    if group % IN_A_WORD or group & (group - 1) or group > LARGEST_GROUP:
        return False
    return bool((linear.g_idx == linear.g_idx.new_tensor(range(len(linear.g_idx))) // group).all())


def is_4bit(module: nn.Module) -> bool:
    """Whether it is bitsandbytes' linear in 4 bit. Others wrap one under its name, and do more."""
    return type(module).__name__ == "Linear4bit" and isinstance(module, nn.Linear)


def fits_codes(linear: Any) -> bool:
    """Whether a layer has bitsandbytes' 4-bit weights in a form that `codes_times` knows, where that gains."""
    if not is_4bit(linear) or not can_start_early(linear.weight.device) or linear.weight.quant_state is None:
        return False
    state = linear.weight.quant_state
    is_plain = linear.weight.dtype == torch.uint8 and state.absmax.dtype == torch.float32 and not state.nested
    is_by_row = tuple(state.shape) == (linear.out_features, linear.in_features)
    has_blocks = state.blocksize in CODES_IN_BLOCKS and linear.in_features % state.blocksize == 0
    return is_plain and is_by_row and has_blocks


def _plain(linear: nn.Linear, hidden: Tensor) -> Tensor:
    return nn.Linear.forward(linear, apart(hidden) if torch.compiler.is_compiling() else hidden)


def rows_forward(linear: nn.Linear, hidden: Tensor) -> Tensor:
    """A linear with `rows_times` for one query."""
    if not is_one_query(hidden, linear):
        return _plain(linear, hidden)
    from benchmarker.runtimes.rows_kernel import rows_times

    return _finished(rows_times(hidden.flatten(), *as_rows(linear.weight)), linear, hidden)


def _packed(linear: Any, hidden: Tensor) -> Tensor:
    if not is_one_query(hidden, linear):
        return through_operator(linear, hidden)
    from benchmarker.runtimes.words_kernel import words_times

    parts = words_times(apart(hidden).flatten(), linear.qweight, linear.qzeros, linear.scales)
    return _finished(parts.sum(0).to(hidden.dtype), linear, hidden)


def _coded(linear: Any, hidden: Tensor) -> Tensor:
    if not is_one_query(hidden, linear):
        from bitsandbytes.nn.modules import Linear4bit

        return cast("Tensor", Linear4bit.forward(linear, hidden))
    from benchmarker.runtimes.codes_kernel import codes_times, parts_of

    state = linear.weight.quant_state
    parts = parts_of(linear.in_features)
    made = codes_times(apart(hidden).flatten(), linear.weight, state.absmax, state.code, parts)
    return _finished(made.sum(0).to(hidden.dtype), linear, hidden)


def _finished(made: Tensor, linear: Any, hidden: Tensor) -> Tensor:
    """A product with its bias, in the shape that follows from the vector's."""
    if linear.bias is not None:
        # bitsandbytes leaves a bias in the type that its kernel computes in.
        made = made + linear.bias.to(made.dtype)
    return made.view(*hidden.shape[:-1], -1)


def apart(hidden: Tensor) -> Tensor:
    """The same, as a tensor that the compiler writes to memory rather than computing it again wherever it is read."""
    return hidden.as_strided(hidden.shape, hidden.stride())
