"""Ring attention over a library's kernels.

Forward: keys and values go round while the previous ones are computed (Liu et al., "Ring Attention", arXiv 2310.01889).
Each block is a softmax over its own keys, merged by its share of the total:

    lse = log(exp(lse_1) + exp(lse_2))        o = exp(lse_1 - lse) o_1 + exp(lse_2 - lse) o_2

The sum is kept in float32 and rounded once. Backward: keys and values go round once more, followed by the gradients of
keys and values, to which each rank adds its share. A rank's own share stays until those arrive. The gradient of one
block travels in the inputs' type, as the kernel returned it; a sum of several in float32.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarker.workloads.context_parallel.exchange import Exchange, Pending, exchange_of
from benchmarker.workloads.context_parallel.sequence_split import RingStep, Rows, steps_of
from benchmarker.workloads.context_parallel.variants.block_kernels import (
    Block,
    BlockKernel,
    Gradients,
    Merged,
    block_kernel,
)
from benchmarker.workloads.context_parallel.variants.registry import Plan
from benchmarker.workloads.operation.implementation import Operation


def rows_of(tensor: Tensor, rows: Rows) -> Tensor:
    """Return a view of all rows, or of the early or late half; rows are dimension 2."""
    half = tensor.shape[2] // 2
    if rows == "early":
        return tensor[:, :, :half]
    return tensor[:, :, half:] if rows == "late" else tensor


class MergedOutput:
    """Outputs of blocks of the same queries, merged so far. The first block must cover all rows."""

    def __init__(self, output: Tensor, lse: Tensor) -> None:
        self._dtype = output.dtype
        self._output = output
        self._lse = lse.contiguous()

    def add(self, output: Tensor, lse: Tensor, rows: Rows) -> None:
        """Merge another block of some of the rows.

        Args:
            output: [batch, heads, rows, head_dim].
            lse: Log-sum-exp, [batch, heads, rows].
        """
        if self._output.dtype != torch.float32:
            self._output = self._output.float()
        merged, merged_lse = rows_of(self._output, rows), rows_of(self._lse, rows)
        total = torch.logaddexp(merged_lse, lse)
        old_share, new_share = ((part - total).exp().unsqueeze(-1) for part in (merged_lse, lse))
        # In place: 64k positions are half a gigabyte, and each pass over it costs time.
        merged.mul_(old_share).addcmul_(output, new_share.to(merged.dtype))
        merged_lse.copy_(total)

    def result(self) -> tuple[Tensor, Tensor]:
        return self._output.to(self._dtype), self._lse


class SummedGradient:
    """Gradients of blocks, summed in float32. The first block must cover all rows."""

    def __init__(self, gradient: Tensor) -> None:
        self._dtype = gradient.dtype
        self._gradient = gradient

    def add(self, gradient: Tensor, rows: Rows = "all") -> None:
        """Add another block of some of the rows."""
        if self._gradient.dtype in (torch.bfloat16, torch.float16):
            self._gradient = self._gradient.float()
        rows_of(self._gradient, rows).add_(gradient)

    def result(self) -> Tensor:
        return self._gradient.to(self._dtype)


class Ring(NamedTuple):
    kernel: BlockKernel
    steps: tuple[RingStep, ...]
    exchange: Exchange

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Block:
        """Return the merged blocks of this rank's queries."""
        merged: MergedOutput | None = None
        rest: tuple[Any, ...] = ()
        for number, step in enumerate(self.steps):
            pending = self._pass_on(number, key, value)
            if not step.is_hidden:
                block = self.kernel.forward(
                    rows_of(query, step.queries),
                    rows_of(key, step.keys),
                    rows_of(value, step.keys),
                    is_causal=step.is_causal,
                )
                if merged is None:
                    merged, rest = MergedOutput(block.output, block.lse), block.rest
                else:
                    merged.add(block.output, block.lse, step.queries)
            if pending:
                key, value = pending.wait()
        assert merged is not None
        return Block(*merged.result(), rest)

    def backward(self, query: Tensor, key: Tensor, value: Tensor, merged: Merged) -> Gradients:
        """Return the gradients of this rank's queries, keys and values."""
        pending = self._pass_on(0, key, value)
        own = self._block(query, key, value, merged, self.steps[0])
        assert own is not None
        query_gradient = SummedGradient(own[0])
        travelling: Pending | None = None
        for number, step in enumerate(self.steps[1:], start=1):
            assert pending is not None
            key, value = pending.wait()
            pending = self._pass_on(number, key, value)
            block = self._block(query, key, value, merged, step)
            if block is not None:
                query_gradient.add(block[0], step.queries)
            shares = _kv_gradients(block, step, key, value)
            if travelling:
                shares = tuple(sent.float().add_(share) for sent, share in zip(travelling.wait(), shares, strict=True))
            travelling = self.exchange.send(*shares)
        key_gradient, value_gradient = SummedGradient(own[1]), SummedGradient(own[2])
        if travelling:
            returned = travelling.wait()
            key_gradient.add(returned[0])
            value_gradient.add(returned[1])
        return query_gradient.result(), key_gradient.result(), value_gradient.result()

    def _pass_on(self, number: int, key: Tensor, value: Tensor) -> Pending | None:
        """Start the exchange during a step's block; the last step needs none."""
        return self.exchange.send(key, value) if number < len(self.steps) - 1 else None

    def _block(self, query: Tensor, key: Tensor, value: Tensor, merged: Merged, step: RingStep) -> Gradients | None:
        """Return one block's gradients; None for a hidden block."""
        if step.is_hidden:
            return None
        output, gradient = (rows_of(tensor, step.queries) for tensor in (merged.output, merged.gradient))
        # The kernels read the log-sum-exp as if it were contiguous.
        lse = rows_of(merged.lse, step.queries).contiguous()
        return self.kernel.backward(
            rows_of(query, step.queries),
            rows_of(key, step.keys),
            rows_of(value, step.keys),
            Merged(output, lse, gradient, merged.rest),
            is_causal=step.is_causal,
        )


def _kv_gradients(block: Gradients | None, step: RingStep, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    if block is not None and step.keys == "all":
        return block[1], block[2]
    full = torch.zeros_like(key), torch.zeros_like(value)
    if block is not None:
        for target, gradient in zip(full, block[1:], strict=True):
            rows_of(target, step.keys).copy_(gradient)
    return full


class RingFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, ring: Ring) -> Tensor:
        merged = ring.forward(query, key, value)
        ctx.ring, ctx.rest = ring, merged.rest
        ctx.save_for_backward(query, key, value, merged.output, merged.lse)
        return merged.output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output, lse = ctx.saved_tensors
        merged = Merged(output, lse, gradients[0], ctx.rest)
        return (*ctx.ring.backward(query, key, value, merged), None)


def open_ring(plan: Plan) -> Operation:
    ring = Ring(block_kernel(plan.kernel, plan.device), steps_of(plan.order, plan.rank, plan.ranks), exchange_of(plan))

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output: Tensor = RingFunction.apply(query, key, value, ring)
        return output

    return Operation(attend)
