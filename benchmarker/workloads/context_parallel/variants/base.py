"""What a way to split is made ready for, on one of several processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from benchmarker.workloads.attention.spec import Shape
from benchmarker.workloads.context_parallel.spec import KernelName
from benchmarker.workloads.context_parallel.split import Order


class RankPlace(NamedTuple):
    """Which rank this process is, of how many, and its device."""

    rank: int
    ranks: int
    device: str
    """As torch names it: `cuda:1`, `cpu`."""


def devices_of(first: str, ranks: int) -> tuple[str, ...]:
    """The device of each rank, where rank 0 has `first`: the GPUs in their order, or the processor for all."""
    kind, _, index = first.partition(":")
    return tuple(kind if kind == "cpu" else f"{kind}:{int(index or 0) + rank}" for rank in range(ranks))


@dataclass(frozen=True)
class Plan:
    """One rank's share of one call."""

    shape: Shape
    """Of the whole call, over all ranks."""
    place: RankPlace
    kernel: KernelName
    order: Order
    is_exchanging: bool = True
    """False for the same work without exchange: each rank uses what it has itself. Its result is wrong."""
