"""Positions that each rank holds, and the blocks that it computes in each step of a ring. Imports no torch.

contiguous: rank r holds the r-th of N equal chunks. Under a causal mask it computes r + 1 blocks, one on rank 0 and N
on the last rank, so that the other ranks wait: at most N / (2N - 1) of N ranks is used. zigzag: the sequence is cut
into 2N chunks, and rank r holds the chunks r and 2N - 1 - r, an early and a late one, so that all ranks have equal
work (Llama 3, arXiv 2407.21783, section 3.3.2; github.com/zhuzilin/ring-flash-attention).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Order = Literal["contiguous", "zigzag"]
Rows = Literal["all", "early", "late"]
"""Rows of a rank: all, or those of its early or late chunk."""


class RingStep(NamedTuple):
    """One step of a ring on one rank: the source of its keys, and the block of scores to compute."""

    source: int
    """Rank that the keys and values come from."""
    queries: Rows = "all"
    keys: Rows = "all"
    is_causal: bool = False
    """True for a block on the diagonal. Other blocks have no mask."""
    is_hidden: bool = False
    """True if the mask hides the whole block, which is then not computed."""


def spans_of(order: Order, rank: int, ranks: int, seq_len: int) -> list[tuple[int, int]]:
    """Return the (first, end) positions of each chunk that a rank holds."""
    chunks = [rank] if order == "contiguous" else [rank, 2 * ranks - 1 - rank]
    length = seq_len // (len(chunks) * ranks)
    return [(chunk * length, (chunk + 1) * length) for chunk in chunks]


def steps_of(order: Order, rank: int, ranks: int) -> tuple[RingStep, ...]:
    """Return the steps of a ring. Keys come from the previous rank, so step s has the keys of rank r - s."""
    steps = [RingStep(rank, is_causal=True)]
    for number in range(1, ranks):
        source = (rank - number) % ranks
        if order == "contiguous":
            steps.append(RingStep(source, is_hidden=source > rank))
        elif source < rank:
            # The source's early chunk precedes both of ours, its late chunk follows both.
            steps.append(RingStep(source, keys="early"))
        else:
            # Both chunks of the source follow our early chunk and precede our late chunk.
            steps.append(RingStep(source, queries="late"))
    return tuple(steps)


def most_of_ideal(ranks: int) -> float:
    """Return the largest share of N ranks that a contiguous causal ring can use: N / (2N - 1)."""
    return ranks / (2 * ranks - 1)
