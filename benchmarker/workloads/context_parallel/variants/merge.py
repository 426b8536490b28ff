"""Merging blocks: each is a whole softmax over its own keys, weighed by its share of all.

    lse = log(exp(lse_1) + exp(lse_2))        o = exp(lse_1 - lse) o_1 + exp(lse_2 - lse) o_2

The sum is kept in float32, and rounded once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarker.workloads.context_parallel.split import Rows


def rows_of(tensor: Tensor, rows: Rows) -> Tensor:
    """A view of all rows, or of those of the early or the late half; rows are the third dimension."""
    half = tensor.shape[2] // 2
    if rows == "early":
        return tensor[:, :, :half]
    return tensor[:, :, half:] if rows == "late" else tensor


class MergedOutput:
    """Outputs of blocks of the same queries, as far as they came. The first block must be of all rows."""

    def __init__(self, output: Tensor, lse: Tensor) -> None:
        self._dtype = output.dtype
        self._output = output
        self._lse = lse.contiguous()

    def add(self, output: Tensor, lse: Tensor, rows: Rows) -> None:
        """Merge another block of some of the rows.

        Args:
            output: [batch, heads, rows, head_dim].
            lse: [batch, heads, rows].
        """
        if self._output.dtype != torch.float32:
            self._output = self._output.float()
        merged, merged_lse = rows_of(self._output, rows), rows_of(self._lse, rows)
        both = torch.logaddexp(merged_lse, lse)
        before, new = ((part - both).exp().unsqueeze(-1) for part in (merged_lse, lse))
        # In place: a sequence of 64k positions has half a gigabyte of them, and each pass over it costs.
        merged.mul_(before).addcmul_(output, new.to(merged.dtype))
        merged_lse.copy_(both)

    def result(self) -> tuple[Tensor, Tensor]:
        """Output in the type of the blocks, and the log-sum-exp of all of them."""
        return self._output.to(self._dtype), self._lse


class SummedGradient:
    """Gradients of blocks added up in float32. The first block must be of all rows."""

    def __init__(self, gradient: Tensor) -> None:
        self._dtype = gradient.dtype
        self._gradient = gradient

    def add(self, gradient: Tensor, rows: Rows = "all") -> None:
        """Add another block of some of the rows."""
        if self._gradient.dtype == torch.bfloat16 or self._gradient.dtype == torch.float16:
            self._gradient = self._gradient.float()
        rows_of(self._gradient, rows).add_(gradient)

    def result(self) -> Tensor:
        """The sum in the type of the blocks."""
        return self._gradient.to(self._dtype)
