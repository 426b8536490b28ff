"""Which positions a rank holds, and which blocks it computes in each step of a ring.

Plain ring: rank r holds the r-th of N equal parts. Under a causal mask it has r + 1 blocks to compute, rank 0 one and
the last rank N, so that the others wait: of N ranks at most N / (2N - 1) is used. Zigzag: the sequence is cut into 2N
chunks, and rank r holds the chunks r and 2N - 1 - r, an early and a late one. Then every rank has the same work
(Llama 3, arXiv 2407.21783, section 3.3.2; github.com/zhuzilin/ring-flash-attention).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Order = Literal["contiguous", "zigzag"]
Rows = Literal["all", "early", "late"]
"""Of a rank's own rows: all of them, or those of its early or late chunk."""


class Step(NamedTuple):
    """One step of a ring on one rank: whose keys are there, and which block of scores is computed."""

    source: int
    """Rank that the keys and values are from."""
    queries: Rows = "all"
    keys: Rows = "all"
    is_causal: bool = False
    """Whether the block lies on the diagonal. Other blocks have no mask."""
    is_hidden: bool = False
    """Whether the mask hides the whole block: nothing is computed."""


def chunks_of(order: Order, rank: int, ranks: int) -> tuple[int, ...]:
    """Numbers of the chunks that a rank holds: of `ranks` chunks, or of twice as many in zigzag order."""
    return (rank,) if order == "contiguous" else (rank, 2 * ranks - 1 - rank)


def spans_of(order: Order, rank: int, ranks: int, seq_len: int) -> list[tuple[int, int]]:
    """The positions that a rank holds, as (first, behind the last) of each chunk."""
    length = seq_len // (ranks if order == "contiguous" else 2 * ranks)
    return [(chunk * length, (chunk + 1) * length) for chunk in chunks_of(order, rank, ranks)]


def steps_of(order: Order, rank: int, ranks: int) -> tuple[Step, ...]:
    """The steps of a ring: keys come from the rank before, so that step s has those of rank r - s."""
    steps = [Step(rank, is_causal=True)]
    for number in range(1, ranks):
        source = (rank - number) % ranks
        if order == "contiguous":
            steps.append(Step(source, is_hidden=source > rank))
        elif source < rank:
            # Its early chunk is before both of ours, its late one behind both.
            steps.append(Step(source, keys="early"))
        else:
            # Both of its chunks are behind our early one and before our late one.
            steps.append(Step(source, queries="late"))
    return tuple(steps)


def most_of_ideal(ranks: int) -> float:
    """Share of N ranks that a plain causal ring can use at most: N / (2N - 1)."""
    return ranks / (2 * ranks - 1)
