"""Exchange of tensors between ranks; context parallelism by Ulysses and by torch's context_parallel.

Ulysses (Jacobs et al., "DeepSpeed Ulysses", arXiv 2309.14509): an all-to-all gives every rank the full sequence for a
share of the heads, and a second all-to-all reverses it. Four exchanges forward and four backward do not overlap with
computation.

torch's context_parallel, a prototype in 2.11 and 2.13, replaces scaled_dot_product_attention in its context. It sends
keys and values by one all-gather (the default) or by one all-to-all per step, and their gradients by all-to-all in both
cases. Its order of positions is the zigzag order of `spec`, which is verified with a split tensor of positions.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarker.core.errors import UnsupportedError, WrongResultError
from benchmarker.workloads.attention.attention_variants import Backend, open_sdpa
from benchmarker.workloads.attention.spec import AttentionShape
from benchmarker.workloads.context_parallel.spec import KernelName
from benchmarker.workloads.context_parallel.zigzag import Order, spans_of
from benchmarker.workloads.operation.operation_call import Operation

SDPA_BACKENDS: dict[KernelName, Backend] = {"flash": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION"}


@dataclass(frozen=True)
class Plan:
    shape: AttentionShape  # Shape of the call over all ranks.
    rank: int
    ranks: int
    device: str
    kernel: KernelName
    order: Order
    is_exchanging: bool = True
    """False to time the work without exchange: each rank uses its own tensors, and the result is wrong."""


def open_single(plan: Plan) -> Operation:
    return open_sdpa(SDPA_BACKENDS[plan.kernel])(plan.shape, plan.device)


@dataclass
class ExchangeCount:
    sent_bytes: int = 0
    waited_s: float = 0.0  # Seconds in which the host waited for other ranks. On a GPU the stream waits instead.

    @contextmanager
    def waiting(self) -> Iterator[None]:
        started_ns = time.perf_counter_ns()
        try:
            yield
        finally:
            self.waited_s += (time.perf_counter_ns() - started_ns) / 1e9


COUNT = ExchangeCount()


class Pending(NamedTuple):
    """Exchange in progress: `arriving` from the previous rank, `leaving` to the next rank."""

    works: Sequence[dist.Work]
    arriving: tuple[Tensor, ...]
    leaving: tuple[Tensor, ...]  # Kept alive until they are sent.

    def wait(self) -> tuple[Tensor, ...]:
        """Return the received tensors. On a GPU the stream waits, not the host."""
        with COUNT.waiting():
            for work in self.works:
                work.wait()
        return self.arriving


def send(plan: Plan, *tensors: Tensor) -> Pending:
    """Start sending tensors to the next rank, and receiving equal shapes and types from the previous rank.

    Without exchange a rank receives its own tensors.
    """
    leaving = tuple(tensor.contiguous() for tensor in tensors)
    if not plan.is_exchanging or plan.ranks == 1:
        return Pending((), leaving, leaving)
    arriving = tuple(torch.empty_like(tensor) for tensor in leaving)
    COUNT.sent_bytes += sum(tensor.nbytes for tensor in leaving)
    operations = []
    for tag, (sent, received) in enumerate(zip(leaving, arriving, strict=True)):
        operations.append(dist.P2POp(dist.isend, sent, (plan.rank + 1) % plan.ranks, tag=tag))
        operations.append(dist.P2POp(dist.irecv, received, (plan.rank - 1) % plan.ranks, tag=tag))
    return Pending(dist.batch_isend_irecv(operations), arriving, leaving)


def redistribute(tensor: Tensor, plan: Plan, split: int, joined: int) -> Tensor:
    """Split one dimension over the ranks by an all-to-all, and join the received slices along another.

    From 1 to 2: exchange [batch, heads, length / ranks, head_dim] for [batch, heads / ranks, length, head_dim].
    """
    sent = received = tensor.unflatten(split, (plan.ranks, -1)).movedim(split, 0).contiguous()
    if plan.is_exchanging and plan.ranks > 1:
        received = torch.empty_like(sent)
        COUNT.sent_bytes += sent.nbytes * (plan.ranks - 1) // plan.ranks
        with COUNT.waiting():
            dist.all_to_all_single(received, sent)
    joined_tensor: Tensor = received.movedim(0, joined).flatten(joined, joined + 1)
    return joined_tensor


class Redistribution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, plan: Plan, split: int, joined: int) -> Tensor:
        ctx.reverse = plan, joined, split
        return redistribute(tensor, plan, split, joined)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return redistribute(gradients[0], *ctx.reverse), None, None, None


def open_ulysses(plan: Plan) -> Operation:
    ranks = plan.ranks
    shape = plan.shape._replace(heads=plan.shape.heads // ranks, kv_heads=plan.shape.kv_heads // ranks)
    inner = open_single(replace(plan, shape=shape))

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        tensors = [Redistribution.apply(tensor, plan, 1, 2) for tensor in (query, key, value)]
        output: Tensor = Redistribution.apply(inner.call(*tensors), plan, 2, 1)
        return output

    return Operation(attend, inner.around)


def open_torch(plan: Plan, rotation: Literal["allgather", "alltoall"]) -> Operation:
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh(plan.device.split(":")[0], (plan.ranks,))
    options: dict[str, Any] = {"is_causal": True, "enable_gqa": plan.shape.heads != plan.shape.kv_heads}

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        # The function is looked up at every call, because the context replaces it.
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, **options)

    @contextmanager
    def around() -> Iterator[None]:
        from torch.distributed.tensor.experimental import context_parallel
        from torch.distributed.tensor.experimental._attention import set_rotate_method
        from torch.nn.attention import SDPBackend, sdpa_kernel

        set_rotate_method(rotation)
        positions = torch.arange(plan.shape.seq_len, device=plan.device)
        functional, original = torch.nn.functional, torch.nn.functional.scaled_dot_product_attention
        try:
            with (
                sdpa_kernel(getattr(SDPBackend, SDPA_BACKENDS[plan.kernel])),
                context_parallel(mesh, buffers=[positions], buffer_seq_dims=[0]),
                _rotation(plan),
            ):
                spans = spans_of(plan.order, plan.rank, plan.ranks, plan.shape.seq_len)
                expected = torch.cat([torch.arange(first, end) for first, end in spans])
                if not torch.equal(positions.cpu(), expected):
                    raise WrongResultError(
                        "wrong result: torch's context_parallel gives the ranks other positions than zigzag's"
                    )
                yield
        finally:
            # torch 2.11 does not restore the function after an exception.
            functional.scaled_dot_product_attention = original

    return Operation(attend, around)


@contextmanager
def _rotation(plan: Plan) -> Iterator[None]:
    """If the plan has no exchange, replace torch's rotation of keys and values by the identity. Raises UnsupportedError
    if this version of torch has no such function."""
    if plan.is_exchanging:
        yield
        return
    module: Any
    try:
        from torch.distributed.tensor.experimental._context_parallel import _attention as module
    except ImportError:
        from torch.distributed.tensor.experimental import _attention as module
    if (original := getattr(module, "_create_rotater", None)) is None:
        raise UnsupportedError("this torch names its rotation differently: the exchange cannot be left out")
    module._create_rotater = lambda *_, **__: NoRotation()
    try:
        yield
    finally:
        module._create_rotater = original


class NoRotation:
    def exchange_buffers(self, buffer: Tensor) -> None:
        self._buffer = buffer.contiguous()

    def next_buffer(self) -> Tensor:
        return self._buffer
