"""Linears that read the same vector, made one product.

An attention's query, key and value are three products with one input, and so are an MLP's gate and up. A kernel has to
start and to end whatever it reads: bitsandbytes' needs 6 us for the smallest matrix, and our own cannot fill an H100
with one of them. So the weights are put one after another in memory and multiplied by at once, as vLLM does
(`QKVParallelLinear`, `MergedColumnParallelLinear`); each linear's own weight becomes a view of its part, so that no
byte is kept twice. The kernel and the sums stay the same.

GPTQ's words, whose outputs lie side by side, took as long together as apart (H100), and are left apart; so are products
that inductor makes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from benchmarker.kernels.forward_override import with_forward
from benchmarker.kernels.gemv_nf4 import is_4bit
from benchmarker.kernels.replace_linears import is_one_query, rows_forward

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass
class Joint:
    """What the linears of one input have in common."""

    product: nn.Module
    """All of them as one linear. Kept in here, it does not become a module of the model's."""
    made: Tensor | None = None
    """Between the first of them and the last: the outputs of all."""


@dataclass
class Part:
    """What one of these linears has of it."""

    joint: Joint
    start: int
    stop: int
    """Its outputs among all."""
    is_last: bool


def join_linears(model: PreTrainedModel) -> list[nn.Module]:
    """Join what can be. Doing it twice changes nothing.

    Returns:
        The linears that are a part of a joint one.
    """
    linears = [module for module in model.modules() if is_4bit(module) or type(module).forward is rows_forward]
    apart = [linear for linear in linears if not hasattr(linear, "part")]
    for together in _sharing(model, apart) if len(apart) > 1 else ():
        product = _joined(together)
        if product is not None:
            _attach(together, product)
    return [module for module in model.modules() if hasattr(module, "part")]


def _sharing(model: PreTrainedModel, linears: Sequence[Any]) -> Iterator[list[Any]]:
    """Those of one input together. Which they are is not read off their names but seen in a run of one token."""
    calls: list[tuple[Any, Tensor]] = []
    hooks = [
        linear.register_forward_pre_hook(lambda module, inputs: calls.append((module, inputs[0]))) for linear in linears
    ]
    try:
        with torch.no_grad():
            model(input_ids=torch.zeros(1, 1, dtype=torch.int64, device=model.device), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    # A weight that is used twice has no place that is its own.
    uses = Counter(id(linear.weight) for linear, _ in calls)
    # All these tensors are alive: no two of them have the same identity.
    for tensor_id in dict.fromkeys(id(tensor) for _, tensor in calls):
        together = [linear for linear, tensor in calls if id(tensor) == tensor_id]
        if len(together) > 1 and all(uses[id(linear.weight)] == 1 for linear in together):
            yield together


def _attach(linears: Sequence[Any], product: nn.Module) -> None:
    """Have the linears take their outputs from the product."""
    joint, start = Joint(product), 0
    for linear in linears:
        stop = start + linear.out_features
        linear.part = Part(joint, start, stop, is_last=linear is linears[-1])
        start = stop
        linear.__class__ = with_forward(type(linear), _part)


def _part(linear: Any, hidden: Tensor) -> Tensor:
    """A linear's own part of what all of them make of one query: the first has it made, the last lets go of it.

    The model calls them in the order in which `_sharing` saw them, and all with the same input.
    """
    if not is_one_query(hidden, linear):
        result: Tensor = linear.alone(hidden)
        return result
    part: Part = linear.part
    if part.start == 0:
        part.joint.made = part.joint.product(hidden)
    assert part.joint.made is not None
    output = part.joint.made[..., part.start : part.stop]
    if part.is_last:
        part.joint.made = None
    return output


def _joined(linears: Sequence[Any]) -> nn.Linear | None:
    """One linear for all; None where they are not alike."""
    alike = {
        (type(linear), type(linear.weight), linear.weight.dtype, linear.bias is None, linear.in_features)
        for linear in linears
    }
    if len(alike) > 1:
        return None
    product = nn.Linear(1, 1, bias=False, device="meta")
    product.in_features = linears[0].in_features
    product.out_features = sum(linear.out_features for linear in linears)
    weight: Any = _joined_4bit(linears, product.out_features) if is_4bit(linears[0]) else _joined_rows(linears)
    if weight is None:
        return None
    product.__class__ = type(linears[0])
    product.weight = weight
    if linears[0].bias is not None:
        product.bias = _in_a_row([linear.bias for linear in linears])
    if is_4bit(product):
        for name in ("compute_dtype", "compute_type_is_set", "quant_storage", "support_avx512bf16_for_cpu"):
            setattr(product, name, getattr(linears[0], name))
        product.quant_state = weight.quant_state
    return product


def _joined_rows(linears: Sequence[Any]) -> nn.Parameter:
    """Rows of numbers, or torchao's int8 with a scale each."""
    weights = [linear.weight for linear in linears]
    if type(weights[0]) is nn.Parameter:
        return _in_a_row(weights)
    counts = [len(weight) for weight in weights]
    rows, scales = torch.cat([weight.qdata for weight in weights]), torch.cat([weight.scale for weight in weights])
    for weight, part, scale in zip(weights, rows.split(counts), scales.split(counts), strict=True):
        weight.qdata, weight.scale = part, scale
    first = weights[0]
    return nn.Parameter(type(first)(rows, scales, first.block_size, first.dtype), requires_grad=False)


def _in_a_row(parameters: Sequence[nn.Parameter]) -> nn.Parameter:
    """One after another in memory; each becomes a view of its part."""
    whole = torch.cat([parameter.data for parameter in parameters])
    for parameter, part in zip(parameters, whole.split([len(parameter) for parameter in parameters]), strict=True):
        parameter.data = part
    return nn.Parameter(whole, requires_grad=False)


def _joined_4bit(linears: Sequence[Any], outputs: int) -> Any | None:
    """bitsandbytes'; None where scales are quantized too, or weights repacked for a CPU."""
    from bitsandbytes.functional import QuantState
    from bitsandbytes.nn.modules import Params4bit

    states = [linear.weight.quant_state for linear in linears]
    first = states[0]
    for linear, state in zip(linears, states, strict=True):
        is_known = not state.nested and not getattr(state, "packing_format_for_cpu", False)
        is_alike = (state.blocksize, state.quant_type, state.dtype) == (first.blocksize, first.quant_type, first.dtype)
        ends_a_block = linear.in_features * linear.out_features % state.blocksize == 0
        if not (is_known and is_alike and ends_a_block and state.shape[0] == linear.out_features):
            return None
    packed = torch.cat([linear.weight.data.view(-1, 1) for linear in linears])
    absmax = torch.cat([state.absmax for state in states])
    whole = QuantState(
        absmax=absmax, shape=torch.Size((outputs, linears[0].in_features)), code=first.code,
        blocksize=first.blocksize, quant_type=first.quant_type, dtype=first.dtype,
    )  # fmt: skip
    at = block = 0
    for linear, state in zip(linears, states, strict=True):
        held, blocks = linear.weight.numel(), state.absmax.numel()
        linear.weight.data = packed[at : at + held]
        state.absmax = absmax[block : block + blocks]
        at, block = at + held, block + blocks
    return Params4bit(
        packed, requires_grad=False, quant_state=whole, blocksize=whole.blocksize, quant_type=whole.quant_type,
        compress_statistics=False, quant_storage=linears[0].quant_storage, bnb_quantized=True,
    )  # fmt: skip
