"""A vector times a matrix of numbers or int8, as one kernel that reads each row once.

On NVIDIA's Hopper and newer it starts while the kernel before it ends (programmatic dependent launch) and reads its
weights at once, which nothing in a step writes; for the vector it waits. Inductor's own product waits before it reads
anything, so that the memory rests while one kernel ends and the next begins: about three microseconds for each.

Imported only where there is a GPU, since torch brings Triton only there.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# No `from __future__ import annotations` here: torch reads the operator's types from its annotations.

TILE_BYTES = 5 << 10
"""Of a matrix, that a program of the grid takes at once, into registers. On an H100 8 times as much was 20 % slower."""
CHUNK = 512
"""Of a row, that a program reads at once."""
WARPS = 4


def _name(specialization: Any) -> str:
    """What profilers see."""
    return "int8_rows_kernel" if specialization.constants["scaled"] else "rows_kernel"


@triton.jit(repr=_name)  # type: ignore[untyped-decorator]
def rows_kernel(  # type: ignore[no-untyped-def]
    hidden, rows, scales, made,
    outputs,
    inputs: tl.constexpr, chunk: tl.constexpr, rows_each: tl.constexpr, held: tl.constexpr,
    scaled: tl.constexpr, matrices: tl.constexpr,
):  # fmt: skip
    """hidden: [inputs]; rows: [matrices * outputs, inputs]; scales: [matrices * outputs], read only if `scaled`;
    made: [outputs]. With two matrices a program takes the same rows of both, one beside the other."""
    first = tl.program_id(0) * rows_each
    lane = tl.arange(0, rows_each * matrices)
    inside = first + lane // matrices < outputs
    row = lane % matrices * outputs + first + lane // matrices
    within = tl.arange(0, chunk)
    start = rows + row.to(tl.int64)[:, None] * inputs + within[None, :]
    tl.extra.cuda.gdc_launch_dependents()
    weights = ()
    for each in tl.static_range(held):
        known = inside[:, None] & (each * chunk + within < inputs)[None, :]
        weights = weights + (tl.load(start + each * chunk, mask=known, other=0.0, eviction_policy="evict_first"),)  # type: ignore[assignment]  # noqa: RUF005
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
    output = first + tl.arange(0, rows_each)
    tl.store(made + output, result.to(made.dtype.element_ty), mask=output < outputs)


@torch.library.custom_op("benchmarker::rows_times", mutates_args=())
def rows_times(hidden: Tensor, rows: Tensor, scales: Tensor | None) -> Tensor:
    """Weights that were written just before on the same device must be waited for by the caller.

    Args:
        hidden: [in].
        rows: [out, in], where `in` is a multiple of 16: floating point, or int8.
        scales: [out] or [out, 1], by which the sums are multiplied.

    Returns:
        [out], of the vector's type; summed in 32 bits.
    """
    return _launched(hidden, rows, scales, matrices=1)


@rows_times.register_fake
def _shape(hidden: Tensor, rows: Tensor, scales: Tensor | None) -> Tensor:  # noqa: ARG001
    return hidden.new_empty(rows.shape[0])


@torch.library.custom_op("benchmarker::gated_rows_times", mutates_args=())
def gated_rows_times(hidden: Tensor, rows: Tensor, scales: Tensor | None) -> Tensor:
    """silu(gate) * up, for an MLP whose gate's rows lie before up's.

    Args:
        hidden: As for `rows_times`.
        rows: [2 * out, in].
        scales: [2 * out] or [2 * out, 1].

    Returns:
        [out], of the vector's type; in 32 bits up to there.
    """
    return _launched(hidden, rows, scales, matrices=2)


@gated_rows_times.register_fake
def _gated_shape(hidden: Tensor, rows: Tensor, scales: Tensor | None) -> Tensor:  # noqa: ARG001
    return hidden.new_empty(rows.shape[0] // 2)


def _launched(hidden: Tensor, rows: Tensor, scales: Tensor | None, *, matrices: int) -> Tensor:
    outputs, inputs = len(rows) // matrices, rows.shape[1]
    made = hidden.new_empty(outputs)
    row_bytes = inputs * matrices * rows.element_size()
    rows_each = max(1, triton.next_power_of_2(TILE_BYTES // row_bytes + 1) // 2)
    with torch.cuda.device_of(made):
        rows_kernel[(triton.cdiv(outputs, rows_each),)](
            hidden.contiguous(), rows, made if scales is None else scales, made, outputs,
            inputs=inputs, chunk=CHUNK, rows_each=rows_each,
            held=triton.cdiv(min(inputs, TILE_BYTES // rows.element_size()), CHUNK),
            scaled=scales is not None, matrices=matrices, num_warps=WARPS, launch_pdl=True,
        )  # fmt: skip
    return made
