"""W16A16 and W8A16 GEMV: a vector times a matrix of numbers or int8, each row read once; SwiGLU as its epilogue.

On NVIDIA's Hopper and newer it starts while the kernel before it ends (programmatic dependent launch) and reads its
weights at once, which nothing in a step writes; for the vector it waits. Inductor's own product waits before it reads
anything, so that the memory rests while one kernel ends and the next begins: about three microseconds for each.
"""

from typing import Any

import torch
from torch import Tensor, nn

from benchmarker.kernels.pdl import can_start_early
from benchmarker.kernels.triton_if_present import tl, triton

# No `from __future__ import annotations` here: torch reads the operator's types from its annotations.

TILE_BYTES = 5 << 10
"""Of a matrix, that a program of the grid takes at once, into registers. On an H100 8 times as much was 20 % slower."""
CHUNK = 512
"""Of a row, that a program reads at once."""
WARPS = 4


IN_A_LOAD = 16
"""Numbers of int8 in the longest load: rows that begin at a multiple of it need no shorter ones."""


def supports(linear: Any) -> str | None:
    """None, or why this kernel cannot multiply by a linear's weights, or gains nothing by it."""
    weight: Any = linear.weight
    if linear.in_features % IN_A_LOAD:
        return "inputs that are no multiple of 16"
    if not can_start_early(weight.device):
        return "needs NVIDIA's Hopper or newer, and a Triton that is not 3.4"
    if type(weight) is nn.Parameter:
        is_plain = weight.is_floating_point() and weight.is_contiguous()
        return None if is_plain else "weights that are no contiguous floating point"
    return None if is_int8_by_row(weight) else "weights that are neither numbers nor torchao's int8 by row"


def is_int8_by_row(weight: Any) -> bool:
    """Whether it is torchao's int8 with one scale a row and nothing done to the activations.

    torchao's own product of it adds no zero point either.
    """
    if type(weight).__name__ != "Int8Tensor" or weight.act_quant_kwargs is not None:
        return False
    is_by_row = weight.act_pre_scale is None and weight.scale.numel() == len(weight)
    return is_by_row and bool(weight.qdata.is_contiguous())


def as_rows(weight: Any) -> tuple[Tensor, Tensor | None]:
    """What lies in memory of weights that are supported: the matrix, and a scale for each row of int8."""
    return (weight.qdata, weight.scale) if hasattr(weight, "qdata") else (weight, None)


def _name(specialization: Any) -> str:
    """What profilers see."""
    return "gemv_int8_kernel" if specialization.constants["scaled"] else "gemv_dense_kernel"


@triton.jit(repr=_name)  # type: ignore[untyped-decorator]
def gemv_dense_kernel(  # type: ignore[no-untyped-def]
    hidden, rows, scales, output,
    outputs,
    inputs: tl.constexpr, chunk: tl.constexpr, rows_each: tl.constexpr, held: tl.constexpr,
    scaled: tl.constexpr, matrices: tl.constexpr, early: tl.constexpr,
):  # fmt: skip
    """hidden: [inputs]; rows: [matrices * outputs, inputs]; scales: [matrices * outputs], read only if `scaled`;
    output: [outputs]. With two matrices a program takes the same rows of both, one beside the other."""
    first = tl.program_id(0) * rows_each
    lane = tl.arange(0, rows_each * matrices)
    inside = first + lane // matrices < outputs
    row = lane % matrices * outputs + first + lane // matrices
    within = tl.arange(0, chunk)
    start = rows + row.to(tl.int64)[:, None] * inputs + within[None, :]
    if early:
        tl.extra.cuda.gdc_launch_dependents()
    weights = ()
    for each in tl.static_range(held):
        is_inside = inside[:, None] & (each * chunk + within < inputs)[None, :]
        part = tl.load(start + each * chunk, mask=is_inside, other=0.0, eviction_policy="evict_first")
        weights = weights + (part,)  # type: ignore[assignment]  # noqa: RUF005
    if early:
        tl.extra.cuda.gdc_wait()
    total = tl.zeros([rows_each * matrices, chunk], tl.float32)
    for each in tl.static_range(held):
        value = tl.load(hidden + each * chunk + within, mask=each * chunk + within < inputs, other=0.0).to(tl.float32)
        total += weights[each].to(tl.float32) * value[None, :]
    for each in range(held, tl.cdiv(inputs, chunk)):
        column = each * chunk + within < inputs
        value = tl.load(hidden + each * chunk + within, mask=column, other=0.0).to(tl.float32)
        tile = tl.load(
            start + each * chunk, mask=inside[:, None] & column[None, :], other=0.0, eviction_policy="evict_first"
        )
        total += tile.to(tl.float32) * value[None, :]
    result = tl.sum(total, 1)
    if scaled:
        result *= tl.load(scales + row, mask=inside, other=0.0).to(tl.float32)
    if matrices == 2:
        gate, up = tl.split(tl.reshape(result, [rows_each, 2]))
        result = gate * tl.sigmoid(gate) * up
    place = first + tl.arange(0, rows_each)
    tl.store(output + place, result.to(output.dtype.element_ty), mask=place < outputs)


@torch.library.custom_op("benchmarker::gemv_dense", mutates_args=())
def gemv_dense(hidden: Tensor, rows: Tensor, scales: Tensor | None) -> Tensor:
    """Weights that were written just before on the same device must be waited for by the caller.

    Args:
        hidden: [in].
        rows: [out, in], where `in` is a multiple of 16: floating point, or int8.
        scales: [out] or [out, 1], by which the sums are multiplied.

    Returns:
        [out], of the vector's type; summed in 32 bits.
    """
    return _launched(hidden, rows, scales, matrices=1)


@gemv_dense.register_fake
def _shape(hidden: Tensor, rows: Tensor, scales: Tensor | None) -> Tensor:  # noqa: ARG001
    return hidden.new_empty(rows.shape[0])


@torch.library.custom_op("benchmarker::gemv_swiglu", mutates_args=())
def gemv_swiglu(hidden: Tensor, rows: Tensor, scales: Tensor | None) -> Tensor:
    """silu(gate) * up, for an MLP whose gate's rows lie before up's.

    Args:
        hidden: As for `gemv_dense`.
        rows: [2 * out, in].
        scales: [2 * out] or [2 * out, 1].

    Returns:
        [out], of the vector's type; in 32 bits up to there.
    """
    return _launched(hidden, rows, scales, matrices=2)


@gemv_swiglu.register_fake
def _gated_shape(hidden: Tensor, rows: Tensor, scales: Tensor | None) -> Tensor:  # noqa: ARG001
    return hidden.new_empty(rows.shape[0] // 2)


def _launched(hidden: Tensor, rows: Tensor, scales: Tensor | None, *, matrices: int) -> Tensor:
    outputs, inputs = len(rows) // matrices, rows.shape[1]
    output = hidden.new_empty(outputs)
    early = can_start_early(hidden.device)
    row_bytes = inputs * matrices * rows.element_size()
    rows_each = max(1, triton.next_power_of_2(TILE_BYTES // row_bytes + 1) // 2)
    with torch.cuda.device_of(output):
        gemv_dense_kernel[(triton.cdiv(outputs, rows_each),)](
            hidden.contiguous(), rows, output if scales is None else scales, output, outputs,
            inputs=inputs, chunk=CHUNK, rows_each=rows_each,
            held=triton.cdiv(min(inputs, TILE_BYTES // rows.element_size()), CHUNK),
            scaled=scales is not None, matrices=matrices, early=early, num_warps=WARPS,
            **({"launch_pdl": True} if early else {}),
        )  # fmt: skip
    return output
