"""Order of a sequence's chunks on the ranks, and the steps of a ring for it.

contiguous: rank r holds chunk r of N equal chunks. With a causal mask it computes r + 1 blocks, so that all ranks wait
for the last rank, which computes N: at most the share N / (2N - 1) of the GPUs is used. zigzag: rank r holds the chunks
r and 2N - 1 - r of 2N equal chunks, an early chunk and a late chunk, so that all ranks have equal work (Llama 3, arXiv
2407.21783, section 3.3.2; github.com/zhuzilin/ring-flash-attention).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Order = Literal["contiguous", "zigzag"]
Rows = Literal["all", "early", "late"]  # All positions of a rank, or those of its early or late chunk.


class RingStep(NamedTuple):
    queries: Rows = "all"
    keys: Rows = "all"
    is_causal: bool = False  # True for a block on the diagonal. Other blocks have no mask.
    is_hidden: bool = False  # True if the mask hides the whole block, which is then not computed.


def spans_of(order: Order, rank: int, ranks: int, seq_len: int) -> list[tuple[int, int]]:
    """Return the (first, end) positions of each chunk that a rank holds."""
    chunks = [rank] if order == "contiguous" else [rank, 2 * ranks - 1 - rank]
    length = seq_len // (len(chunks) * ranks)
    return [(chunk * length, (chunk + 1) * length) for chunk in chunks]


def steps_of(order: Order, rank: int, ranks: int) -> tuple[RingStep, ...]:
    """Return the steps of a rank in a ring. Rank r uses the keys and values of rank r - s (mod ranks) in step s."""
    steps = [RingStep(is_causal=True)]
    for source in ((rank - number) % ranks for number in range(1, ranks)):
        if order == "contiguous":
            steps.append(RingStep(is_hidden=source > rank))
        elif source < rank:
            # The source's early chunk precedes both chunks of `rank`, its late chunk follows them.
            steps.append(RingStep(keys="early"))
        else:
            # Both chunks of the source follow the early chunk of `rank` and precede its late chunk.
            steps.append(RingStep(queries="late"))
    return tuple(steps)
