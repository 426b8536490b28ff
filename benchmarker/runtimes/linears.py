"""How a decode step's linears are put to the compiler on a GPU, where one query makes each a matrix times a vector.

Such a product is as fast as its weights can be read, if nothing else is done in it. Left alone, the compiler computes
what comes before it, such as a norm or an activation, in the product itself: once for each row of the matrix. So the
vector is made a tensor of its own first.

GPTQ's weights lie as eight 4-bit numbers a word. gptqmodel's `torch` kernel makes a 16-bit matrix of them and
multiplies by that, which moves nine times the bytes. Here the same product is one kernel over the words (see
`words_kernel`), where groups follow one another: `desc_act` mixes them, and is left to the library.
"""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor, nn

from benchmarker.runtimes.forwards import with_forward
from benchmarker.runtimes.opaque import quantized_linear

IN_A_WORD = 8
LARGEST_GROUP = 512
OWN_PRODUCTS = "one query's products with GPTQ's packed words are made by benchmarker's own kernel, not gptqmodel's"


def prepare_linears(model: nn.Module) -> str | None:
    """Give the model's linears the form that compiles best. Doing it twice changes nothing.

    Returns:
        What the record says of products that their library's kernel does not make; None if it makes them all.
    """
    packed = 0
    for module in model.modules():
        kind = type(module)
        if kind is nn.Linear:
            module.__class__ = with_forward(kind, _plain)
        elif kind.forward is not _packed and fits_words(module) and cast("Tensor", module.qweight).is_cuda:
            module.__class__ = with_forward(kind, _packed)
        packed += type(module).forward is _packed
    return OWN_PRODUCTS if packed else None


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


def _plain(linear: nn.Linear, hidden: Tensor) -> Tensor:
    return nn.Linear.forward(linear, apart(hidden))


def _packed(linear: Any, hidden: Tensor) -> Tensor:
    if hidden.numel() != linear.in_features:
        result: Tensor = quantized_linear(hidden, linear.opaque_number, linear.out_features)
        return result
    from benchmarker.runtimes.words_kernel import words_times

    parts = words_times(apart(hidden).flatten(), linear.qweight, linear.qzeros, linear.scales)
    made: Tensor = parts.sum(0).to(hidden.dtype)
    if linear.bias is not None:
        made = made + linear.bias
    return made.view(*hidden.shape[:-1], -1)


def apart(hidden: Tensor) -> Tensor:
    """The same, as a tensor that the compiler writes to memory rather than computing it again wherever it is read."""
    return hidden.as_strided(hidden.shape, hidden.stride())
