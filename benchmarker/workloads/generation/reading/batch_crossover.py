"""Largest batch at which a quantization is faster than the unquantized variant, and shortest prompt at which prefill is
slower.

Holm's correction covers all cells in which these times are compared, as it covers all rows of the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from benchmarker.comparison.crossing import SizeWords
from benchmarker.comparison.rows import CellKey, cell_words
from benchmarker.comparison.speed_up import SpeedUp, paired_speed_ups
from benchmarker.core.tables import plain_line
from benchmarker.schema.record import Moment
from benchmarker.workloads.generation.reading.baseline import peer_of
from benchmarker.workloads.generation.reading.generation_rows import DISTINCT, GenerationRow, over_batches

TIMES: dict[str, Callable[[GenerationRow], Mapping[Moment, float]]] = {
    "the whole request": lambda row: row.latency_by_round,
    "decode": lambda row: row.values_by_round.get("tpot", {}),
    "prefill": lambda row: row.values_by_round.get("ttft", {}),
}

PREFILL_TOKENS = 256
"""Shortest prompt for which prefill is compared. Like decoding, shorter prefills are limited by weights or host."""

Place = tuple[str, CellKey]
SpeedUps = Mapping[Place, SpeedUp]


def crossover_words(rows: Sequence[GenerationRow], baseline: str | None) -> list[str]:
    """Return sentences on the batches at which a quantization is faster and the prompts at which prefill is slower."""
    bases = {row.cell: row for row in rows if row.variant == baseline}
    pairs = {
        (row.variant, row.cell): (peer, row)
        for row in rows
        if row.cell and row.cell in bases and (peer := peer_of(row, bases[row.cell], rows))
    }
    speed_ups = {what: paired_speed_ups(pairs, times_of) for what, times_of in TIMES.items()}
    prefill = speed_ups.pop("prefill")
    lines = []
    for (variant, cell), per_batch in _series(over_batches(rows), pairs, "batch_size").items():
        for what, tested in speed_ups.items():
            if words := _batches(variant, what, _by_size(per_batch, tested)):
                lines.append(f"{words} ({cell_words(cell)}).")
    # Prefill does not depend on `new_tokens`, so rows with different numbers of new tokens form one series.
    for (variant, cell), per_prompt in _series(rows, pairs, "prompt_tokens", "new_tokens").items():
        if max(per_prompt) >= PREFILL_TOKENS and (words := _prompts(variant, _by_size(per_prompt, prefill))):
            prompts = ", distinct prompts" if cell.has_distinct_prompts else ""
            lines.append(f"{words} (batch {cell.batch_size}{prompts}).")
    return list(dict.fromkeys(lines))


def _series(
    rows: Sequence[GenerationRow], pairs: Mapping[Place, object], axis: str, *ignored: str
) -> Mapping[Place, dict[int, Place]]:
    series: dict[Place, dict[int, Place]] = {}
    for row in rows:
        if row.cell is None:
            continue
        # `over_batches` copies the rows of batch 1 to cells with `DISTINCT`.
        measured = (row.variant, row.cell), (row.variant, row.cell.without(DISTINCT[0]))
        if place := next((place for place in measured if place in pairs), None):
            series.setdefault((row.variant, row.cell.without(axis, *ignored)), {})[row.cell[axis]] = place
    return series


def _by_size(places: Mapping[int, Place], speed_ups: SpeedUps) -> dict[int, SpeedUp]:
    return {size: speed_ups[place] for size, place in sorted(places.items()) if place in speed_ups}


def _batches(variant: str, what: str, speed_ups: Mapping[int, SpeedUp]) -> str | None:
    start = f"{_against(variant, 'wins against', speed_ups)} in {what}"
    return SizeWords(start, "batch", "batch ", "", speed_ups, falling="until batch {}{}").sentence()


def _prompts(variant: str, speed_ups: Mapping[int, SpeedUp]) -> str | None:
    start, falling = f"{_against(variant, 'loses to', speed_ups)} in prefill", "from {} tokens on{}"
    return SizeWords(start, "prompt", "", " tokens", speed_ups, is_gain=False, falling=falling).sentence()


def _against(variant: str, verb: str, speed_ups: Mapping[int, SpeedUp]) -> str:
    reference = next((speed_up.reference for speed_up in speed_ups.values()), "")
    return f"{plain_line(variant)} {verb} {plain_line(reference)}"
