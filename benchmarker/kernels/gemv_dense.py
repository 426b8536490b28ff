"""W16A16 and W8A16 GEMV: a matrix of floating point or int8 times a vector, each row read once; SwiGLU as its epilogue.

On NVIDIA's Hopper and newer the kernel starts while the one before it ends (programmatic dependent launch). It reads
its weights at once, as no step writes them, and waits for the vector. Inductor's own GEMV waits before it reads
anything, so that the memory rests between two kernels: about three microseconds for each.
"""

from typing import Any

import torch
from torch import Tensor, nn

from benchmarker.kernels.pdl import can_start_early
from benchmarker.kernels.triton_if_present import tl, triton

# No `from __future__ import annotations` here: torch reads the operator's types from its annotations.

TILE_BYTES = 5 << 10
"""Bytes of the matrix that a program of the grid holds in registers. On an H100 8 times as many were 20 % slower."""
CHUNK = 512
"""Numbers of a row that a program reads at once."""
WARPS = 4


IN_A_LOAD = 16
"""int8 numbers in the longest load: rows that begin at a multiple of 16 need no shorter loads."""


def supports(linear: Any) -> str | None:
    """Why this kernel cannot multiply by a linear's weights, or gains nothing by it; None where it can."""
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
    """Whether a weight is torchao's int8 with one scale a row, for activations that are not quantized.

    torchao's own product with such a weight has no zero point either.
    """
    if type(weight).__name__ != "Int8Tensor" or weight.act_quant_kwargs is not None:
        return False
    is_by_row = weight.act_pre_scale is None and weight.scale.numel() == len(weight)
    return is_by_row and bool(weight.qdata.is_contiguous())


def as_rows(weight: Any) -> tuple[Tensor, Tensor | None]:
    """The matrix of a supported weight, [out, in], and the scale of each row, [out, 1]; None where there is none."""
    return (weight.qdata, weight.scale) if hasattr(weight, "qdata") else (weight, None)


def _name(specialization: Any) -> str:
    """The kernel's name in a profile."""
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
    """rows @ hidden, each sum multiplied by its row's scale.

    The caller must wait for weights that were written just before on the same device: the kernel does not.

    Args:
        hidden: [in].
        rows: [out, in], where `in` is a multiple of 16: floating point, or int8.
        scales: The scale of each row, [out] or [out, 1]; None for rows without.

    Returns:
        [out], of the vector's type; summed in 32 bits.
    """
    return _launched(hidden, rows, scales, matrices=1)


@gemv_dense.register_fake
def _shape(hidden: Tensor, rows: Tensor, scales: Tensor | None) -> Tensor:  # noqa: ARG001
    return hidden.new_empty(rows.shape[0])


@torch.library.custom_op("benchmarker::gemv_swiglu", mutates_args=())
def gemv_swiglu(hidden: Tensor, rows: Tensor, scales: Tensor | None) -> Tensor:
    """silu(gate @ hidden) * (up @ hidden), the first half of an MLP with SwiGLU.

    The caller must wait for weights that were written just before on the same device: the kernel does not.

    Args:
        hidden: [in].
        rows: The gate's rows, then up's, [2 * out, in], where `in` is a multiple of 16: floating point, or int8.
        scales: The scale of each row, [2 * out] or [2 * out, 1]; None for rows without.

    Returns:
        [out], of the vector's type; computed in 32 bits.
    """
    return _launched(hidden, rows, scales, matrices=2)


@gemv_swiglu.register_fake
def _gated_shape(hidden: Tensor, rows: Tensor, scales: Tensor | None) -> Tensor:  # noqa: ARG001
    return hidden.new_empty(rows.shape[0] // 2)


def _launched(hidden: Tensor, rows: Tensor, scales: Tensor | None, *, matrices: int) -> Tensor:
    """Launch the kernel: with one matrix as `gemv_dense`, with two as `gemv_swiglu`."""
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
