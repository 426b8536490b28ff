"""Weights as the libraries pack them, and the order of a product's rows that goes with them."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Order = Literal["by place", "rows last", "as they are"]
"""[rows, in_word, length], see `by_place`; [in_word, length, rows]; [rows, inputs]."""
ONE_TILE = 128
"""Most rows of a single tile of `packed_matmul`."""


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


def order_of(form: str, rows: int) -> Order:
    """The order of the rows that a product is given, by its form and by how many there are.

    For 4 bit some ways want the rows as they are, and those that do not bring them into their order themselves.
    """
    if rows > ONE_TILE:
        return "rows last"
    return "by place" if form == "int8 by row" else "as they are"


def ordered(hidden: Tensor, in_word: int, order: Order) -> Tensor:
    """Rows, [rows, inputs], in an order."""
    return hidden.contiguous() if order == "as they are" else by_place(hidden, in_word, rows_last=order == "rows last")


def by_place(hidden: Tensor, in_word: int, *, rows_last: bool = False) -> Tensor:
    """Rows in the order that `packed_matmul`'s kernel reads: every word's first input, then their second, and so on.

    Args:
        hidden: [rows, inputs].

    Returns:
        [rows, in_word, inputs / in_word], or with `rows_last` [in_word, inputs / in_word, rows].
    """
    places = hidden.view(len(hidden), -1, in_word)
    return (places.permute(2, 1, 0) if rows_last else places.transpose(1, 2)).contiguous()
