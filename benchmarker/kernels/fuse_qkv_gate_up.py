"""Fusion of linears that share an input: query, key and value, and an MLP's gate and up.

Each kernel has a fixed cost: bitsandbytes' kernel takes 6 us for the smallest matrix, and one small matrix does not
fill an H100. So the weights are concatenated and multiplied by one kernel, like vLLM's `QKVParallelLinear` and
`MergedColumnParallelLinear`. Each linear's weight becomes a view of the concatenated weight, so no weight is stored
twice. Linears whose products inductor compiles are not fused.

In GPTQ, outputs are adjacent in memory, so words, zeros and scales are joined by columns. Joining saves nothing with
one row; with 8 rows, the products of a layer took 61 us joined and 76 us separate (H100). gptqmodel's own forward needs
contiguous words and makes copies in each call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
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
    scaled_forward,
)
from benchmarker.kernels.quantized_gemm import max_packed_rows
from benchmarker.kernels.rewritten_module import FusedLinear, FusedSlice, with_forward
from benchmarker.kernels.scaled_linear import ScaledLinear

if TYPE_CHECKING:
    from transformers import PreTrainedModel
from benchmarker.kernels.gemv_tensor_core import OUTPUTS_STEP


def fuse_linears(model: PreTrainedModel) -> list[nn.Module]:
    """Fuse linears with the same input, and return all fused linears. A second call changes nothing."""
    linears = [
        module
        for module in model.modules()
        if is_4bit(module) or type(module).forward in (rows_forward, scaled_forward) or _is_gptq(module)
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
    """Run the model over one token; yield groups of linears with the same input, in the order of their calls."""
    calls: list[tuple[Any, Tensor]] = []
    hooks = [
        linear.register_forward_pre_hook(lambda module, inputs: calls.append((module, inputs[0]))) for linear in linears
    ]
    try:
        # force_eager: gptqmodel would otherwise compile its dequantization for this single token.
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            model(input_ids=torch.zeros(1, 1, dtype=torch.int64, device=model.device), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    # A weight that is used twice cannot become a view of one matrix.
    uses = Counter(id(_weight_of(linear)) for linear, _ in calls)
    # `calls` keeps all tensors alive, so their ids are unique.
    for tensor_id in dict.fromkeys(id(tensor) for _, tensor in calls):
        group = [linear for linear, tensor in calls if id(tensor) == tensor_id]
        if len(group) > 1 and all(uses[id(_weight_of(linear))] == 1 for linear in group):
            yield group


def _weight_of(linear: Any) -> Tensor:
    weight: Tensor = linear.qweight if _is_gptq(linear) else linear.weight
    return weight


def _attach(linears: Sequence[Any], fused: nn.Module) -> None:
    shared, start = FusedLinear(fused), 0
    for linear in linears:
        stop = start + linear.out_features
        linear.fused_slice = FusedSlice(shared, start, stop, is_last=linear is linears[-1])
        start = stop
        linear.__class__ = with_forward(type(linear), _fused_forward)


def _fused_forward(linear: Any, hidden: Tensor) -> Tensor:
    """Return one linear's outputs. The group's first linear runs the fused linear, the last one frees its output."""
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


def _is_several(hidden: Tensor, fused: Any) -> bool:
    if hasattr(fused, "qweight") or isinstance(fused, ScaledLinear):
        # Only compiled code uses these kernels; gptqmodel's forward would copy the words in each call.
        return is_compiled_rows(hidden)
    return is_several_queries(hidden) or is_packed_product(hidden, fused) or is_unpacked_product(hidden, fused)


def _fuse(linears: Sequence[Any]) -> nn.Module | None:
    """Return a linear with the weights of all linears; None if their class, type, bias or number of inputs differ."""
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
    if isinstance(fused, ScaledLinear):
        fused.weight_scale = _fuse_parameters([linear.weight_scale for linear in linears])
    forms = {getattr(linear, "packed_form", None) for linear in linears}
    fused.packed_form = forms.pop() if len(forms) == 1 else None
    fused.has_gemv = all(getattr(linear, "has_gemv", True) for linear in linears)
    if linears[0].bias is not None:
        fused.bias = _fuse_parameters([linear.bias for linear in linears])
    if is_4bit(fused):
        for name in ("compute_dtype", "compute_type_is_set", "quant_storage", "support_avx512bf16_for_cpu"):
            setattr(fused, name, getattr(linears[0], name))
        fused.quant_state = weight.quant_state
    fused.max_packed_rows = max_packed_rows(fused, fused.packed_form)
    linear: nn.Linear = fused
    return linear


def _fuse_rows(linears: Sequence[Any]) -> nn.Parameter:
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
    whole = torch.cat([parameter.data for parameter in parameters])
    for parameter, part in zip(parameters, whole.split([len(parameter) for parameter in parameters]), strict=True):
        parameter.data = part
    return nn.Parameter(whole, requires_grad=False)


def _fuse_4bit(linears: Sequence[Any], outputs: int) -> Any | None:
    """Return a linear with the concatenated bitsandbytes weights; None if double-quantized or repacked for a CPU.

    The weights and scales of each of the `linears` become views of the result.
    """
    from bitsandbytes.functional import QuantState
    from bitsandbytes.nn.modules import Params4bit

    states = [linear.weight.quant_state for linear in linears]
    first = states[0]
    for linear, state in zip(linears, states, strict=True):
        is_known = not state.nested and not getattr(state, "packing_format_for_cpu", False)
        kind, first_kind = ((each.blocksize, each.quant_type, each.dtype) for each in (state, first))
        ends_a_block = linear.in_features * linear.out_features % state.blocksize == 0
        if not (is_known and kind == first_kind and ends_a_block and state.shape[0] == linear.out_features):
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


PACKED = ("qweight", "qzeros", "scales")  # Tensors of a GPTQ linear, whose columns are outputs.


def join_gptq(linears: Sequence[Any]) -> nn.Module | None:
    """Return a linear with the joined words of all linears, whose own words become columns of the joined words.

    Return None if groups, zeros, types or biases differ, if columns would not start at a multiple of 16 bytes, or if
    the quantized GEMM does not support the form: gptqmodel's forward would then copy the words in each call.
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
    joined.max_packed_rows = max_packed_rows(joined, first.packed_form)
    for linear in linears:
        linear.own_class = with_forward(linear.own_class, _library_forward)
    whole: nn.Module = joined
    return whole


def _join(parts: Sequence[Tensor]) -> Tensor:
    whole = torch.cat([part.data for part in parts], dim=-1)
    for part, columns in zip(parts, whole.split([part.shape[-1] for part in parts], dim=-1), strict=True):
        part.data = columns
    return whole


def separate_gptq(linear: Any) -> None:
    """Replace a joined linear's tensors by contiguous copies."""
    for name in PACKED:
        part: Tensor = getattr(linear, name)
        part.data = part.data.contiguous()
    linear.own_class = linear.own_class.__bases__[0]


def _kind(linear: Any) -> tuple[object, ...]:
    return (
        type(linear), linear.packed_form, linear.bias is None, len(linear.qweight), len(linear.scales),
        linear.scales.dtype, linear.scales.device,
    )  # fmt: skip


def _library_forward(linear: Any, hidden: Tensor) -> Tensor:
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
