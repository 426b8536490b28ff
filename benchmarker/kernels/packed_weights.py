"""Weights as the libraries pack them, and the order in which each kernel reads the numbers of activation rows."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from benchmarker.kernels.launch_support import is_aligned

Order = Literal["by word position", "by lane", "natural"]
"""Order of inputs in activation rows. Shapes: [rows, pack_factor, length] (`by_word_position`), [rows, chunks, 4, 16]
(`by_lane`), [rows, inputs]."""
ONE_TILE = 128  # Maximum number of rows of `quantized_gemm_triton`, which computes all rows in one tile.
FEW_ROWS = 32  # Maximum number of rows that are not ordered `by_lane` if `prefill_gemm` supports the weights.
INT4_ZEROS = "int4 by group, zeros"  # `Packed.form` of GPTQ's words with zero points other than 8, and of AWQ's.
LANE_CHUNK = 64  # Inputs per group of four lanes; each lane has sixteen consecutive inputs.


@dataclass(frozen=True)
class Packed:
    form: str
    """`int8 by row`: four int8 per 32-bit word, lowest bits first, and a scale per output. `int4 by group` (GPTQ):
    eight numbers per 32-bit word, lowest bits first, with zero points of 8 and a scale per group. `int4 by group,
    zeros`: the same with a zero point per group and output. `nf4`, `fp4`: four codes per 16-bit word, upper bits of a
    byte first, and a scale per block."""
    words: Tensor  # [outputs, length], or [length, outputs] for int4; `length` is the number of words per output.
    scales: Tensor  # int8 [outputs], int4 [groups, outputs], codes [outputs, groups] in float32.
    zeros: Tensor | None = None  # int4: zero points, [groups, outputs / 8], int32. Codes: code table, [16], float32.

    @property
    def pack_factor(self) -> int:
        """Weights per word."""
        return pack_factor(self.form)

    @property
    def outputs(self) -> int:
        return self.words.shape[1 if is_int4_by_group(self.form) else 0]

    @property
    def length(self) -> int:
        return self.words.shape[0 if is_int4_by_group(self.form) else 1]

    @property
    def group_words(self) -> int:
        """Words per scale."""
        return self.length * self.outputs // self.scales.numel()

    @property
    def is_aligned(self) -> bool:
        """True if words, scales and zero points are contiguous and aligned to 16 bytes."""
        parts = (self.words, self.scales, self.zeros if self.form == INT4_ZEROS else None)
        return all(part is None or (part.is_contiguous() and is_aligned(part)) for part in parts)


def packed_of(weights: Tensor, scales: Tensor, zeros: Tensor | None, form: str, outputs: int) -> Packed:
    """Return a library's weights as packed weights, without a copy.

    Args:
        weights: int8 [outputs, inputs]; GPTQ [inputs / 8, outputs]; bytes of bitsandbytes.
        scales: int8 [outputs, 1]; GPTQ [groups, outputs]; bitsandbytes [blocks].
        zeros: GPTQ's zero points, [groups, outputs / 8]; bitsandbytes' code table, [16].
    """
    if form == "int8 by row":
        return Packed(form, weights.view(torch.int32), scales.flatten())
    if is_int4_by_group(form):
        return Packed(form, weights, scales, zeros)
    return Packed(form, weights.view(-1).view(torch.int16).view(outputs, -1), scales.view(outputs, -1), zeros)


def is_int4_by_group(form: str) -> bool:
    return form in ("int4 by group", INT4_ZEROS)


def pack_factor(form: str) -> int:
    return 8 if is_int4_by_group(form) else 4


def order_of(form: str, rows: int, *, has_prefill_gemm: bool) -> Order:
    """Return the row order of the kernel that is probably the fastest. Other kernels reorder the rows by themselves."""
    if rows > FEW_ROWS and has_prefill_gemm:
        return "by lane"
    return "by word position" if form == "int8 by row" else "natural"


def reorder(hidden: Tensor, pack_factor: int, order: Order) -> Tensor:
    if order == "natural":
        return hidden.contiguous()
    return by_lane(hidden, pack_factor) if order == "by lane" else by_word_position(hidden, pack_factor)


def by_word_position(hidden: Tensor, pack_factor: int) -> Tensor:
    """Reorder rows to [rows, pack_factor, inputs / pack_factor]: first inputs of all words, then second, and so on."""
    return hidden.view(hidden.shape[0], -1, pack_factor).transpose(1, 2).contiguous()


def by_lane(hidden: Tensor, pack_factor: int) -> Tensor:
    """Reorder rows, [rows, inputs], to the order of `prefill_gemm`, [rows, inputs / 64, 4, 16].

    Of 64 inputs, lane t of four has the weights 16 t to 16 t + 15, and uses four of them per tensor core product as two
    pairs: terms 2 t, 2 t + 1 and terms 2 t + 8, 2 t + 9 of sixteen. A pair is two consecutive weights, or the weights i
    and i + 4 of a word with eight weights.
    """
    if pack_factor == 8:
        # Dimensions before permute: rows, chunk, lane, word, number in a pair, product, pair.
        lanes = hidden.view(hidden.shape[0], -1, 4, 2, 2, 2, 2).permute(0, 1, 3, 5, 6, 2, 4)
    else:
        # Dimensions before permute: rows, chunk, lane, product, pair, number in a pair.
        lanes = hidden.view(hidden.shape[0], -1, 4, 4, 2, 2).permute(0, 1, 3, 4, 2, 5)
    return lanes.contiguous().view(hidden.shape[0], -1, 4, 16)


def in_natural_order(hidden: Tensor) -> Tensor:
    """Return rows as [rows, inputs] in natural order; rows with three dimensions are ordered `by_word_position`."""
    return hidden if hidden.dim() == 2 else hidden.transpose(1, 2).reshape(hidden.shape[0], -1)
