"""From records to rows: one per variant and cell, each number computed from the raw samples."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from benchmarker.record import Cell, LoadFacts, RunRecord, Sample
from benchmarker.stats import Estimate, Ratio, estimate, geometric_mean


@dataclass(frozen=True, order=True)
class CellKey:
    """Which cell of the grid, in the order of the tables."""

    batch_size: int
    prompt_tokens: int
    new_tokens: int
    text: int = 0
    """Prompt texts may be equally long: the second of a shape is 1."""


class Failure(NamedTuple):
    """One process that gave no number although others of the row did."""

    round: int
    status: str
    reason: str | None


@dataclass(frozen=True)
class Row:
    """One variant in one cell, over all its processes. None is not known."""

    variant: str
    quant: str
    runtime: str
    model: str
    device: str
    cell: CellKey | None
    """None where the run failed before any cell was known."""
    status: str
    """Of the cell: ok, or why there is no number. `failed` and `not measured` are the run's."""
    reason: str | None = None
    latency: Estimate | None = None
    """Seconds, as the next two."""
    ttft: Estimate | None = None
    tpot: Estimate | None = None
    rate: Estimate | None = None
    """New tokens a second of the whole batch, end to end."""
    latency_by_round: dict[int, float] = field(default_factory=dict)
    decode_tokens_per_s: float | None = None
    peak_memory_bytes: int | None = None
    """Live tensors on a GPU, resident memory on CPU; the largest of all processes."""
    weight_bytes: int | None = None
    bits_per_weight: float | None = None
    load_s: float | None = None
    setup_s: float | None = None
    ratio: Ratio | None = None
    """Speed-up against the baseline."""
    verdict: str | None = None
    """`baseline` for the baseline itself."""
    mbu: float | None = None
    bound_by: str | None = None
    perplexity: float | None = None
    kl_divergence: float | None = None
    top1_agreement: float | None = None
    energy_per_token_j: float | None = None
    rounds: int = 0
    runs: int = 0
    """Timed repeats in all."""
    dummy_weights: bool = False
    flags: tuple[str, ...] = ()
    failures: tuple[Failure, ...] = ()

    @property
    def is_baseline(self) -> bool:
        return self.verdict == "baseline"


@dataclass(frozen=True)
class Results:
    """Rows with the records that they come from: all that a report shows."""

    rows: tuple[Row, ...]
    """Cell by cell, the variants in one order in each."""
    records: tuple[RunRecord, ...]
    baseline: str | None = None
    """Name of the variant that speed-ups are against; None where there are none."""
    differences: tuple[str, ...] = ()
    """What differs between records that --force compared all the same."""
    problems: tuple[str, ...] = ()
    """Files that were left out."""


def make_row(name: str, key: CellKey | None, records: Sequence[RunRecord]) -> Row:
    """The row of one variant and cell.

    Args:
        records: All of the variant's, one per process.
    """
    cells = [(record, cell_of(record, key)) for record in records]
    good = [(record, cell) for record, cell in cells if cell and cell.status == "ok" and cell.samples]
    first = records[0]
    status, reason = ("ok", None) if good else _why_not(cells)
    loads = [record.load for record in records if record.load]
    setups = [record.runtime.setup_s for record in records if record.runtime and record.runtime.setup_s is not None]
    return Row(
        variant=name,
        quant=first.variant.quant,
        runtime=first.variant.runtime,
        model=first.model.id,
        device=first.environment.device.name,
        cell=key,
        status=status,
        reason=reason,
        weight_bytes=max((load.weight_bytes for load in loads), default=None),
        bits_per_weight=max((load.bits_per_weight for load in loads), default=None),
        load_s=_median_load(loads),
        setup_s=statistics.median(setups) if setups else None,
        dummy_weights=any(record.model.load_format == "dummy" for record in records),
        flags=tuple(dict.fromkeys(flag for _, cell in good for flag in cell.flags)),
        failures=_failures(cells) if good else (),
        **(_measured(good) if good else {}),
    )


def keys_of(record: RunRecord) -> list[CellKey]:
    """The record's cells in their order."""
    seen: dict[tuple[int, int, int], int] = defaultdict(int)
    keys = []
    for cell in record.cells:
        shape = cell.batch_size, cell.prompt_tokens, cell.new_tokens
        keys.append(CellKey(*shape, text=seen[shape]))
        seen[shape] += 1
    return keys


def cell_of(record: RunRecord, key: CellKey | None) -> Cell | None:
    """The record's cell under that key, if it has one."""
    return next((cell for cell, own in zip(record.cells, keys_of(record), strict=True) if own == key), None)


def to_row(row: Row) -> dict[str, Any]:
    """Plain values for a program, in base units; null for what is not known."""
    cell, ratio = row.cell, row.ratio
    return {
        "variant": row.variant,
        "quant": row.quant,
        "runtime": row.runtime,
        "model": row.model,
        "device": row.device,
        "prompt_tokens": cell.prompt_tokens if cell else None,
        "new_tokens": cell.new_tokens if cell else None,
        "batch_size": cell.batch_size if cell else None,
        "status": row.status,
        "latency_s": _value(row.latency),
        "ttft_s": _value(row.ttft),
        "tpot_s": _value(row.tpot),
        "tokens_per_s": _value(row.rate),
        "decode_tokens_per_s": row.decode_tokens_per_s,
        "peak_memory_bytes": row.peak_memory_bytes,
        "weight_bytes": row.weight_bytes,
        "bits_per_weight": row.bits_per_weight,
        "load_s": row.load_s,
        "setup_s": row.setup_s,
        "mbu": row.mbu,
        "ratio": ratio.value if ratio else None,
        "ratio_low": ratio.low if ratio else None,
        "ratio_high": ratio.high if ratio else None,
        "verdict": row.verdict,
        "bound_by": row.bound_by,
        "perplexity": row.perplexity,
        "kl_divergence": row.kl_divergence,
        "top1_agreement": row.top1_agreement,
        "energy_per_token_j": row.energy_per_token_j,
        "rounds": row.rounds,
        "runs": row.runs,
        "dummy_weights": row.dummy_weights,
        "flags": list(row.flags),
    }


def _value(measured: Estimate | None) -> float | None:
    return measured.value if measured else None


def _measured(good: list[tuple[RunRecord, Cell]]) -> dict[str, Any]:
    """What the samples say."""
    cell = good[0][1]
    tokens = cell.new_tokens * cell.batch_size
    latency_by_round = _by_round(good, lambda sample: sample.latency_s)
    tpot = _estimate(good, lambda sample: sample.tpot_s)
    return {
        "latency": _estimate(good, lambda sample: sample.latency_s),
        "ttft": _estimate(good, lambda sample: sample.ttft_s),
        "tpot": tpot,
        # From the median time, never a mean of rates: half the work fast and half slow takes longer than that says.
        "rate": estimate(
            [tokens / latency_s for latency_s in latency_by_round.values()],
            [tokens / sample.latency_s for _, one in good for sample in one.samples],
        ),
        "latency_by_round": latency_by_round,
        "decode_tokens_per_s": cell.batch_size / tpot.value if tpot else None,
        "peak_memory_bytes": max((peak for _, one in good if (peak := _peak(one)) is not None), default=None),
        "rounds": len(latency_by_round),
        "runs": sum(len(one.samples) for _, one in good),
    }


def _peak(cell: Cell) -> int | None:
    allocated = cell.memory.peak_allocated_bytes
    return cell.memory.peak_resident_bytes if allocated is None else allocated


def _by_round(good: list[tuple[RunRecord, Cell]], of: Callable[[Sample], float | None]) -> dict[int, float]:
    """Median per process; where several processes share a round, their geometric mean."""
    medians: dict[int, list[float]] = defaultdict(list)
    for record, cell in good:
        values = [value for sample in cell.samples if (value := of(sample)) is not None]
        if values:
            medians[record.round].append(statistics.median(values))
    return {number: geometric_mean(medians[number]) for number in sorted(medians)}


def _estimate(good: list[tuple[RunRecord, Cell]], of: Callable[[Sample], float | None]) -> Estimate | None:
    medians = list(_by_round(good, of).values())
    repeats = [value for _, cell in good for sample in cell.samples if (value := of(sample)) is not None]
    return estimate(medians, repeats) if medians else None


def _median_load(loads: list[LoadFacts]) -> float | None:
    return statistics.median(load.load_s for load in loads) if loads else None


def _why_not(cells: list[tuple[RunRecord, Cell | None]]) -> tuple[str, str | None]:
    """Status and reason where no process measured the cell: the cell's own if there is one, else the run's."""
    for _, cell in reversed(cells):
        if cell:
            return (cell.status, cell.reason) if cell.status != "ok" else ("error", "it has no samples")
    record = cells[-1][0]
    if record.status == "failed":
        return "failed", record.reason
    return "not measured", None


def _failures(cells: list[tuple[RunRecord, Cell | None]]) -> tuple[Failure, ...]:
    bad = [(record, cell) for record, cell in cells if cell and cell.status != "ok"]
    return tuple(Failure(record.round, cell.status, cell.reason) for record, cell in bad)
