"""bitsandbytes' linears that read the same vector, made one product.

An attention's query, key and value are three products with one input, and so are an MLP's gate and up. The compiler
cannot look into bitsandbytes' kernel, which needs 6 us for the smallest matrix (H100). So the weights are put one after
another in memory and multiplied by at once, as vLLM does (`QKVParallelLinear`, `MergedColumnParallelLinear`); each
linear's own weight becomes a view of its part, so that no byte is kept twice. The kernel and the sums stay the same.

In the other forms it was tried on an H100 and left out: inductor's products of fp16 and int8 and our own of GPTQ's
words took as long together as apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from benchmarker.runtimes.forwards import with_forward

if TYPE_CHECKING:
    from transformers import PreTrainedModel

JOINED = "one query's products with the same input are made as one, by bitsandbytes' kernel"


@dataclass
class Joint:
    """What the linears of one input have in common."""

    product: nn.Module
    """All of them as one linear. Kept in here, it does not become a module of the model's."""
    made: Tensor | None = None
    """Between the first of them and the last: the outputs of all."""


def join_linears(model: PreTrainedModel) -> str | None:
    """Join what can be. Doing it twice changes nothing.

    Returns:
        What the record says of it; None if nothing is joined.
    """
    linears = [module for module in model.modules() if type(module).__name__ == "Linear4bit"]
    if linears and not any(hasattr(linear, "joint") for linear in linears):
        for together in _sharing(model, linears):
            product = _joined(together) if len(together) > 1 else None
            if product is not None:
                _attach(together, product)
    return JOINED if any(hasattr(linear, "joint") for linear in linears) else None


def _sharing(model: PreTrainedModel, linears: Sequence[Any]) -> Iterator[list[Any]]:
    """Those of one input together. Which they are is not read off their names but seen in a run of one token."""
    seen: list[tuple[Any, Tensor]] = []
    hooks = [
        linear.register_forward_pre_hook(lambda module, inputs: seen.append((module, inputs[0]))) for linear in linears
    ]
    try:
        with torch.no_grad():
            model(input_ids=torch.zeros(1, 1, dtype=torch.int64, device=model.device), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    # All these tensors are alive: no two of them have the same identity.
    for one in dict.fromkeys(id(tensor) for _, tensor in seen):
        together = [module for module, tensor in seen if id(tensor) == one]
        if len({id(module) for module in together}) == len(together):
            yield together


def _attach(linears: Sequence[Any], product: nn.Module) -> None:
    """Have the linears take their outputs from the product."""
    joint, start = Joint(product), 0
    for linear in linears:
        linear.joint = joint
        linear.part = (start, start + linear.out_features)
        linear.is_first, linear.is_last = linear is linears[0], linear is linears[-1]
        start += linear.out_features
        kind = type(linear)
        linear.__class__ = with_forward(kind, _part, alone=kind.forward)


def _part(linear: Any, hidden: Tensor) -> Tensor:
    """A linear's own part of what all of them make of one query: the first has it made, the last lets go of it.

    The model calls them in the order in which `_sharing` saw them, and all with the same input.
    """
    if hidden.numel() != linear.in_features:
        result: Tensor = linear.alone(hidden)
        return result
    joint: Joint = linear.joint
    if linear.is_first:
        joint.made = joint.product(hidden)
    assert joint.made is not None
    start, stop = linear.part
    part = joint.made[..., start:stop]
    if linear.is_last:
        joint.made = None
    return part


def _joined(linears: Sequence[Any]) -> nn.Linear | None:
    """One linear for all; None where scales are quantized too, or weights repacked for a CPU."""
    from bitsandbytes.functional import QuantState
    from bitsandbytes.nn.modules import Linear4bit, Params4bit

    states = [linear.weight.quant_state for linear in linears]
    first = states[0]
    if len({(linear.bias is None, linear.in_features) for linear in linears}) > 1:
        return None
    for linear, state in zip(linears, states, strict=True):
        is_known = not state.nested and not getattr(state, "packing_format_for_cpu", False)
        is_alike = (state.blocksize, state.quant_type, state.dtype) == (first.blocksize, first.quant_type, first.dtype)
        ends_a_block = linear.in_features * linear.out_features % state.blocksize == 0
        if not (is_known and is_alike and ends_a_block and state.shape[0] == linear.out_features):
            return None
    packed = torch.cat([linear.weight.data.view(-1, 1) for linear in linears])
    absmax = torch.cat([state.absmax for state in states])
    outputs = sum(linear.out_features for linear in linears)
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
    product = nn.Linear(1, 1, bias=False, device="meta")
    product.__class__ = Linear4bit
    for name in ("in_features", "compute_dtype", "compute_type_is_set", "quant_storage", "support_avx512bf16_for_cpu"):
        setattr(product, name, getattr(linears[0], name))
    product.out_features = outputs
    product.quant_state = whole  # type: ignore[assignment]
    product.weight = Params4bit(
        packed, requires_grad=False, quant_state=whole, blocksize=whole.blocksize, quant_type=whole.quant_type,
        compress_statistics=False, quant_storage=linears[0].quant_storage, bnb_quantized=True,
    )  # fmt: skip
    if linears[0].bias is not None:
        product.bias = nn.Parameter(torch.cat([linear.bias.data for linear in linears]), requires_grad=False)
    return product
