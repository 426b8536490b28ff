"""W4A16 linear with weights packed as in GPTQ, and repacking of AWQ's and compressed-tensors' weights to this order.

A word of GPTQ has the weights of eight consecutive inputs of one output, or the zero points of eight consecutive
outputs. compressed-tensors has the same words, transposed. A word of AWQ has the weights of eight outputs in the order
`PLACES`. Repacking changes the order only: codes, scales, zero points and number of bytes are the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from benchmarker.kernels.gemv_gptq import ALL_EIGHT, PACK_FACTOR, unpacked

PLACES = (0, 2, 4, 6, 1, 3, 5, 7)
"""Index, among eight consecutive outputs, of each 4-bit code in an AWQ word, lowest bits first."""


class Int4Linear(nn.Module):
    """Linear whose forward dequantizes to 16 bits and multiplies: the specification of the kernels for GPTQ."""

    bits = 4

    def __init__(self, words: Tensor, scales: Tensor, zeros: Tensor | None, bias: Tensor | None) -> None:
        """Store the tensors without a copy.

        Args:
            words: [in / 8, out], int32.
            scales: [groups, out].
            zeros: Zero points, [groups, out / 8], int32; None if all are 8.
            bias: [out].
        """
        super().__init__()
        self.in_features, self.out_features = PACK_FACTOR * len(words), words.shape[1]
        shape = (len(scales), self.out_features // PACK_FACTOR)
        self.register_buffer("qweight", words)
        self.register_buffer("scales", scales)
        # `expand`: a single word in memory for all zero points of 8.
        self.register_buffer("qzeros", words.new_full((1, 1), ALL_EIGHT).expand(shape) if zeros is None else zeros)
        self.register_buffer("bias", bias)

    def qzero_format(self) -> int:
        """Return 2, gptqmodel's number for the format that stores zero points without subtracting 1."""
        return 2

    def forward(self, hidden: Tensor) -> Tensor:
        module: Any = self
        product = hidden @ unpacked(module.qweight, module.qzeros, module.scales).to(hidden.dtype)
        return product if module.bias is None else product + module.bias.to(product.dtype)


def from_compressed(words: Tensor, scales: Tensor, zeros: Tensor | None, bias: Tensor | None) -> Int4Linear:
    """Return a linear with the weights of a compressed-tensors linear.

    Args:
        words: `weight_packed`, [out, in / 8], int32: eight inputs, lowest bits first, plus 8.
        scales: [out, groups].
        zeros: `weight_zero_point`, [out / 8, groups], int32: eight outputs, lowest bits first, plus 8.
    """
    turned = None if zeros is None else zeros.t().contiguous()
    return Int4Linear(words.t().contiguous(), scales.t().contiguous(), turned, bias)


def repack_awq(linear: Any) -> None:
    """Turn a 4-bit AwqTorchLinear of gptqmodel into an Int4Linear, in place."""
    linear.qweight.data = _words_of(_awq_codes(linear.qweight).t()).t().contiguous()
    linear.qzeros.data = _words_of(_awq_codes(linear.qzeros))
    linear.__class__ = linear.own_class = Int4Linear


def _awq_codes(words: Tensor) -> Tensor:
    """Return the codes of AWQ's words, [rows, outputs], for words [rows, outputs / 8]."""
    shifts = 4 * torch.tensor(PLACES, device=words.device).argsort().to(torch.int32)
    return ((words.unsqueeze(2) >> shifts) & 15).flatten(1)


def _words_of(codes: Tensor) -> Tensor:
    """Return eight consecutive codes of a row per word, lowest bits first."""
    shifts = 4 * torch.arange(PACK_FACTOR, dtype=torch.int32, device=codes.device)
    # The shifted codes of a word have no common bits, so their sum is the word.
    words: Tensor = (codes.unflatten(1, (-1, PACK_FACTOR)) << shifts).sum(-1, dtype=torch.int32)
    return words
