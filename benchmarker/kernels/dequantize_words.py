"""Dequantization of packed words inside a GEMM: int8, GPTQ's 4-bit numbers and bitsandbytes' codes to 16-bit floats.

On NVIDIA, two neighbouring words are unpacked together, so that most instructions produce two weights. The bits of a
number are written to the lowest mantissa bits of a known float (1,024 in float16, 128 in bfloat16), which is then
subtracted without rounding. Other devices and Triton's interpreter use ordinary operations.

Each function unpacks a tile of words, [outputs, words], in the registers from which tensor cores read their operand,
and returns a tuple of tiles: tile i has weight i of each word.
"""

import struct

from benchmarker.kernels.launch_support import tl, triton

CODEBOOKS = {
    "nf4": (
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
        -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
        0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
    ),
    "fp4": tuple(
        sign * size / 12 for sign in (1, -1) for size in (0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0)
    ),
}  # fmt: skip
"""Value of each bitsandbytes code before its scale (`QuantState.code`)."""


def _ptx(registers: str, lines: list[str]) -> str:
    return "{\n.reg .b32 " + registers + ";\n" + "\n".join(lines) + "\n}"


def _ptx_int8(*, bf16: bool) -> str:
    """Return PTX that unpacks two words ($4, $5) with flipped sign bits: a byte gives 1,024 + 128 + number in float16.

    bfloat16 has seven mantissa bits after 128, so the eighth bit is subtracted: 128 + lower seven bits - (128 or 256).
    """
    lines = ["mov.b32 start, 0x43004300;" if bf16 else "mov.b32 start, 0x64806480;"]
    for at in range(4):
        lines.append(f"prmt.b32 both, $4, $5, 0x0{4 + at}0{at};")
        if bf16:
            lines += [
                "lop3.b32 sign, both, 0x00800080, start, 0xEA;",
                "lop3.b32 both, both, 0x007F007F, start, 0xEA;",
                f"sub.bf16x2 ${at}, both, sign;",
            ]
        else:
            lines += ["lop3.b32 both, both, 0x00FF00FF, start, 0x6A;", f"sub.f16x2 ${at}, both, start;"]
    return _ptx("start, both, sign", lines)


def _ptx_gptq(*, bf16: bool) -> str:
    kind, start, less = ("bf16x2", "0x43004300", "0x43084308") if bf16 else ("f16x2", "0x64006400", "0x64086408")
    lines = [
        f"mov.b32 start, {start};", f"mov.b32 less, {less};",
        "prmt.b32 low, $8, $9, 0x5410;", "prmt.b32 high, $8, $9, 0x7632;",
    ]  # fmt: skip
    for at in range(8):
        lines += [
            f"shr.u32 part, {'low' if at < 4 else 'high'}, {at % 4 * 4};",
            "lop3.b32 part, part, 0x000F000F, start, 0xEA;",
            f"sub.{kind} ${at}, part, less;",
        ]
    return _ptx("start, less, low, high, part", lines)


def _ptx_codes(table: str, *, bf16: bool) -> str:
    """Return PTX that looks codes up by warp shuffles: each lane holds two copies of one table entry in 32 bits.

    A shuffle uses only the lowest four bits of a code. $4 to $7 are four pairs of 16-bit words, $0 to $15 their codes.
    """
    numbers = [_bits(number, bf16=bf16) for number in CODEBOOKS[table]]
    packed = [numbers[at] | numbers[at + 1] << 16 for at in range(0, 16, 2)]
    lines = ["mov.u32 lane, %laneid;", "and.b32 place, lane, 1;", "setp.eq.b32 odd, place, 1;"]
    # Select this lane's table entry from eight registers: bits 1 to 3 of the lane select a register, bit 0 its half.
    for bit, count in ((1, 4), (2, 2), (3, 1)):
        lines += [f"and.b32 place, lane, {1 << bit};", "setp.ne.b32 upper, place, 0;"]
        for at in range(count):
            sources = [f"number{2 * at + side}" if bit > 1 else f"0x{packed[2 * at + side]:08x}" for side in (1, 0)]
            lines.append(f"selp.b32 number{at}, {sources[0]}, {sources[1]}, upper;")
    lines += ["@odd prmt.b32 number0, number0, 0, 0x3232;", "@!odd prmt.b32 number0, number0, 0, 0x1010;"]
    for word in range(PAIRS):
        for at, shift in enumerate((4, 0, 12, 8)):
            for half in (0, 1):
                lines += [
                    f"shr.u32 code, ${4 * PAIRS + word}, {shift + 16 * half};",
                    f"shfl.sync.idx.b32 part{half}, number0, code, 0x100f, 0xffffffff;",
                ]
            lines.append(f"prmt.b32 ${at * PAIRS + word}, part0, part1, 0x5410;")
    registers = "lane, place, code, part0, part1, number0, number1, number2, number3;\n.reg .pred odd, upper"
    return _ptx(registers, lines)


def _bits(number: float, *, bf16: bool) -> int:
    if not bf16:
        return int.from_bytes(struct.pack("<e", number), "little")
    bits = int.from_bytes(struct.pack("<f", number), "little")
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


PAIRS = 4  # Pairs of 16-bit words per PTX block.
INT8_F16, INT8_BF16 = tl.constexpr(_ptx_int8(bf16=False)), tl.constexpr(_ptx_int8(bf16=True))
GPTQ_F16, GPTQ_BF16 = tl.constexpr(_ptx_gptq(bf16=False)), tl.constexpr(_ptx_gptq(bf16=True))
NF4_F16, NF4_BF16 = tl.constexpr(_ptx_codes("nf4", bf16=False)), tl.constexpr(_ptx_codes("nf4", bf16=True))
FP4_F16, FP4_BF16 = tl.constexpr(_ptx_codes("fp4", bf16=False)), tl.constexpr(_ptx_codes("fp4", bf16=True))
INT8_REGISTERS = tl.constexpr("=&r," * 4 + "r,r")
GPTQ_REGISTERS = tl.constexpr("=&r," * 8 + "r,r")
CODE_REGISTERS = tl.constexpr("=&r," * 16 + "r,r,r,r")


@triton.jit  # type: ignore[untyped-decorator]
def unpack_int8(words, kind: tl.constexpr, by_ptx: tl.constexpr):  # type: ignore[no-untyped-def]
    """Unpack the four int8 numbers of each 32-bit word, lowest byte first."""
    if not by_ptx:
        weights = (
            (words << 24 >> 24).to(tl.float32).to(kind), (words << 16 >> 24).to(tl.float32).to(kind),
            (words << 8 >> 24).to(tl.float32).to(kind), (words >> 24).to(tl.float32).to(kind),
        )  # fmt: skip
    elif kind == tl.bfloat16:
        weights = tl.inline_asm_elementwise(
            INT8_BF16, INT8_REGISTERS, [words], dtype=(tl.bfloat16,) * 4, is_pure=True, pack=2
        )
    else:
        weights = tl.inline_asm_elementwise(
            INT8_F16, INT8_REGISTERS, [words], dtype=(tl.float16,) * 4, is_pure=True, pack=2
        )
    return weights


@triton.jit  # type: ignore[untyped-decorator]
def unpack_gptq(words, kind: tl.constexpr, by_ptx: tl.constexpr):  # type: ignore[no-untyped-def]
    """Unpack the eight 4-bit numbers of each 32-bit word, lowest bits first, and subtract 8."""
    if not by_ptx:
        weights = (
            ((words >> 0 & 15) - 8).to(tl.float32).to(kind), ((words >> 4 & 15) - 8).to(tl.float32).to(kind),
            ((words >> 8 & 15) - 8).to(tl.float32).to(kind), ((words >> 12 & 15) - 8).to(tl.float32).to(kind),
            ((words >> 16 & 15) - 8).to(tl.float32).to(kind), ((words >> 20 & 15) - 8).to(tl.float32).to(kind),
            ((words >> 24 & 15) - 8).to(tl.float32).to(kind), ((words >> 28 & 15) - 8).to(tl.float32).to(kind),
        )  # fmt: skip
    elif kind == tl.bfloat16:
        weights = tl.inline_asm_elementwise(
            GPTQ_BF16, GPTQ_REGISTERS, [words], dtype=(tl.bfloat16,) * 8, is_pure=True, pack=2
        )
    else:
        weights = tl.inline_asm_elementwise(
            GPTQ_F16, GPTQ_REGISTERS, [words], dtype=(tl.float16,) * 8, is_pure=True, pack=2
        )
    return weights


@triton.jit  # type: ignore[untyped-decorator]
def unpack_codes(  # type: ignore[no-untyped-def]
    words, numbers, fp4: tl.constexpr, kind: tl.constexpr, by_ptx: tl.constexpr
):  # fmt: skip
    """Return the table values (`numbers`) of the four codes of each 16-bit word, upper bits of a byte first."""
    if not by_ptx:
        weights = (
            tl.load(numbers + (words >> 4 & 15)).to(kind), tl.load(numbers + (words & 15)).to(kind),
            tl.load(numbers + (words >> 12 & 15)).to(kind), tl.load(numbers + (words >> 8 & 15)).to(kind),
        )  # fmt: skip
    elif kind == tl.bfloat16:
        weights = tl.inline_asm_elementwise(
            FP4_BF16 if fp4 else NF4_BF16, CODE_REGISTERS, [words], dtype=(tl.bfloat16,) * 4, is_pure=True, pack=8
        )
    else:
        weights = tl.inline_asm_elementwise(
            FP4_F16 if fp4 else NF4_F16, CODE_REGISTERS, [words], dtype=(tl.float16,) * 4, is_pure=True, pack=8
        )
    return weights
