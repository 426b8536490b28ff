"""W16A16, W8A16 and W8A8 GEMV: a floating-point (16 bits or FP8) or int8 matrix times a vector.

On Hopper and newer, the kernel starts while the previous kernel ends (programmatic dependent launch): it reads weights
at once and then waits for the vector. Inductor's GEMV waits before it reads: about 3 us per kernel with idle memory.

For W8A8, each program quantizes the whole vector like `quantized_rows` and multiplies the codes in 32 bits. The factor
of an RMS norm does not change the codes, so it is applied to the result; the weight of the norm changes them.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarker.kernels.gemv_fusion import NO_FUSION, GemvFusion, store_outputs
from benchmarker.kernels.launch_support import supports_pdl, tl, triton
from benchmarker.kernels.scaled_linear import FP8_MAX, INT8_MAX, ScaledLinear

# No `from __future__ import annotations`: torch reads the operator's types from its annotations.

PREFETCH_BYTES = 20 << 10  # Bytes of each row that are read before the wait.

LOAD_SIZE = 16  # int8 numbers in the longest load instruction; the length of a row is a multiple.


def why_not(linear: Any) -> str | None:
    """Return why this kernel is not used for a linear; None if it is used."""
    weight: Any = linear.weight
    if linear.in_features % LOAD_SIZE:
        return "inputs that are no multiple of 16"
    if not supports_pdl(weight.device):
        return "needs NVIDIA's Hopper or newer, and a Triton that is not 3.4"
    is_plain = type(weight) is nn.Parameter and weight.is_floating_point() and weight.is_contiguous()
    if is_plain or is_int8_by_row(linear):
        return None
    return "weights that are neither contiguous floating point nor int8 by row"


def is_int8_by_row(linear: Any) -> bool:
    """Return True for int8 weights with one scale per row and no zero points, of torchao or of a `ScaledLinear`."""
    weight = linear.weight
    if isinstance(linear, ScaledLinear):
        return bool(weight.dtype == torch.int8 and weight.is_contiguous())
    if type(weight).__name__ != "Int8Tensor" or weight.act_quant_kwargs is not None:
        return False
    is_by_row = weight.act_pre_scale is None and weight.scale.numel() == len(weight)
    return is_by_row and bool(weight.qdata.is_contiguous())


def as_rows(linear: Any) -> tuple[Tensor, Tensor | None]:
    """Return the matrix, [out, in], and the scales of its rows; None for a matrix without scales."""
    if isinstance(linear, ScaledLinear):
        return linear.weight, linear.weight_scale  # type: ignore[return-value]
    weight = linear.weight
    return (weight.qdata, weight.scale) if hasattr(weight, "qdata") else (weight, None)


@dataclass(frozen=True)
class TileConfig:
    rows: int  # Outputs per program and matrix.
    chunk: int  # Weights of a row per step.
    warps: int
    prefetch: int  # Steps whose weights are read before the kernel waits for the vector.


def tile_config_for(inputs: int, element_bytes: int, fusion: GemvFusion) -> TileConfig:
    """Return the tile for rows of `inputs` numbers. Small tiles run concurrently: 40 KB took 20 % longer (H100)."""
    rows = 2 if element_bytes == 1 and not fusion.swiglu else 1
    chunk, warps = (512, 2) if inputs <= 4096 else (1024, 4)
    return TileConfig(rows, chunk, warps, PREFETCH_BYTES // (chunk * element_bytes))


def _name(specialization: Any) -> str:
    return "gemv_scaled_kernel" if specialization.constants["has_scales"] else "gemv_dense_kernel"


@triton.jit(repr=_name)  # type: ignore[untyped-decorator]
def gemv_dense_kernel(  # type: ignore[no-untyped-def]
    hidden, weights, scales, gain, residual, output,
    outputs, epsilon,
    inputs: tl.constexpr, chunk: tl.constexpr, rows: tl.constexpr, prefetch: tl.constexpr, has_scales: tl.constexpr,
    matrices: tl.constexpr, has_norm: tl.constexpr, has_residual: tl.constexpr, max_code: tl.constexpr,
    pdl: tl.constexpr,
):  # fmt: skip
    """Shapes: hidden, gain [inputs]; weights [matrices * outputs, inputs]; scales [matrices * outputs].

    max_code: Largest code of the quantized vector; 0 if the vector is not quantized.
    """
    if pdl:
        tl.extra.cuda.gdc_launch_dependents()
    first = tl.program_id(0) * rows
    lane = tl.arange(0, matrices * rows)
    inside = first + lane % rows < outputs
    row = lane // rows * outputs + first + lane % rows
    start = weights + row.to(tl.int64)[None, :, None] * inputs
    steps: tl.constexpr = (inputs + chunk - 1) // chunk
    parts = ()
    for step in tl.static_range(prefetch):
        part = _weights(start, inside, step, inputs, chunk)
        parts = parts + (part,)  # type: ignore[assignment]  # noqa: RUF005
    if pdl:
        tl.extra.cuda.gdc_wait()
    total = tl.zeros([chunk // 8, matrices * rows, 8], tl.float32)
    squares = tl.zeros([chunk // 8, 8], tl.float32)
    values = ()
    if max_code:
        largest = tl.zeros([chunk // 8, 8], tl.float32)
        for step in tl.static_range(steps):
            value = _vector(hidden, step, inputs, chunk)
            if has_norm:
                squares += value * value
                value *= _vector(gain, step, inputs, chunk)
            largest = tl.maximum(largest, tl.abs(value))
            values = values + (value,)  # type: ignore[assignment]  # noqa: RUF005
        highest = tl.max(tl.max(largest, 1), 0)
        unit = tl.where(highest > 0, highest, 1.0) / max_code
    for step in tl.static_range(steps):
        if step + prefetch < steps:
            part = _weights(start, inside, step + prefetch, inputs, chunk)
            parts = parts + (part,)  # type: ignore[assignment]  # noqa: RUF005
        if max_code:
            value = _code(values[step] / unit, weights.dtype.element_ty)
        else:
            value = _vector(hidden, step, inputs, chunk)
            if has_norm:
                squares += value * value
                value *= _vector(gain, step, inputs, chunk)
        total += parts[step].to(tl.float32) * value[:, None, :]
    result = tl.sum(tl.sum(total, 2), 0)
    if max_code:
        result *= unit
    if has_scales:
        result *= tl.load(scales + row, mask=inside, other=0.0).to(tl.float32)
    store_outputs(
        result, tl.sum(tl.sum(squares, 1), 0), epsilon, residual, output, first, outputs, inputs,
        rows, matrices, has_norm, has_residual,
    )  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def _vector(vector, step: tl.constexpr, inputs: tl.constexpr, chunk: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return a step's part of a vector, [chunk / 8, 8], in 32 bits."""
    place = _places(step, chunk)
    return tl.load(vector + place, mask=place < inputs, other=0.0).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def _code(value, kind: tl.constexpr):  # type: ignore[no-untyped-def]
    """Round to the nearest int8 or FP8 number, in ties to even."""
    if kind == tl.int8:
        # From 1.5 * 2 ** 23 on, float32 has whole numbers only.
        return (value + 12582912.0) - 12582912.0
    return value.to(kind).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def _places(step: tl.constexpr, chunk: tl.constexpr):  # type: ignore[no-untyped-def]
    return step * chunk + tl.arange(0, chunk // 8)[:, None] * 8 + tl.arange(0, 8)[None, :]


@triton.jit  # type: ignore[untyped-decorator]
def _weights(  # type: ignore[no-untyped-def]
    start, inside, step: tl.constexpr, inputs: tl.constexpr, chunk: tl.constexpr
):  # fmt: skip
    """Return a step's weights, [chunk / 8, rows, 8], in a layout in which a warp's lanes read one row, and each thread
    the same columns of all rows."""
    place = _places(step, chunk)[:, None, :]
    is_inside = inside[None, :, None] & (place < inputs)
    return tl.load(start + place, mask=is_inside, other=0.0, eviction_policy="evict_first")


def launch(
    hidden: Tensor, weights: Tensor, scales: Tensor | None, fusion: GemvFusion = NO_FUSION, *,
    tile: TileConfig | None = None, quantized: bool = False,
) -> Tensor:  # fmt: skip
    """Run one kernel for the GEMV and its fused operations; return [out], or [out / 2] for SwiGLU, summed in 32 bits.

    Args:
        hidden: [in].
        weights: [out, in], `in` a multiple of 16, floating point or int8. For SwiGLU: rows of gate, then rows of up.
        scales: Scale of each row, with `out` elements; else None.
        quantized: Quantize the vector to the type of the weights, int8 or FP8.
    """
    matrices = 2 if fusion.swiglu else 1
    outputs, inputs = len(weights) // matrices, weights.shape[1]
    tile = tile or tile_config_for(inputs, weights.element_size(), fusion)
    output = hidden.new_empty(outputs)
    max_code = int(INT8_MAX if weights.dtype == torch.int8 else FP8_MAX) if quantized else 0
    pdl = supports_pdl(hidden.device)
    with torch.cuda.device_of(output):
        gemv_dense_kernel[(triton.cdiv(outputs, tile.rows),)](
            hidden.contiguous(), weights, output if scales is None else scales,
            output if fusion.gain is None else fusion.gain,
            output if fusion.residual is None else fusion.residual, output,
            outputs, fusion.epsilon, inputs=inputs, chunk=tile.chunk, rows=tile.rows,
            prefetch=min(tile.prefetch, triton.cdiv(inputs, tile.chunk)),
            has_scales=scales is not None, matrices=matrices, has_norm=fusion.gain is not None,
            has_residual=fusion.residual is not None, max_code=max_code, pdl=pdl, num_warps=tile.warps,
            **({"launch_pdl": True} if pdl else {}),
        )  # fmt: skip
    return output


@torch.library.custom_op("benchmarker::gemv_dense", mutates_args=())
def gemv_dense(hidden: Tensor, rows: Tensor, scales: Tensor | None, quantized: bool = False) -> Tensor:
    return launch(hidden, rows, scales, quantized=quantized)


@gemv_dense.register_fake
def _shape(hidden: Tensor, rows: Tensor, scales: Tensor | None, quantized: bool = False) -> Tensor:  # noqa: ARG001
    return hidden.new_empty(rows.shape[0])


@torch.library.custom_op("benchmarker::gemv_swiglu", mutates_args=())
def gemv_swiglu(hidden: Tensor, rows: Tensor, scales: Tensor | None) -> Tensor:
    """Return silu(gate @ hidden) * (up @ hidden). Arguments as in `launch`."""
    return launch(hidden, rows, scales, GemvFusion(swiglu=True))


@gemv_swiglu.register_fake
def _gated_shape(hidden: Tensor, rows: Tensor, scales: Tensor | None) -> Tensor:  # noqa: ARG001
    return hidden.new_empty(rows.shape[0] // 2)
