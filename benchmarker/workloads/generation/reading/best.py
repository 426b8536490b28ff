"""The best speed-up that a row could have, and what it reached of it.

Two variants at their floors differ by the bytes that they read: that ratio is the best speed-up there can be. What was
reached of it is only asked within one engine, because else the engines are compared with each other as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchmarker.comparison.rows import CellKey
from benchmarker.workloads.generation.reading.rows import GenerationRow
from benchmarker.workloads.generation.roofline import floor_s


def with_best(rows: Sequence[GenerationRow], baseline: str | None) -> tuple[GenerationRow, ...]:
    """Each row with its best possible speed-up against the baseline, the share of it that the row reached, and how
    many tokens its text has in common with plain `generate`'s."""
    bases = {row.cell: row for row in rows if row.variant == baseline}
    return tuple(_with_best(row, bases[row.cell], rows) for row in rows)


def _with_best(row: GenerationRow, base: GenerationRow, rows: Sequence[GenerationRow]) -> GenerationRow:
    eager = _row_of(rows, row.cell, weights=row.weights, engine="eager")
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
    """The row of the baseline's quantization in the row's own cell and engine; None where the row is of that itself."""
    if row.weights == base.weights:
        return None
    if row.engine == base.engine:
        return base
    return _row_of(rows, row.cell, weights=base.weights, engine=row.engine)


def _row_of(rows: Sequence[GenerationRow], cell: CellKey | None, *, weights: str, engine: str) -> GenerationRow | None:
    return next((row for row in rows if (row.cell, row.weights, row.engine) == (cell, weights, engine)), None)


def tokens_in_common(first: Sequence[int], second: Sequence[int]) -> int | None:
    """How many leading tokens two texts have in common; None where one has none."""
    if not first or not second:
        return None
    shorter = min(len(first), len(second))
    return next((place for place in range(shorter) if first[place] != second[place]), shorter)
