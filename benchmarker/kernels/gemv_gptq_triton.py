"""W4A16 GEMV for GPTQ in Triton, for all group sizes, zero points and GPUs that `gemv_gptq.cu` does not support.

A program computes a few outputs over all inputs; its warps compute different groups. Words of neighbouring outputs are
adjacent, and a thread reads four of them at once.

Numbers are not converted: four bits of a word, masked but not shifted, are a denormal 32-bit float, number * 2**shift *
2**-149. The vector is multiplied by the inverse factors in advance, so that a weight takes two instructions: mask, and
multiply-add. The vector is read in 16-byte loads; eight Triton loads would be a third of all instructions.

On Hopper and newer, the kernel starts while the previous kernel ends, and reads weights before it waits for the vector.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from benchmarker.kernels.gemv_fusion import NO_FUSION, GemvFusion, norm_factor, silu_and_mul
from benchmarker.kernels.launch_support import is_aligned, supports_pdl, tl, triton

if TYPE_CHECKING:
    from benchmarker.kernels.gemv_gptq import Matrix


UNIT = tl.constexpr(2.0**96)  # Factor on the vector. Vectors with numbers up to 2**24 do not overflow a group's sum.
UNITS = tl.constexpr(2.0**53)  # Factor on the product: 2**96 * 2**53 * 2**-149 = 1.


@dataclass(frozen=True)
class TileConfig:
    columns: int  # Outputs per half of a tile; the halves are neighbours, or gate and up for SwiGLU.
    warps: int
    prefetch: int  # Steps whose weights are read before the kernel waits for the vector.


def tile_config_for(groups: int, fusion: GemvFusion) -> TileConfig:
    warps = 4 if groups <= 24 else 8
    return TileConfig(16, 4, 3) if fusion.swiglu else TileConfig(8, warps, 5)


@triton.jit  # type: ignore[untyped-decorator]
def gemv_gptq_kernel(  # type: ignore[no-untyped-def]
    hidden, words, zeros, scales, words1, zeros1, scales1, words2, zeros2, scales2, gain, residual, output,
    outputs, outputs1, outputs2, pitch, groups, epsilon,
    group_words: tl.constexpr, columns: tl.constexpr, at_once: tl.constexpr, rows: tl.constexpr, steps: tl.constexpr,
    prefetch: tl.constexpr, several: tl.constexpr, swiglu: tl.constexpr, has_zeros: tl.constexpr,
    has_norm: tl.constexpr, has_residual: tl.constexpr, by_ptx: tl.constexpr, pdl: tl.constexpr,
):  # fmt: skip
    """Shapes: hidden, gain [inputs]; words [groups * group_words, outputs]; zeros [groups, outputs / 8];
    scales [groups, outputs]; residual, output [outputs of all]. With `several`, the outputs of three matrices are
    concatenated. With `swiglu`, both matrices have equal size and may be columns of a matrix of `pitch` outputs. A step
    takes `at_once` groups, `rows` words of each at a time."""
    if pdl:
        tl.extra.cuda.gdc_launch_dependents()
    halves: tl.constexpr = 1 if swiglu else 2
    first = tl.program_id(0) * (halves * columns)
    start = first
    if several:
        if first >= outputs + outputs1:
            words, zeros, scales, first, outputs = words2, zeros2, scales2, first - outputs - outputs1, outputs2
            pitch = outputs2
        elif first >= outputs:
            words, zeros, scales, first, outputs = words1, zeros1, scales1, first - outputs, outputs1
            pitch = outputs1
    column = first + tl.arange(0, columns)
    if not swiglu:
        words1, zeros1, scales1 = words, zeros, scales
    second = column + (halves - 1) * columns
    weights = ()
    for step in tl.static_range(prefetch):
        one = _weights(
            words, zeros, scales, step, column, outputs, pitch, groups, group_words, at_once, rows, has_zeros
        )
        two = _weights(
            words1, zeros1, scales1, step, second, outputs, pitch, groups, group_words, at_once, rows, has_zeros
        )
        weights = weights + ((one, two),)  # type: ignore[assignment]  # noqa: RUF005
    if pdl:
        tl.extra.cuda.gdc_wait()
    total = tl.zeros([at_once, rows, columns], tl.float32)
    total1 = tl.zeros([at_once, rows, columns], tl.float32)
    squares = tl.zeros([at_once, rows], tl.float32)
    for step in tl.static_range(steps):
        if step + prefetch < steps:
            one = _weights(
                words, zeros, scales, step + prefetch, column, outputs, pitch,
                groups, group_words, at_once, rows, has_zeros,
            )  # fmt: skip
            two = _weights(
                words1, zeros1, scales1, step + prefetch, second, outputs, pitch,
                groups, group_words, at_once, rows, has_zeros,
            )  # fmt: skip
            weights = weights + ((one, two),)  # type: ignore[assignment]  # noqa: RUF005
        one, two = weights[step]
        dot, dot1, sum_of_hidden, squares = _products(
            one[0], two[0], hidden, gain, squares, step, groups, group_words, columns, at_once, rows, has_norm, by_ptx
        )
        total += one[1].to(tl.float32) * (dot - _zero(one[2], column, has_zeros) * sum_of_hidden)
        total1 += two[1].to(tl.float32) * (dot1 - _zero(two[2], second, has_zeros) * sum_of_hidden)
    result = tl.sum(tl.reshape(tl.join(total, total1), [at_once * rows, columns, 2]), 0) * UNITS
    if has_norm:
        result *= norm_factor(tl.sum(tl.reshape(squares, [at_once * rows]), 0), epsilon, groups * group_words * 8)
    if swiglu:
        gate, up = tl.split(result)
        tl.store(output + column, silu_and_mul(gate, up).to(output.dtype.element_ty), mask=column < outputs)
    else:
        place = tl.arange(0, columns)[:, None] + columns * tl.arange(0, 2)[None, :]
        inside = first + place < outputs
        if has_residual:
            result += tl.load(residual + start + place, mask=inside, other=0.0).to(tl.float32)
        tl.store(output + start + place, result.to(output.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _products(  # type: ignore[no-untyped-def]
    words, words1, hidden, gain, squares, step: tl.constexpr, groups, group_words: tl.constexpr, columns: tl.constexpr,
    at_once: tl.constexpr, rows: tl.constexpr, has_norm: tl.constexpr, by_ptx: tl.constexpr,
):  # fmt: skip
    """Return (dot products of both halves * UNIT, sums of the vector * UNIT, squares of the vector)."""
    dot = tl.zeros([at_once, rows, columns], tl.float32)
    dot1 = tl.zeros([at_once, rows, columns], tl.float32)
    sum_of_hidden = tl.zeros([at_once, rows], tl.float32)
    for part in tl.static_range(group_words // rows):
        group, word = _place(step, part, at_once, rows)
        row = group * group_words + word
        values = read_eight(hidden, row * 8, row < groups * group_words, by_ptx)
        if has_norm:
            gains = read_eight(gain, row * 8, row < groups * group_words, by_ptx)
        for nibble in tl.static_range(8):
            value = values[nibble]
            if has_norm:
                squares += value * value
                value *= gains[nibble]
            sum_of_hidden += value
            # Numbers 0 to 5 stay in place, each 4 bits higher than the previous; numbers 6 and 7 are shifted down.
            value *= UNIT / (16**nibble if nibble < 6 else 1)
            dot += _number(words[part], nibble) * value[:, :, None]
            dot1 += _number(words1[part], nibble) * value[:, :, None]
    return dot, dot1, (sum_of_hidden * UNIT)[:, :, None], squares


@triton.jit  # type: ignore[untyped-decorator]
def _place(  # type: ignore[no-untyped-def]
    step: tl.constexpr, part: tl.constexpr, at_once: tl.constexpr, rows: tl.constexpr
):  # fmt: skip
    group = step * at_once + tl.arange(0, at_once)
    return group[:, None], (part * rows + tl.arange(0, rows))[None, :]


@triton.jit  # type: ignore[untyped-decorator]
def _weights(  # type: ignore[no-untyped-def]
    words, zeros, scales, step: tl.constexpr, column, outputs, pitch, groups,
    group_words: tl.constexpr, at_once: tl.constexpr, rows: tl.constexpr, has_zeros: tl.constexpr,
):  # fmt: skip
    """Return the packed words of `at_once` groups, one tensor [at_once, rows, columns] per part of a group, and the
    groups' scales and zero points, [at_once, 1, columns]; the zero points are 0 if not `has_zeros`."""
    parts = ()
    for part in tl.static_range(group_words // rows):
        group, word = _place(step, part, at_once, rows)
        row = group * group_words + word
        place = row[:, :, None] * pitch + column[None, None, :]
        is_inside = (group < groups)[:, :, None] & (column < outputs)[None, None, :]
        parts = parts + (tl.load(words + place, mask=is_inside, other=0),)  # type: ignore[assignment]  # noqa: RUF005
    group = (step * at_once + tl.arange(0, at_once))[:, None, None]
    is_inside = (group < groups) & (column < outputs)[None, None, :]
    scale = tl.load(scales + group * pitch + column[None, None, :], mask=is_inside, other=0.0)
    zero = 0
    if has_zeros:
        place = group * (pitch // 8) + column[None, None, :] // 8
        zero = tl.load(zeros + place, mask=is_inside, other=0)
    return parts, scale, zero


@triton.jit  # type: ignore[untyped-decorator]
def _number(words, nibble: tl.constexpr):  # type: ignore[no-untyped-def]
    if nibble == 7:
        bits = words.to(tl.uint32, bitcast=True) >> 28
    elif nibble == 6:
        bits = (words.to(tl.uint32, bitcast=True) >> 24) & 15
    else:
        bits = words.to(tl.uint32, bitcast=True) & (15 << 4 * nibble)
    return bits.to(tl.float32, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]
def _zero(zero, column, has_zeros: tl.constexpr):  # type: ignore[no-untyped-def]
    number = (zero >> (column % 8 * 4)[None, None, :]) & 15 if has_zeros else tl.full([1, 1, 1], 8, tl.int32)
    return number.to(tl.float32, bitcast=True)


def launch(
    hidden: Tensor, matrices: Sequence["Matrix"], fusion: GemvFusion = NO_FUSION, *, tile: TileConfig | None = None
) -> Tensor:
    """Run the Triton kernel. Arguments and result as in `gemv_gptq.launch`."""
    first, second, third = [*matrices, matrices[-1], matrices[-1]][:3]
    (groups, outputs), group_words = first.scales.shape, len(first.words) // len(first.scales)
    count = outputs if fusion.swiglu else sum(matrix.words.shape[1] for matrix in matrices)
    tile = tile or tile_config_for(groups, fusion)
    rows = min(group_words, 128 // tile.columns)
    at_once = tile.warps * 128 // (tile.columns * rows)
    steps = triton.cdiv(groups, at_once)
    output = hidden.new_empty(count)
    pdl = supports_pdl(hidden.device)
    with torch.cuda.device_of(output):
        gemv_gptq_kernel[(triton.cdiv(count, (1 if fusion.swiglu else 2) * tile.columns),)](
            hidden.contiguous(), *_arguments(first), *_arguments(second), *_arguments(third),
            output if fusion.gain is None else fusion.gain,
            output if fusion.residual is None else fusion.residual, output,
            outputs, second.words.shape[1], third.words.shape[1], first.pitch, groups, fusion.epsilon,
            group_words=group_words, columns=tile.columns, at_once=at_once, rows=rows, steps=steps,
            prefetch=min(tile.prefetch, steps), several=len(matrices) == 3, swiglu=fusion.swiglu,
            has_zeros=first.zeros is not None, has_norm=fusion.gain is not None,
            has_residual=fusion.residual is not None, by_ptx=pdl and can_read_by_ptx(hidden, fusion.gain), pdl=pdl,
            num_warps=tile.warps, **({"launch_pdl": True} if pdl else {}),
        )  # fmt: skip
    return output


def _arguments(matrix: "Matrix") -> tuple[Tensor, Tensor, Tensor]:
    return matrix.words, matrix.words if matrix.zeros is None else matrix.zeros, matrix.scales


def _ptx(*, bf16: bool) -> str:
    """Return PTX that reads eight numbers from the address $8; if $9 is 0, it returns zeros."""
    lines = ["mov.b32 w0, 0;", "mov.b32 w1, 0;", "mov.b32 w2, 0;", "mov.b32 w3, 0;", "setp.ne.b32 inside, $9, 0;"]
    lines.append("@inside ld.global.v4.b32 {w0, w1, w2, w3}, [$8];")
    for word in range(4):
        low, high = f"${2 * word}", f"${2 * word + 1}"
        if bf16:
            lines += [f"shl.b32 bits, w{word}, 16;", f"mov.b32 {low}, bits;"]
            lines += [f"and.b32 bits, w{word}, 0xFFFF0000;", f"mov.b32 {high}, bits;"]
        else:
            lines += [f"mov.b32 {{first, second}}, w{word};", f"cvt.f32.f16 {low}, first;"]
            lines += [f"cvt.f32.f16 {high}, second;"]
    registers = ".reg .b32 w0, w1, w2, w3, bits;\n.reg .b16 first, second;\n.reg .pred inside;"
    return "{\n" + registers + "\n" + "\n".join(lines) + "\n}"


READ_F16, READ_BF16 = tl.constexpr(_ptx(bf16=False)), tl.constexpr(_ptx(bf16=True))
REGISTERS = tl.constexpr("=f," * 8 + "l,r")


def can_read_by_ptx(*vectors: Tensor | None) -> bool:
    """Return True if `read_eight` can read these vectors by PTX: 16-bit floats aligned to 16 bytes, or None."""
    return all(vector is None or (vector.element_size() == 2 and is_aligned(vector)) for vector in vectors)


@triton.jit  # type: ignore[untyped-decorator]
def read_eight(vector, place, inside, by_ptx: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return vector[place + i] for i = 0 to 7 as eight tensors, 0 if not `inside`. `by_ptx`: see `can_read_by_ptx`."""
    kind: tl.constexpr = vector.dtype.element_ty
    if by_ptx:
        # is_pure=False: the compiler must not move the load before the wait for the previous kernel.
        numbers = tl.inline_asm_elementwise(
            READ_BF16 if kind == tl.bfloat16 else READ_F16, REGISTERS,
            [(vector + place).to(tl.int64), inside.to(tl.int32)], dtype=(tl.float32,) * 8, is_pure=False, pack=1,
        )  # fmt: skip
    else:
        numbers = (
            tl.load(vector + place, mask=inside, other=0.0).to(tl.float32),
            tl.load(vector + place + 1, mask=inside, other=0.0).to(tl.float32),
            tl.load(vector + place + 2, mask=inside, other=0.0).to(tl.float32),
            tl.load(vector + place + 3, mask=inside, other=0.0).to(tl.float32),
            tl.load(vector + place + 4, mask=inside, other=0.0).to(tl.float32),
            tl.load(vector + place + 5, mask=inside, other=0.0).to(tl.float32),
            tl.load(vector + place + 6, mask=inside, other=0.0).to(tl.float32),
            tl.load(vector + place + 7, mask=inside, other=0.0).to(tl.float32),
        )
    return numbers
