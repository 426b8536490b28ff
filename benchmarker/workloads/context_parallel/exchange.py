"""Exchange of tensors between ranks, concurrent with computation."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarker.workloads.context_parallel.variants.registry import Plan


@dataclass
class ExchangeCount:
    """Bytes and waits of this process's exchanges since it started."""

    sent_bytes: int = 0
    """Bytes sent to other ranks."""
    waited_s: float = 0.0
    """Seconds in which the host waited for other ranks. On a GPU the stream waits instead."""

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time of the context as a wait."""
        started_ns = time.perf_counter_ns()
        try:
            yield
        finally:
            self.waited_s += (time.perf_counter_ns() - started_ns) / 1e9


COUNT = ExchangeCount()


class Pending(NamedTuple):
    """Tensors in flight from the previous rank."""

    works: Sequence[dist.Work]
    arriving: tuple[Tensor, ...]
    leaving: tuple[Tensor, ...]
    """Kept alive until they are sent."""

    def wait(self) -> tuple[Tensor, ...]:
        """Return the received tensors. On a GPU the stream waits, not the host."""
        with COUNT.waiting():
            for work in self.works:
                work.wait()
        return self.arriving


class Exchange(Protocol):
    """Exchange with the neighbours in a ring."""

    def send(self, *tensors: Tensor) -> Pending:
        """Start sending tensors to the next rank, and receiving equal shapes and types from the previous rank."""


class RingExchange:
    """One send and one receive per tensor, in one group."""

    def __init__(self, rank: int, ranks: int) -> None:
        self._next = (rank + 1) % ranks
        self._previous = (rank - 1) % ranks

    def send(self, *tensors: Tensor) -> Pending:
        leaving = tuple(tensor.contiguous() for tensor in tensors)
        arriving = tuple(torch.empty_like(tensor) for tensor in leaving)
        COUNT.sent_bytes += sum(tensor.nbytes for tensor in leaving)
        operations = []
        for tag, (sent, received) in enumerate(zip(leaving, arriving, strict=True)):
            operations.append(dist.P2POp(dist.isend, sent, self._next, tag=tag))
            operations.append(dist.P2POp(dist.irecv, received, self._previous, tag=tag))
        return Pending(dist.batch_isend_irecv(operations), arriving, leaving)


class NoExchange:
    """Replacement without communication: a rank uses its own tensors in place of the received ones."""

    def send(self, *tensors: Tensor) -> Pending:
        own = tuple(tensor.contiguous() for tensor in tensors)
        return Pending((), own, own)


def exchange_of(plan: Plan) -> Exchange:
    return RingExchange(plan.rank, plan.ranks) if plan.is_exchanging and plan.ranks > 1 else NoExchange()


def all_to_all(tensor: Tensor, plan: Plan) -> Tensor:
    """Send slice i of the first dimension to rank i; return the received slices in rank order.

    Args:
        tensor: [ranks, ...], contiguous.
    """
    if not plan.is_exchanging or plan.ranks == 1:
        return tensor
    received = torch.empty_like(tensor)
    COUNT.sent_bytes += tensor.nbytes * (plan.ranks - 1) // plan.ranks
    with COUNT.waiting():
        dist.all_to_all_single(received, tensor)
    return received
