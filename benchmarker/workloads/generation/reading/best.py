"""The best speed-up that a row could have, and what it reached of it.

Two variants at their floors differ by the bytes that they read: that ratio is the best speed-up there can be. What was
reached of it is only asked within one runtime, because else the runtimes are compared with each other as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchmarker.workloads.generation.reading.rows import GenerationRow
from benchmarker.workloads.generation.roofline import floor_s


def with_best(rows: Sequence[GenerationRow], baseline: str | None) -> tuple[GenerationRow, ...]:
    """Each row with the best speed-up possible against the baseline, what it reached of it, and how many tokens it
    has in common with `generate`."""
    bases = {row.cell: row for row in rows if row.variant == baseline}
    return tuple(_with_best(row, bases[row.cell], rows) for row in rows)


def _with_best(row: GenerationRow, base: GenerationRow, rows: Sequence[GenerationRow]) -> GenerationRow:
    eager = next((one for one in rows if (one.cell, one.quant, one.engine) == (row.cell, row.quant, "eager")), None)
    same = None if eager is None or eager is row else tokens_in_common(row.first_tokens, eager.first_tokens)
    row = replace(row, same_tokens=same)
    if row.step_demand is None or base.step_demand is None or base.limits is None or row.variant == base.variant:
        return row
    # Both on the same limits: two measurements of one bandwidth are no difference between variants.
    best = floor_s(base.step_demand, base.limits) / floor_s(row.step_demand, base.limits)
    peer = peer_of(row, base, rows)
    reached = peer.tpot.value / row.tpot.value / best if peer and peer.tpot and row.tpot else None
    return replace(row, best_ratio=best, best_ratio_reached=reached)


def peer_of(row: GenerationRow, base: GenerationRow, rows: Sequence[GenerationRow]) -> GenerationRow | None:
    """The baseline's quantization in the row's own cell and runtime; None where the row is that itself."""
    if row.quant == base.quant:
        return None
    if row.engine == base.engine:
        return base
    return next((one for one in rows if (one.cell, one.quant, one.engine) == (row.cell, base.quant, row.engine)), None)


def tokens_in_common(some: Sequence[int], others: Sequence[int]) -> int | None:
    """Leading tokens that are the same; None where none are known."""
    if not some or not others:
        return None
    pairs = list(zip(some, others, strict=False))
    return next((at for at, (one, other) in enumerate(pairs) if one != other), len(pairs))
