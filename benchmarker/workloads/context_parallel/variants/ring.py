"""Ring attention: keys and values go round the ranks, while each computes its block with those that it has.

Forward, in each step: pass keys and values on, compute the block, merge it by its log-sum-exp (Liu et al., "Ring
Attention", arXiv 2310.01889). Backward: keys and values go round once more, and behind them the gradients of keys and
values, to which each rank adds its part. A rank's own part stays at home until they arrive there. A gradient of one
block alone travels in the type of the inputs, as the kernel gave it; a sum of several in float32.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarker.workloads.attention.variants.base import Attention
from benchmarker.workloads.context_parallel.exchange import Exchange, Pending, exchange_of
from benchmarker.workloads.context_parallel.split import Step, steps_of
from benchmarker.workloads.context_parallel.variants.base import Plan
from benchmarker.workloads.context_parallel.variants.block_kernels import (
    Block,
    BlockKernel,
    Gradients,
    Merged,
    block_kernel,
)
from benchmarker.workloads.context_parallel.variants.merge import MergedOutput, SummedGradient, rows_of


class Ring(NamedTuple):
    """One rank's part of a ring."""

    kernel: BlockKernel
    steps: tuple[Step, ...]
    exchange: Exchange

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Block:
        """All blocks of this rank's queries, merged."""
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
        """Gradients of this rank's queries, keys and values."""
        pending = self._pass_on(0, key, value)
        home = self._block(query, key, value, merged, self.steps[0])
        assert home is not None
        of_query = SummedGradient(home[0])
        travelling: Pending | None = None
        for number, step in enumerate(self.steps[1:], start=1):
            assert pending is not None
            key, value = pending.wait()
            pending = self._pass_on(number, key, value)
            block = self._block(query, key, value, merged, step)
            if block is not None:
                of_query.add(block[0], step.queries)
            parts = _whole(block, step, key, value)
            if travelling:
                parts = tuple(sent.float().add_(part) for sent, part in zip(travelling.wait(), parts, strict=True))
            travelling = self.exchange.send(*parts)
        of_key, of_value = SummedGradient(home[1]), SummedGradient(home[2])
        if travelling:
            from_elsewhere = travelling.wait()
            of_key.add(from_elsewhere[0])
            of_value.add(from_elsewhere[1])
        return of_query.result(), of_key.result(), of_value.result()

    def _pass_on(self, number: int, key: Tensor, value: Tensor) -> Pending | None:
        """Start the exchange that lies beside a step's block; the last step needs none."""
        return self.exchange.send(key, value) if number < len(self.steps) - 1 else None

    def _block(self, query: Tensor, key: Tensor, value: Tensor, merged: Merged, step: Step) -> Gradients | None:
        """One block's gradients; None for a hidden one."""
        if step.is_hidden:
            return None
        output, gradient = (rows_of(part, step.queries) for part in (merged.output, merged.gradient))
        # The kernels read the log-sum-exp as if it were contiguous.
        lse = rows_of(merged.lse, step.queries).contiguous()
        return self.kernel.backward(
            rows_of(query, step.queries),
            rows_of(key, step.keys),
            rows_of(value, step.keys),
            Merged(output, lse, gradient, merged.rest),
            is_causal=step.is_causal,
        )


def _whole(block: Gradients | None, step: Step, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    """A block's gradients of keys and values over all of their rows; zero where it has none."""
    if block is not None and step.keys == "all":
        return block[1], block[2]
    whole = torch.zeros_like(key), torch.zeros_like(value)
    if block is not None:
        for target, part in zip(whole, block[1:], strict=True):
            rows_of(target, step.keys).copy_(part)
    return whole


class RingFunction(torch.autograd.Function):
    """A ring as one operator of autograd."""

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


def open_ring(plan: Plan) -> Attention:
    """A ring in the plan's order."""
    place = plan.place
    ring = Ring(
        block_kernel(plan.kernel, place.device), steps_of(plan.order, place.rank, place.ranks), exchange_of(plan)
    )

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output: Tensor = RingFunction.apply(query, key, value, ring)
        return output

    return Attention(attend)
