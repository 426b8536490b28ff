"""Largest batch at which a quantization is faster than the unquantized variant, and shortest prompt at which prefill is
slower.

If x and y have the intervals x * exp(+-u) and y * exp(+-v), y / x has the interval y / x * exp(+-sqrt(u^2 + v^2)).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from benchmarker.comparison.crossing import SizeWords, crossover
from benchmarker.comparison.rows import CellKey, cell_words
from benchmarker.core.stats import Estimate, Ratio
from benchmarker.core.tables import plain_line
from benchmarker.workloads.generation.reading.baseline import peer_of
from benchmarker.workloads.generation.reading.generation_rows import GenerationRow, over_batches

TIMES: dict[str, Callable[[GenerationRow], Estimate | None]] = {
    "the whole request": lambda row: row.latency,
    "decode": lambda row: row.tpot,
}

PREFILL_TOKENS = 256
"""Shortest prompt for which prefill is compared. Like decoding, shorter prefills are limited by weights or host."""


def crossover_words(rows: Sequence[GenerationRow], baseline: str | None) -> list[str]:
    """Return sentences on the batches at which a quantization is faster and the prompts at which prefill is slower."""
    lines = []
    for (variant, peer, cell), per_batch in _series(over_batches(rows), baseline, "batch_size").items():
        for what, time in TIMES.items():
            if words := _batches(variant, peer, what, _speed_ups(per_batch, time)):
                lines.append(f"{words} ({cell_words(cell)}).")
    # Prefill does not depend on `new_tokens`, so rows with different numbers of new tokens form one series.
    for (variant, peer, cell), per_prompt in _series(rows, baseline, "prompt_tokens", "new_tokens").items():
        if max(per_prompt) >= PREFILL_TOKENS and (
            words := _prompts(variant, peer, _speed_ups(per_prompt, lambda row: row.ttft))
        ):
            prompts = ", distinct prompts" if cell.has_distinct_prompts else ""
            lines.append(f"{words} (batch {cell.batch_size}{prompts}).")
    return list(dict.fromkeys(lines))


Ratios = dict[int, Ratio]
Pairs = dict[int, tuple[GenerationRow, GenerationRow]]


def _series(
    rows: Sequence[GenerationRow], baseline: str | None, axis: str, *ignored: str
) -> Mapping[tuple[str, str, CellKey], Pairs]:
    bases = {row.cell: row for row in rows if row.variant == baseline}
    series: dict[tuple[str, str, CellKey], Pairs] = {}
    for row in rows:
        peer = peer_of(row, bases[row.cell], rows) if row.cell and row.cell in bases else None
        if row.cell and peer:
            place = row.variant, peer.variant, row.cell.without(axis, *ignored)
            series.setdefault(place, {})[row.cell[axis]] = row, peer
    return series


def _speed_ups(pairs: Pairs, time: Callable[[GenerationRow], Estimate | None]) -> Ratios:
    speed_ups = {}
    for size, (row, peer) in sorted(pairs.items()):
        row_time, peer_time = time(row), time(peer)
        if row_time and peer_time:
            halves = [math.log(side.high / side.value) for side in (row_time, peer_time) if side.high is not None]
            ratio = Ratio(peer_time.value / row_time.value, rounds=min(row.rounds, peer.rounds))
            if len(halves) == 2:
                half = math.exp(math.hypot(*halves))
                ratio = replace(ratio, low=ratio.value / half, high=ratio.value * half)
            speed_ups[size] = ratio
    return speed_ups


def _batches(variant: str, peer: str, what: str, speed_ups: Ratios) -> str | None:
    start = f"{plain_line(variant)} wins against {plain_line(peer)} in {what}"
    words = SizeWords(start, "batch", "batch ", "", speed_ups)
    fall = crossover(speed_ups)
    until = f"until batch {words.size(fall, math.floor)}" if fall else None
    return words.sentence(until)


def _prompts(variant: str, peer: str, speed_ups: Ratios) -> str | None:
    start = f"{plain_line(variant)} loses to {plain_line(peer)} in prefill"
    words = SizeWords(start, "prompt", "", " tokens", speed_ups, is_gain=False)
    fall = crossover(speed_ups)
    since = f"from {words.size(fall, math.ceil, ' tokens on')}" if fall else None
    return words.sentence(since)
