"""Passing tensors on from rank to rank, while something else is computed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarker.workloads.context_parallel.variants.base import Plan


@dataclass
class Exchanged:
    """What this process exchanged since it began, by its own count and clock."""

    sent_bytes: int = 0
    """Handed over for other ranks."""
    waited_s: float = 0.0
    """In which the host waited for what others send. On a GPU the stream waits in its place."""

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around a wait."""
        started_ns = time.perf_counter_ns()
        try:
            yield
        finally:
            self.waited_s += (time.perf_counter_ns() - started_ns) / 1e9


EXCHANGED = Exchanged()


class Pending(NamedTuple):
    """Tensors that are under way from the rank before."""

    works: Sequence[dist.Work]
    arriving: tuple[Tensor, ...]
    leaving: tuple[Tensor, ...]
    """Kept until they are away."""

    def wait(self) -> tuple[Tensor, ...]:
        """What came. On a GPU the stream waits, not the host."""
        with EXCHANGED.waiting():
            for work in self.works:
                work.wait()
        return self.arriving


class Exchange(Protocol):
    """Passes tensors on to the next rank."""

    def send(self, *tensors: Tensor) -> Pending:
        """Start to send them, and to receive as many of the same shapes and types from the rank before."""


class ToNext:
    """One send and one receive for each tensor, in one group."""

    def __init__(self, rank: int, ranks: int) -> None:
        self._next = (rank + 1) % ranks
        self._before = (rank - 1) % ranks

    def send(self, *tensors: Tensor) -> Pending:
        leaving = tuple(tensor.contiguous() for tensor in tensors)
        arriving = tuple(torch.empty_like(tensor) for tensor in leaving)
        EXCHANGED.sent_bytes += sum(tensor.nbytes for tensor in leaving)
        operations = []
        for tag, (out, into) in enumerate(zip(leaving, arriving, strict=True)):
            operations.append(dist.P2POp(dist.isend, out, self._next, tag=tag))
            operations.append(dist.P2POp(dist.irecv, into, self._before, tag=tag))
        return Pending(dist.batch_isend_irecv(operations), arriving, leaving)


class ToNobody:
    """The same work without exchange: what would be sent is taken for what would come."""

    def send(self, *tensors: Tensor) -> Pending:
        kept = tuple(tensor.contiguous() for tensor in tensors)
        return Pending((), kept, kept)


def exchange_of(plan: Plan) -> Exchange:
    """The exchange of a plan; none for a rank by itself."""
    if plan.is_exchanging and plan.place.ranks > 1:
        return ToNext(plan.place.rank, plan.place.ranks)
    return ToNobody()


def all_to_all(tensor: Tensor, plan: Plan) -> Tensor:
    """Part i of the first dimension goes to rank i; what came from rank i is part i.

    Args:
        tensor: [ranks, ...], contiguous.
    """
    if not plan.is_exchanging or plan.place.ranks == 1:
        return tensor
    received = torch.empty_like(tensor)
    EXCHANGED.sent_bytes += tensor.nbytes * (plan.place.ranks - 1) // plan.place.ranks
    with EXCHANGED.waiting():
        dist.all_to_all_single(received, tensor)
    return received
