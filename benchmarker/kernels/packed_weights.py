"""Weights as the libraries pack them, and the order of a product's rows that goes with them."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from benchmarker.kernels.launch_support import is_aligned

Order = Literal["by place", "by lane", "as they are"]
"""[rows, in_word, length], see `by_place`; [rows, chunks, 4, 16], see `by_lane`; [rows, inputs]."""
ONE_TILE = 128
"""Most rows of `packed_matmul`, which makes them in one tile."""
FEW_ROWS = 32
"""Most rows that are given as `w4a16_gemm` and `packed_matmul` read them, where `prefill_gemm` takes more."""
LANE_CHUNK = 64
"""Inputs of which each of four lanes takes sixteen that lie together."""


@dataclass(frozen=True)
class Packed:
    """A matrix of packed weights, [outputs, inputs]."""

    form: str
    """`int8 by row`: four int8 in a 32-bit word, from the lowest bits up, and a scale for each output.
    `int4 by group`, GPTQ's: eight numbers in a 32-bit word, from the lowest bits up, minus 8, and scales for groups of
    inputs. `int4 by group, zeros`: the same, minus a zero of each group and output.
    `nf4`, `fp4`: four codes in a 16-bit word, of a byte the upper bits first, and scales for blocks of inputs."""
    words: Tensor
    """[outputs, length], where `length` are the words of an output; int4 by group [length, outputs]."""
    scales: Tensor
    """int8 [outputs], int4 [groups, outputs], codes [outputs, groups]; the last in float32."""
    zeros: Tensor | None = None
    """Of int4: [groups, outputs / 8], int32, eight outputs a word. Of codes: their table, [16], float32."""

    @property
    def in_word(self) -> int:
        """Weights of a word."""
        return in_word(self.form)

    @property
    def outputs(self) -> int:
        """Outputs of the matrix."""
        return self.words.shape[1 if is_int4_by_group(self.form) else 0]

    @property
    def length(self) -> int:
        """Words of an output."""
        return self.words.shape[0 if is_int4_by_group(self.form) else 1]

    @property
    def in_group(self) -> int:
        """Words that share a scale."""
        return self.length * self.outputs // self.scales.numel()

    @property
    def is_in_place(self) -> bool:
        """Whether words and scales lie together, and begin at multiples of 16 bytes."""
        return all(part.is_contiguous() and is_aligned(part) for part in (self.words, self.scales))


def packed_of(weights: Tensor, scales: Tensor, zeros: Tensor | None, form: str, outputs: int) -> Packed:
    """Weights as their library keeps them, as packed weights; nothing is copied.

    Args:
        weights: int8 [outputs, inputs], GPTQ [inputs / 8, outputs], bitsandbytes' bytes.
        scales: int8 [outputs, 1], GPTQ [groups, outputs], bitsandbytes [blocks].
        zeros: GPTQ's zeros, [groups, outputs / 8]; bitsandbytes' table, [16].
        form: As `Packed.form`.
        outputs: Of the matrix.
    """
    if form == "int8 by row":
        return Packed(form, weights.view(torch.int32), scales.flatten())
    if is_int4_by_group(form):
        return Packed(form, weights, scales, zeros)
    return Packed(form, weights.view(-1).view(torch.int16).view(outputs, -1), scales.view(outputs, -1), zeros)


def is_int4_by_group(form: str) -> bool:
    """Whether this form is one of GPTQ's, whose words stand output by output next to each other."""
    return form in ("int4 by group", "int4 by group, zeros")


def in_word(form: str) -> int:
    """Weights of a word of this form."""
    return 8 if is_int4_by_group(form) else 4


def order_of(form: str, rows: int, *, has_prompt_kernel: bool) -> Order:
    """The order of the rows that a product is given, by its form and by how many there are.

    It is that of the way that is likeliest the fastest. A way that wants another order changes it itself.

    Args:
        has_prompt_kernel: Whether `prefill_gemm` is one of the ways.
    """
    if rows > FEW_ROWS and has_prompt_kernel:
        return "by lane"
    return "by place" if form == "int8 by row" else "as they are"


def ordered(hidden: Tensor, in_word: int, order: Order) -> Tensor:
    """Rows, [rows, inputs], in an order."""
    if order == "as they are":
        return hidden.contiguous()
    return by_lane(hidden, in_word) if order == "by lane" else by_place(hidden, in_word)


def by_place(hidden: Tensor, in_word: int) -> Tensor:
    """Rows in the order that `packed_matmul`'s kernel reads: every word's first input, then their second, and so on.

    Args:
        hidden: [rows, inputs].

    Returns:
        [rows, in_word, inputs / in_word].
    """
    return hidden.view(hidden.shape[0], -1, in_word).transpose(1, 2).contiguous()


def by_lane(hidden: Tensor, in_word: int) -> Tensor:
    """Rows in the order that `prefill_gemm`'s kernel reads.

    Of 64 inputs, lane t of four has weights 16 t to 16 t + 15, and multiplies four of them at a time. A tensor core
    takes two pairs of them, as numbers 2 t, 2 t + 1 and 2 t + 8, 2 t + 9 of sixteen. A pair is two weights that follow
    one another. Where a word has eight weights, a pair is weights i and i + 4 of a word.

    Args:
        hidden: [rows, inputs].
        in_word: Weights of a word.

    Returns:
        [rows, inputs / 64, 4, 16]: sixteen inputs for each of four products.
    """
    if in_word == 8:
        # Lane, word, number of a pair, product, pair.
        lanes = hidden.view(hidden.shape[0], -1, 4, 2, 2, 2, 2).permute(0, 1, 3, 5, 6, 2, 4)
    else:
        # Lane, product, pair, number of a pair.
        lanes = hidden.view(hidden.shape[0], -1, 4, 4, 2, 2).permute(0, 1, 3, 4, 2, 5)
    return lanes.contiguous().view(hidden.shape[0], -1, 4, 16)


def as_they_are(hidden: Tensor) -> Tensor:
    """Rows by place, or as they are already, which their dimensions tell, as [rows, inputs]."""
    return hidden if hidden.dim() == 2 else hidden.transpose(1, 2).reshape(hidden.shape[0], -1)
