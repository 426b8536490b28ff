"""From counted windows to joules per token, gross and above idle, with prefill and decoding apart.

gross    = E(P, N) / (generations * N * batch)
net      = (E(P, N) - idle power * seconds) / (generations * N * batch)
prefill  = E(P, 1) / (generations * batch)                                  for a prompt
decoding = (E(P, N) / generations - E(P, 1) / generations) / ((N - 1) * batch)
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarker.core.stats import Estimate, estimate, geometric_mean
from benchmarker.schema.record import Energy, EnergyWindow, Moment
from benchmarker.workloads.generation.record import GenerationCell, GenerationRecord


@dataclass(frozen=True)
class EnergyUse:
    """Energy of one row over all its processes, in joules of the whole board; None where it was not counted."""

    per_token: Estimate
    """Joules a token, the board's idle power included. The deviation is over the windows."""
    net_per_token_j: float | None
    """Joules a token above the board's idle power."""
    decode_per_token_j: float | None
    """Joules a token of decoding alone, the board's idle power included."""
    prefill_j: float | None
    """Joules of one prompt's prefill, the board's idle power included."""


def energy_use(cells: Sequence[tuple[GenerationRecord, GenerationCell]]) -> EnergyUse | None:
    """The energy of one row, from the processes that counted it; None where none did."""
    counted = [(record, cell, cell.energy) for record, cell in cells if cell.energy]
    if not counted:
        return None
    by_round: dict[Moment, list[float]] = defaultdict(list)
    for record, cell, energy in counted:
        by_round[record.moment].append(_generation_j(energy.generation) / _tokens(cell))
    windows = [_generation_j([window]) / _tokens(cell) for _, cell, energy in counted for window in energy.generation]
    return EnergyUse(
        per_token=estimate([geometric_mean(by_round[number]) for number in sorted(by_round)], windows),
        net_per_token_j=_mean([_net_j(energy) / _tokens(cell) for _, cell, energy in counted if energy.idle_power_w]),
        decode_per_token_j=_mean([_decode_j(cell, energy) for _, cell, energy in counted if _has_both(cell, energy)]),
        prefill_j=_mean(
            [_generation_j(energy.prefill) / cell.batch_size for _, cell, energy in counted if energy.prefill]
        ),
    )


def _tokens(cell: GenerationCell) -> int:
    return cell.new_tokens * cell.batch_size


def _generation_j(windows: Sequence[EnergyWindow]) -> float:
    """Joules of one generation of the whole batch: all windows' energy over all their generations."""
    return sum(window.energy_j for window in windows) / sum(window.generations for window in windows)


def _net_j(energy: Energy) -> float:
    seconds = sum(window.seconds for window in energy.generation) / sum(
        window.generations for window in energy.generation
    )
    return _generation_j(energy.generation) - (energy.idle_power_w or 0.0) * seconds


def _has_both(cell: GenerationCell, energy: Energy) -> bool:
    return bool(energy.prefill) and cell.new_tokens > 1


def _decode_j(cell: GenerationCell, energy: Energy) -> float:
    more = _generation_j(energy.generation) - _generation_j(energy.prefill)
    return more / ((cell.new_tokens - 1) * cell.batch_size)


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None
