"""Ring attention over a library's kernels.

Forward: a rank sends its block of keys and values to the next rank while it computes attention over this block (Liu et
al., "Ring Attention", arXiv 2310.01889). The results of two blocks are merged by their log-sum-exps:

    lse = log(exp(lse_1) + exp(lse_2))        o = exp(lse_1 - lse) o_1 + exp(lse_2 - lse) o_2

The merged output is stored in float32 and rounded once. Backward: keys and values are sent around the ring again,
followed by their gradients, to which each rank adds the contribution of its own queries. The gradients of a single
block are sent in the inputs' type, as the kernel returns them; sums of gradients are sent in float32. The backward
kernel of a block receives the merged output and log-sum-exp: exp(scores - lse) is its part of the full softmax.

Tensors are [batch, heads, length, head_dim]. The log-sum-exp is [batch, heads, length], float32, of the natural
logarithm. The kernels handle shared key and value heads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarker.workloads.context_parallel.exchange import Pending, Plan, send
from benchmarker.workloads.context_parallel.spec import KernelName
from benchmarker.workloads.context_parallel.zigzag import RingStep, Rows, steps_of
from benchmarker.workloads.operation.operation_call import Operation

aten = torch.ops.aten
Triple = tuple[Tensor, Tensor, Tensor]  # Queries, keys and values, or their gradients.


class Block(NamedTuple):
    """Attention of some queries over one block of keys, or merged over several blocks."""

    output: Tensor
    lse: Tensor
    rest: tuple[Any, ...]  # Further arguments of the backward pass: the (unused) random state of dropout.


class CpuFlash:
    """Attention kernel for one block. `is_causal`: the block is on the diagonal, with as many queries as keys.

    `backward` computes the block's share of the gradients from the gradient of the merged output.
    """

    def forward(self, inputs: Triple, *, is_causal: bool) -> Block:
        output, lse = aten._scaled_dot_product_flash_attention_for_cpu(*inputs, 0.0, is_causal)
        return Block(output, lse, ())

    def backward(self, gradient: Tensor, inputs: Triple, merged: Block, *, is_causal: bool) -> Triple:
        backward: Callable[..., Triple] = aten._scaled_dot_product_flash_attention_for_cpu_backward
        return backward(gradient, *inputs, merged.output, merged.lse, 0.0, is_causal)


class Flash(CpuFlash):
    """torch's FlashAttention 2; on AMD, AOTriton's kernel."""

    def forward(self, inputs: Triple, *, is_causal: bool) -> Block:
        output, lse, *_, seed, offset, _ = aten._scaled_dot_product_flash_attention(*inputs, 0.0, is_causal, False)
        return Block(output, lse, (seed, offset))

    def backward(self, gradient: Tensor, inputs: Triple, merged: Block, *, is_causal: bool) -> Triple:
        tensors = gradient, *inputs, merged.output, merged.lse
        # The two None stand for cumulative lengths, which only packed sequences have.
        lengths = None, None, inputs[0].shape[2], inputs[1].shape[2]
        backward: Callable[..., Triple] = aten._scaled_dot_product_flash_attention_backward
        return backward(*tensors, *lengths, 0.0, is_causal, *merged.rest)


class Cudnn(CpuFlash):
    def forward(self, inputs: Triple, *, is_causal: bool) -> Block:
        forward = aten._scaled_dot_product_cudnn_attention
        output, lse, _, _, _, _, seed, offset, _ = forward(*inputs, None, True, 0.0, is_causal, False)
        # cuDNN returns the log-sum-exp with an additional last dimension of 1.
        return Block(output, lse.squeeze(-1) if lse.dim() == output.dim() else lse, (seed, offset))

    def backward(self, gradient: Tensor, inputs: Triple, merged: Block, *, is_causal: bool) -> Triple:
        tensors = gradient, *inputs, merged.output, merged.lse.unsqueeze(-1)
        # The three None stand for a bias, and for cumulative lengths, which only packed sequences have.
        lengths = None, None, None, inputs[0].shape[2], inputs[1].shape[2]
        backward: Callable[..., Triple] = aten._scaled_dot_product_cudnn_attention_backward
        return backward(*tensors, *merged.rest, *lengths, 0.0, is_causal)


def rows_of(tensor: Tensor, rows: Rows) -> Tensor:
    """Return a view of all rows (dimension 2), or of their first half ("early") or second half ("late")."""
    half = tensor.shape[2] // 2
    if rows == "early":
        return tensor[:, :, :half]
    return tensor[:, :, half:] if rows == "late" else tensor


def merge(merged: Block, block: Block, rows: Rows) -> Block:
    """Merge a block for `rows` of the queries into `merged`; return the result. May overwrite tensors of `merged`."""
    total = merged._replace(output=merged.output.float())
    output, lse = rows_of(total.output, rows), rows_of(total.lse, rows)
    total_lse = torch.logaddexp(lse, block.lse)
    old_share, new_share = ((part - total_lse).exp().unsqueeze(-1) for part in (lse, block.lse))
    # In place: at 64k positions the output has half a gigabyte, and each pass over it costs time.
    output.mul_(old_share).addcmul_(block.output, new_share.to(output.dtype))
    lse.copy_(total_lse)
    return total


def add_rows(total: Tensor, gradient: Tensor, rows: Rows = "all") -> Tensor:
    """Add a gradient to `rows` of `total`, and return the sum in float32. Overwrites `total` if it is float32."""
    total = total.float()
    rows_of(total, rows).add_(gradient)
    return total


class Ring(NamedTuple):
    kernel: CpuFlash
    steps: tuple[RingStep, ...]
    send: Callable[..., Pending]  # Function that starts sending tensors to the next rank (see `exchange.send`).

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Block:
        """Return the attention of this rank's queries, merged over all blocks of keys."""
        merged: Block | None = None
        for number, step in enumerate(self.steps):
            pending = self._pass_on(number, key, value)
            if not step.is_hidden:
                inputs = rows_of(query, step.queries), rows_of(key, step.keys), rows_of(value, step.keys)
                block = self.kernel.forward(inputs, is_causal=step.is_causal)
                if merged is None:
                    merged = block._replace(lse=block.lse.contiguous())
                else:
                    merged = merge(merged, block, step.queries)
            if pending:
                key, value = pending.wait()
        assert merged is not None
        return merged._replace(output=merged.output.to(query.dtype))

    def backward(self, gradient: Tensor, inputs: Triple, merged: Block) -> Triple:
        query, key, value = inputs
        pending = self._pass_on(0, key, value)
        own = self._block(gradient, inputs, merged, self.steps[0])
        assert own is not None
        query_gradient, key_gradient, value_gradient = own
        travelling: Pending | None = None
        for number, step in enumerate(self.steps[1:], start=1):
            assert pending is not None
            key, value = pending.wait()
            pending = self._pass_on(number, key, value)
            if (block := self._block(gradient, (query, key, value), merged, step)) is not None:
                query_gradient = add_rows(query_gradient, block[0], step.queries)
            shares = _kv_gradients(block, step, key, value)
            if travelling:
                shares = tuple(sent.float().add_(share) for sent, share in zip(travelling.wait(), shares, strict=True))
            travelling = self.send(*shares)
        if travelling:
            returned = travelling.wait()
            key_gradient, value_gradient = add_rows(key_gradient, returned[0]), add_rows(value_gradient, returned[1])
        return query_gradient.to(query.dtype), key_gradient.to(key.dtype), value_gradient.to(value.dtype)

    def _pass_on(self, number: int, key: Tensor, value: Tensor) -> Pending | None:
        return self.send(key, value) if number < len(self.steps) - 1 else None

    def _block(self, gradient: Tensor, inputs: Triple, merged: Block, step: RingStep) -> Triple | None:
        if step.is_hidden:
            return None
        gradient, query, output, lse = (
            rows_of(tensor, step.queries) for tensor in (gradient, inputs[0], merged.output, merged.lse)
        )
        of_rows = query, rows_of(inputs[1], step.keys), rows_of(inputs[2], step.keys)
        # The kernels require a contiguous log-sum-exp, and do not check it.
        block = Block(output, lse.contiguous(), merged.rest)
        return self.kernel.backward(gradient, of_rows, block, is_causal=step.is_causal)


def _kv_gradients(block: Triple | None, step: RingStep, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
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
        *inputs, output, lse = ctx.saved_tensors
        return (*ctx.ring.backward(gradients[0], inputs, Block(output, lse, ctx.rest)), None)


def open_ring(plan: Plan) -> Operation:
    on_gpu: dict[KernelName, CpuFlash] = {"flash": Flash(), "cudnn": Cudnn()}
    kernel = CpuFlash() if plan.device == "cpu" else on_gpu[plan.kernel]
    ring = Ring(kernel, steps_of(plan.order, plan.rank, plan.ranks), partial(send, plan))

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output: Tensor = RingFunction.apply(query, key, value, ring)
        return output

    return Operation(attend)
