"""Linears that read the same vector, fused into one: query, key and value, and an MLP's gate and up.

An attention's query, key and value are three products with one input, and so are an MLP's gate and up. A kernel has to
start and to end whatever it reads: bitsandbytes' needs 6 us for the smallest matrix, and our own cannot fill an H100
with one of them. So the weights are put one after another in memory and multiplied by at once, as vLLM does
(`QKVParallelLinear`, `MergedColumnParallelLinear`); each linear's own weight becomes a view of its part, so that no
byte is kept twice. The kernel and the sums stay the same.

GPTQ's packed weights have their outputs side by side, and are joined by columns (`fuse_gptq`). With one row that gained
nothing; with 8 a layer's products took 61 us joined and 76 us apart (H100). Products that inductor makes are left
apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from benchmarker.kernels.gemv_nf4 import is_4bit
from benchmarker.kernels.linear_dispatch import (
    is_compiled_rows,
    is_one_query,
    is_packed_product,
    is_several_queries,
    is_unpacked_product,
    kernel_of,
    rows_forward,
)
from benchmarker.kernels.quantized_gemm import most_packed_rows
from benchmarker.kernels.rewritten_module import with_forward

if TYPE_CHECKING:
    from transformers import PreTrainedModel
from benchmarker.kernels.gemv_tensor_core import OUTPUTS_STEP


@dataclass
class FusedLinear:
    """Several linears of one input as one."""

    linear: nn.Module
    """The linear with the weights of all, [outputs of all, in]. Kept in here, it is no module of the model's."""
    output: Tensor | None = None
    """[batch, tokens, outputs of all], from the call of the first linear to that of the last; else None."""


@dataclass
class FusedSlice:
    """Which outputs of a fused linear are those of one of its linears."""

    fused: FusedLinear
    start: int
    """The first output."""
    stop: int
    """The output after the last."""
    is_last: bool
    """Whether the linear is the last that the model calls."""


def fuse_linears(model: PreTrainedModel) -> list[nn.Module]:
    """Fuse the model's linears that have the same input. Doing it twice changes nothing.

    Returns:
        The linears that are part of a fused one.
    """
    linears = [
        module
        for module in model.modules()
        if is_4bit(module) or type(module).forward is rows_forward or _is_gptq(module)
    ]
    unfused = [linear for linear in linears if not hasattr(linear, "fused_slice")]
    for group in _groups_by_input(model, unfused) if len(unfused) > 1 else ():
        fused = _fuse(group)
        if fused is not None:
            _attach(group, fused)
    return [module for module in model.modules() if hasattr(module, "fused_slice")]


def _is_gptq(linear: nn.Module) -> bool:
    return kernel_of(linear) == "gemv_gptq"


def _groups_by_input(model: PreTrainedModel, linears: Sequence[Any]) -> Iterator[list[Any]]:
    """The linears in groups with the same input, in the order of their calls.

    Their names do not tell which have the same input: the model is run over one token to see.
    """
    calls: list[tuple[Any, Tensor]] = []
    hooks = [
        linear.register_forward_pre_hook(lambda module, inputs: calls.append((module, inputs[0]))) for linear in linears
    ]
    try:
        # gptqmodel would have what it unpacks with compiled for the one token.
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            model(input_ids=torch.zeros(1, 1, dtype=torch.int64, device=model.device), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    # A weight that is used twice has no place that is its own.
    uses = Counter(id(_weight_of(linear)) for linear, _ in calls)
    # All these tensors are alive: no two of them have the same identity.
    for tensor_id in dict.fromkeys(id(tensor) for _, tensor in calls):
        group = [linear for linear, tensor in calls if id(tensor) == tensor_id]
        if len(group) > 1 and all(uses[id(_weight_of(linear))] == 1 for linear in group):
            yield group


def _weight_of(linear: Any) -> Tensor:
    """The tensor with a linear's numbers."""
    weight: Tensor = linear.qweight if _is_gptq(linear) else linear.weight
    return weight


def _attach(linears: Sequence[Any], fused: nn.Module) -> None:
    """Let the linears take their outputs from the fused one's."""
    shared, start = FusedLinear(fused), 0
    for linear in linears:
        stop = start + linear.out_features
        linear.fused_slice = FusedSlice(shared, start, stop, is_last=linear is linears[-1])
        start = stop
        linear.__class__ = with_forward(type(linear), _fused_forward)


def _fused_forward(linear: Any, hidden: Tensor) -> Tensor:
    """A linear's outputs in a decode step or a prompt, out of the fused linear's.

    The first linear of the group runs the fused one, the last forgets its output. The model calls them in the order
    that `_groups_by_input` saw, and all with the same input.

    Args:
        hidden: [batch, tokens, in].

    Returns:
        [batch, tokens, outputs of this linear].
    """
    part: FusedSlice = linear.fused_slice
    whole = part.fused.linear
    if not (is_one_query(hidden, linear) or _is_several(hidden, whole)):
        result: Tensor = linear.original_forward(hidden)
        return result
    if part.start == 0:
        part.fused.output = whole(hidden)
    assert part.fused.output is not None
    output = part.fused.output[..., part.start : part.stop]
    if part.is_last:
        part.fused.output = None
    return output


def _is_several(hidden: Tensor, fused: nn.Module) -> bool:
    """Whether the fused linear makes this product of several vectors; else each linear makes its own part."""
    if hasattr(fused, "qweight"):
        # gptqmodel would be given copies of its columns.
        return is_compiled_rows(hidden)
    return is_several_queries(hidden) or is_packed_product(hidden, fused) or is_unpacked_product(hidden, fused)


def _fuse(linears: Sequence[Any]) -> nn.Module | None:
    """One linear with the weights of all; None where they differ in kind, type, bias or inputs."""
    are_gptq = {_is_gptq(linear) for linear in linears}
    if True in are_gptq:
        return None if False in are_gptq else join_gptq(linears)
    kinds = {
        (type(linear), type(linear.weight), linear.weight.dtype, linear.bias is None, linear.in_features)
        for linear in linears
    }
    if len(kinds) > 1:
        return None
    fused: Any = nn.Linear(1, 1, bias=False, device="meta")
    fused.in_features = linears[0].in_features
    fused.out_features = sum(linear.out_features for linear in linears)
    weight: Any = _fuse_4bit(linears, fused.out_features) if is_4bit(linears[0]) else _fuse_rows(linears)
    if weight is None:
        return None
    fused.__class__ = type(linears[0])
    fused.weight = weight
    forms = {getattr(linear, "packed_form", None) for linear in linears}
    fused.packed_form = forms.pop() if len(forms) == 1 else None
    fused.has_gemv = all(getattr(linear, "has_gemv", True) for linear in linears)
    if linears[0].bias is not None:
        fused.bias = _fuse_parameters([linear.bias for linear in linears])
    if is_4bit(fused):
        for name in ("compute_dtype", "compute_type_is_set", "quant_storage", "support_avx512bf16_for_cpu"):
            setattr(fused, name, getattr(linears[0], name))
        fused.quant_state = weight.quant_state
    fused.most_packed_rows = most_packed_rows(fused, fused.packed_form)
    linear: nn.Linear = fused
    return linear


def _fuse_rows(linears: Sequence[Any]) -> nn.Parameter:
    """Rows of floating point, or of torchao's int8 with a scale each, one matrix after another.

    Each matrix becomes a view of the whole.
    """
    weights = [linear.weight for linear in linears]
    if type(weights[0]) is nn.Parameter:
        return _fuse_parameters(weights)
    counts = [len(weight) for weight in weights]
    rows, scales = torch.cat([weight.qdata for weight in weights]), torch.cat([weight.scale for weight in weights])
    for weight, part, scale in zip(weights, rows.split(counts), scales.split(counts), strict=True):
        weight.qdata, weight.scale = part, scale
    first = weights[0]
    return nn.Parameter(type(first)(rows, scales, first.block_size, first.dtype), requires_grad=False)


def _fuse_parameters(parameters: Sequence[nn.Parameter]) -> nn.Parameter:
    """The parameters one after another in memory; each becomes a view of the whole."""
    whole = torch.cat([parameter.data for parameter in parameters])
    for parameter, part in zip(parameters, whole.split([len(parameter) for parameter in parameters]), strict=True):
        parameter.data = part
    return nn.Parameter(whole, requires_grad=False)


def _fuse_4bit(linears: Sequence[Any], outputs: int) -> Any | None:
    """bitsandbytes' weights one after another; None where scales are quantized too, or weights repacked for a CPU.

    Each linear's weight and scales become views of the whole.

    Args:
        outputs: Outputs of all linears.
    """
    from bitsandbytes.functional import QuantState
    from bitsandbytes.nn.modules import Params4bit

    states = [linear.weight.quant_state for linear in linears]
    first = states[0]
    for linear, state in zip(linears, states, strict=True):
        is_known = not state.nested and not getattr(state, "packing_format_for_cpu", False)
        is_same_kind = (state.blocksize, state.quant_type, state.dtype) == (
            first.blocksize,
            first.quant_type,
            first.dtype,
        )
        ends_a_block = linear.in_features * linear.out_features % state.blocksize == 0
        if not (is_known and is_same_kind and ends_a_block and state.shape[0] == linear.out_features):
            return None
    packed = torch.cat([linear.weight.data.view(-1, 1) for linear in linears])
    absmax = torch.cat([state.absmax for state in states])
    whole = QuantState(
        absmax=absmax, shape=torch.Size((outputs, linears[0].in_features)), code=first.code,
        blocksize=first.blocksize, quant_type=first.quant_type, dtype=first.dtype,
    )  # fmt: skip
    offset = first_block = 0
    for linear, state in zip(linears, states, strict=True):
        codes, blocks = linear.weight.numel(), state.absmax.numel()
        linear.weight.data = packed[offset : offset + codes]
        state.absmax = absmax[first_block : first_block + blocks]
        offset, first_block = offset + codes, first_block + blocks
    return Params4bit(
        packed, requires_grad=False, quant_state=whole, blocksize=whole.blocksize, quant_type=whole.quant_type,
        compress_statistics=False, quant_storage=linears[0].quant_storage, bnb_quantized=True,
    )  # fmt: skip


PACKED = ("qweight", "qzeros", "scales")
"""A linear's tensors with its outputs in columns."""


def join_gptq(linears: Sequence[Any]) -> nn.Module | None:
    """One linear with the words of all; each linear's own become columns of it.

    None where groups, zeros, types or biases differ, where columns would begin at no multiple of 16 bytes, and where
    several rows are no packed product: those go to the library, with a copy each time.
    """
    first = linears[0]
    if len({_kind(linear) for linear in linears}) > 1 or first.packed_form is None:
        return None
    if any(linear.out_features % OUTPUTS_STEP for linear in linears):
        return None
    joined: Any = with_forward(nn.Module, type(first).forward)()
    joined.in_features, joined.packed_form = first.in_features, first.packed_form
    joined.out_features = sum(linear.out_features for linear in linears)
    for name in (*PACKED, "bias"):
        parts: list[Any] = [getattr(linear, name) for linear in linears]
        joined.register_buffer(name, None if parts[0] is None else _join(parts))
    joined.most_packed_rows = most_packed_rows(joined, first.packed_form)
    for linear in linears:
        linear.own_class = with_forward(linear.own_class, _library_forward)
    whole: nn.Module = joined
    return whole


def _join(parts: Sequence[Tensor]) -> Tensor:
    """The parts side by side; each becomes columns of the whole."""
    whole = torch.cat([part.data for part in parts], dim=-1)
    for part, columns in zip(parts, whole.split([part.shape[-1] for part in parts], dim=-1), strict=True):
        part.data = columns
    return whole


def separate_gptq(linear: Any) -> None:
    """Give a linear that was joined words of its own again, side by side."""
    for name in PACKED:
        part: Tensor = getattr(linear, name)
        part.data = part.data.contiguous()
    linear.own_class = linear.own_class.__bases__[0]


def _kind(linear: Any) -> tuple[object, ...]:
    """What joined linears have in common."""
    return (
        type(linear), linear.packed_form, linear.bias is None, len(linear.qweight), len(linear.scales),
        linear.scales.dtype, linear.scales.device,
    )  # fmt: skip


def _library_forward(linear: Any, hidden: Tensor) -> Tensor:
    """gptqmodel's own forward, on words that lie side by side as before."""
    parts: list[Tensor] = [getattr(linear, name) for name in PACKED]
    columns = [part.data for part in parts]
    try:
        for part in parts:
            part.data = part.data.contiguous()
        result: Tensor = linear.own_class.original_forward(linear, hidden)
    finally:
        for part, own in zip(parts, columns, strict=True):
            part.data = own
    return result
