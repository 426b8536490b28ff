"""A candidate for `native`: a GEMV over GPTQ's words on tensor cores. No engine uses it; it has not run on a GPU yet.

`gemv_gptq` multiplies in 32 bits and takes 4 to 5 instructions a weight, about as many as an H100 has time for. Here a
weight becomes float16 by 0.9 instructions, and `mma.m16n8k16` multiplies. No lane needs another lane's numbers: of the
product of A (16 x 16) and B (16 x 8) only the diagonal is used. Lane 4 g + t puts its own weights into row g of A,
those of another output into row g + 8, and its own part of the vector into column g of B. Element (g, g) is then the
dot product of the four lanes of g, in 32 bits; all other elements mean nothing.

Layout: as in `gemv_gptq`, zero points of 8 alone. A lane has one place in the inputs, and all outputs of its program.
The four lanes of a g have neighbouring places, which share a scale. `one_row_products.py` beside this file times it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarker.kernels.gemv_ends import PLAIN, Ends, gated, norm_factor
from benchmarker.kernels.gemv_gptq import Matrix
from benchmarker.kernels.pdl import can_start_early
from benchmarker.kernels.triton_if_present import tl, triton

SMALLER = tl.constexpr(64.0)
"""By so much the vector times a norm's gain is kept smaller: it could be more than float16 holds."""
ZEROS = "zero, zero, zero, zero"
SUMS = ".reg .f32 d0, d1, d2, d3, zero;\n.reg .pred is_odd;\n.reg .b32 lane;"
ODD = ("mov.u32 lane, %laneid;", "and.b32 lane, lane, 4;", "setp.ne.b32 is_odd, lane, 0;")
"""Element (g, g) is in the first of a lane's two columns where g is even, else in the second."""


def _mma(a: str, b: str, c: str) -> str:
    return f"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {{d0, d1, d2, d3}}, {{{a}}}, {{{b}}}, {{{c}}};"


def _block(registers: str, *lines: str) -> Any:
    return tl.constexpr("{\n" + registers + "\n" + "\n".join(lines) + "\n}")


def _numbers(word: str, name: str) -> list[str]:
    """Eight numbers of a word, plus 1,024, as pairs in float16: inputs 0 and 4, 1 and 5, 2 and 6, 3 and 7."""
    lines = [f"lop3.b32 {name}0, {word}, 0x000f000f, 0x64006400, 0xea;"]
    for at in range(1, 4):
        lines += [f"shr.u32 moved, {word}, {4 * at};", f"lop3.b32 {name}{at}, moved, 0x000f000f, 0x64006400, 0xea;"]
    return lines


DOTS = _block(
    f".reg .b32 moved, p0, p1, p2, p3, q0, q1, q2, q3;\n{SUMS}", *_numbers("$2", "p"), *_numbers("$3", "q"),
    _mma("p0, q0, p1, q1", "$4, $5", "$8, $9, $8, $9"), _mma("p2, q2, p3, q3", "$6, $7", "d0, d1, d2, d3"), *ODD,
    "selp.f32 $0, d1, d0, is_odd;", "selp.f32 $1, d3, d2, is_odd;",
)  # fmt: skip
"""$0 and $1: the dot products of two outputs' words, $2 and $3, with the vector, $4 to $7, beginning with $8 and $9."""
START = _block(
    f".reg .b32 less;\n{SUMS}", "mov.f32 zero, 0f00000000;", "mov.b32 less, 0xe408e408;",
    _mma("less, less, less, less", "$2, $3", ZEROS), _mma("less, less, less, less", "$4, $5", "d0, d1, d2, d3"),
    "mov.f32 $0, d0;", "mov.f32 $1, d1;",
)  # fmt: skip
"""-1,032 times the vector's sum: a number is kept as 1,024 more, and its zero point is 8."""
SQUARES = _block(
    f".reg .b32 none;\n{SUMS}", "mov.f32 zero, 0f00000000;", "mov.b32 none, 0;",
    _mma("$1, none, $2, none", "$1, $2", ZEROS), _mma("$3, none, $4, none", "$3, $4", "d0, d1, d2, d3"), *ODD,
    "selp.f32 $0, d1, d0, is_odd;",
)  # fmt: skip
DIAGONAL = _block(
    ".reg .b32 lane, t, half;\n.reg .pred is_own;", "mov.u32 lane, %laneid;", "and.b32 t, lane, 3;",
    "shr.u32 half, lane, 3;", "setp.eq.b32 is_own, t, half;", "selp.f32 $0, $1, 0f00000000, is_own;",
)  # fmt: skip
"""$1 in the lanes that hold an element (g, g), where t = g / 2, and 0 in the others."""
READ = _block(
    ".reg .b32 r0, r1, r2, r3;\n.reg .pred is_inside;", *(f"mov.b32 r{at}, 0;" for at in range(4)),
    "setp.ne.b32 is_inside, $5, 0;", "@is_inside ld.global.v4.b32 {r0, r1, r2, r3}, [$4];",
    "prmt.b32 $0, r0, r2, 0x5410;", "prmt.b32 $1, r0, r2, 0x7632;", "prmt.b32 $2, r1, r3, 0x5410;",
    "prmt.b32 $3, r1, r3, 0x7632;",
)  # fmt: skip
"""Eight numbers of a vector from the address $4 on, in the pairs of `_numbers`; zeros where $5 is 0."""
GAINED = _block(
    ".reg .b32 part, smaller;", "mov.b32 smaller, 0x24002400;",
    *(f"mul.f16x2 part, ${4 + at}, smaller;\nmul.f16x2 ${at}, part, ${8 + at};" for at in range(4)),
)  # fmt: skip
READ_REGISTERS = tl.constexpr("=&r,=&r,=&r,=&r,l,r")
GAINED_REGISTERS = tl.constexpr("=&r,=&r,=&r,=&r,r,r,r,r,r,r,r,r")


@dataclass(frozen=True)
class Tile:
    """How a product is cut."""

    outputs: int
    """Of a program, of each matrix; a multiple of 4."""
    warps: int
    """Each takes 32 words of inputs in a step."""
    held: int
    """Steps whose weights are read ahead."""


@triton.jit
def _vector(hidden, gain, squares, place, inside, normed: tl.constexpr):
    """A lane's eight numbers from each place on as four pairs, times the gain if `normed`, and the squares so far."""
    inside = inside.to(tl.int32)
    # Not pure: a load that the compiler moves before the wait for the kernel before this one reads nothing.
    numbers = tl.inline_asm_elementwise(
        READ, READ_REGISTERS, [(hidden + place).to(tl.int64), inside], dtype=(tl.int32,) * 4, is_pure=False, pack=1
    )
    if normed:
        squares += tl.inline_asm_elementwise(
            SQUARES, "=&f,r,r,r,r", [numbers[0], numbers[1], numbers[2], numbers[3]], dtype=tl.float32, is_pure=True,
            pack=1,
        )  # fmt: skip
        gains = tl.inline_asm_elementwise(
            READ, READ_REGISTERS, [(gain + place).to(tl.int64), inside], dtype=(tl.int32,) * 4, is_pure=False, pack=1
        )
        numbers = tl.inline_asm_elementwise(
            GAINED, GAINED_REGISTERS,
            [numbers[0], numbers[1], numbers[2], numbers[3], gains[0], gains[1], gains[2], gains[3]],
            dtype=(tl.int32,) * 4, is_pure=True, pack=1,
        )  # fmt: skip
    return numbers, squares


@triton.jit
def _weights(
    words, scales, step: tl.constexpr, column, outputs, count, in_group: tl.constexpr, lanes: tl.constexpr,
    pairs: tl.constexpr,
):  # fmt: skip
    """Words and scales of a step, [lanes, pairs, 2]. column: [pairs / 2, 4]."""
    word = step * lanes + tl.arange(0, lanes)
    inside = (word < count)[:, None, None] & (column < outputs)[None, :, :]
    numbers = tl.load(words + word[:, None, None] * outputs + column[None, :, :], mask=inside, other=0)
    place = (word // in_group)[:, None, None] * outputs + column[None, :, :]
    scale = tl.load(scales + place, mask=inside, other=0.0)
    return tl.reshape(numbers, [lanes, pairs, 2]), tl.reshape(scale, [lanes, pairs, 2])


@triton.jit
def _added(weights, vector, start, first_total, second_total):
    """The totals of the first and of the second output of each pair, [lanes, pairs], with a step's products."""
    first, second = tl.split(weights[0])
    first_scale, second_scale = tl.split(weights[1])
    dot, second_dot = tl.inline_asm_elementwise(
        DOTS, "=&f,=&f,r,r,r,r,r,r,f,f",
        [first, second, vector[0], vector[1], vector[2], vector[3], start[0], start[1]],
        dtype=(tl.float32, tl.float32), is_pure=True, pack=1,
    )  # fmt: skip
    return first_total + dot * first_scale.to(tl.float32), second_total + second_dot * second_scale.to(tl.float32)


@triton.jit
def _summed(first, second, own: tl.constexpr):
    """Sums over all lanes, [own], in the outputs' order."""
    first = tl.inline_asm_elementwise(DIAGONAL, "=f,f", [first], dtype=tl.float32, is_pure=True, pack=1)
    second = tl.inline_asm_elementwise(DIAGONAL, "=f,f", [second], dtype=tl.float32, is_pure=True, pack=1)
    return tl.reshape(tl.sum(tl.join(first, second), 0), [own])


@triton.jit
def gptq_on_tensor_cores_kernel(
    hidden, words, scales, words1, scales1, words2, scales2, gain, residual, output,
    outputs, outputs1, outputs2, epsilon,
    inputs: tl.constexpr, in_group: tl.constexpr, own: tl.constexpr, lanes: tl.constexpr, held: tl.constexpr,
    several: tl.constexpr, swiglu: tl.constexpr, normed: tl.constexpr, added: tl.constexpr, early: tl.constexpr,
):  # fmt: skip
    """A program takes `own` outputs and all inputs. The rest as of `gemv_gptq_kernel`."""
    if early:
        tl.extra.cuda.gdc_launch_dependents()
    count: tl.constexpr = inputs // 8
    steps: tl.constexpr = (count + lanes - 1) // lanes
    pairs: tl.constexpr = own // 2
    first = tl.program_id(0) * own
    start_of_all = first
    if several:
        if first >= outputs + outputs1:
            words, scales, first, outputs = words2, scales2, first - outputs - outputs1, outputs2
        elif first >= outputs:
            words, scales, first, outputs = words1, scales1, first - outputs, outputs1
    column = first + tl.arange(0, own // 4)[:, None] * 4 + tl.arange(0, 4)[None, :]
    tiles = ()
    up_tiles = ()
    for step in tl.static_range(held):
        tile = _weights(words, scales, step, column, outputs, count, in_group, lanes, pairs)
        tiles = tiles + (tile,)  # noqa: RUF005
        if swiglu:
            tile = _weights(words1, scales1, step, column, outputs, count, in_group, lanes, pairs)
            up_tiles = up_tiles + (tile,)  # noqa: RUF005
    if early:
        tl.extra.cuda.gdc_wait()
    total, total1 = tl.zeros([lanes, pairs], tl.float32), tl.zeros([lanes, pairs], tl.float32)
    up, up1 = tl.zeros([lanes, pairs], tl.float32), tl.zeros([lanes, pairs], tl.float32)
    squares = tl.zeros([lanes, 1], tl.float32)
    for step in tl.static_range(steps):
        if step + held < steps:
            tile = _weights(words, scales, step + held, column, outputs, count, in_group, lanes, pairs)
            tiles = tiles + (tile,)  # noqa: RUF005
            if swiglu:
                tile = _weights(words1, scales1, step + held, column, outputs, count, in_group, lanes, pairs)
                up_tiles = up_tiles + (tile,)  # noqa: RUF005
        place = (step * lanes + tl.arange(0, lanes))[:, None]
        vector, squares = _vector(hidden, gain, squares, place * 8, place < count, normed)
        start = tl.inline_asm_elementwise(
            START, "=&f,=&f,r,r,r,r", [vector[0], vector[1], vector[2], vector[3]], dtype=(tl.float32, tl.float32),
            is_pure=True, pack=1,
        )  # fmt: skip
        total, total1 = _added(tiles[step], vector, start, total, total1)
        if swiglu:
            up, up1 = _added(up_tiles[step], vector, start, up, up1)
    result, factor = _summed(total, total1, own), 1.0
    if normed:
        squares = tl.inline_asm_elementwise(DIAGONAL, "=f,f", [squares], dtype=tl.float32, is_pure=True, pack=1)
        factor = SMALLER * norm_factor(tl.sum(tl.reshape(squares, [lanes]), 0), epsilon, inputs)
        result *= factor
    inside = first + tl.arange(0, own) < outputs
    if swiglu:
        result = gated(result, _summed(up, up1, own) * factor)
    place = start_of_all + tl.arange(0, own)
    if added:
        result += tl.load(residual + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(output + place, result.to(output.dtype.element_ty), mask=inside)


def launch(hidden: Tensor, matrices: Sequence[Matrix], ends: Ends = PLAIN, *, tile: Tile) -> Tensor:
    """As `gemv_gptq.launch`, for a vector in float16 and zero points of 8."""
    first, second, third = [*matrices, matrices[-1], matrices[-1]][:3]
    count = len(first.words[0]) if ends.swiglu else sum(len(matrix.words[0]) for matrix in matrices)
    output = hidden.new_empty(count)
    early = can_start_early(hidden.device)
    with torch.cuda.device_of(output):
        gptq_on_tensor_cores_kernel[(triton.cdiv(count, tile.outputs),)](
            hidden, first.words, first.scales, second.words, second.scales, third.words, third.scales,
            output if ends.gain is None else ends.gain, output if ends.residual is None else ends.residual, output,
            len(first.words[0]), len(second.words[0]), len(third.words[0]), ends.epsilon,
            inputs=len(hidden), in_group=len(first.words) // len(first.scales), own=tile.outputs,
            lanes=32 * tile.warps, held=min(tile.held, triton.cdiv(len(first.words), 32 * tile.warps)),
            several=len(matrices) == 3, swiglu=ends.swiglu, normed=ends.gain is not None,
            added=ends.residual is not None, early=early, num_warps=tile.warps,
            **({"launch_pdl": True} if early else {}),
        )  # fmt: skip
    return output
