"""From records to rows: every number computed from the raw samples of all the processes of a variant."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from benchmarker.comparison.energy import energy_use
from benchmarker.comparison.rows import CellKey, Failure, Row
from benchmarker.core.stats import Estimate, estimate, geometric_mean
from benchmarker.schema.model_facts import LoadFacts
from benchmarker.schema.record import Moment
from benchmarker.workloads.generation.record import GenerationCell, GenerationRecord, GenerationSample
from benchmarker.workloads.generation.roofline import floor_s, mbu, prefill_mfu


def make_row(name: str, key: CellKey | None, records: Sequence[GenerationRecord]) -> Row:
    """The row of one variant and cell.

    Args:
        records: All of the variant's, one per process.
    """
    cells = [(record, cell_of(record, key)) for record in records]
    good = [(record, cell) for record, cell in cells if cell and cell.status == "ok" and cell.samples]
    first = records[0]
    status, reason = ("ok", None) if good else _why_not(cells)
    loads = [record.load for record in records if record.load]
    setups = [record.engine.setup_s for record in records if record.engine and record.engine.setup_s is not None]
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
        setup_cold_s=_setup(records, "cold"),
        setup_warm_s=_setup(records, "warm"),
        kernels_per_token=_kernels(good),
        dummy_weights=any(record.model.load_format == "dummy" for record in records),
        flags=tuple(dict.fromkeys(flag for _, cell in good for flag in cell.flags)),
        failures=_failures(cells) if good else (),
        **_judged(records),
        **(_measured(good) if good else {}),
    )


def keys_of(record: GenerationRecord) -> list[CellKey]:
    """The record's cells in their order."""
    seen: dict[tuple[int, int, int, int], int] = defaultdict(int)
    keys = []
    for cell in record.cells:
        shape = cell.batch_size, cell.prompt_tokens, cell.new_tokens, cell.depth
        # Older records do not say which text it is: they are numbered in their order.
        keys.append(CellKey(*shape[:3], text=seen[shape] if cell.text is None else cell.text, depth=cell.depth))
        seen[shape] += 1
    return keys


def cell_of(record: GenerationRecord, key: CellKey | None) -> GenerationCell | None:
    """The record's cell under that key, if it has one."""
    return next((cell for cell, own in zip(record.cells, keys_of(record), strict=True) if own == key), None)


def _measured(good: list[tuple[GenerationRecord, GenerationCell]]) -> dict[str, Any]:
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
        "processes": len(good),
        "runs": sum(len(one.samples) for _, one in good),
        "clock_mhz": _clock(good),
        "energy": energy_use(good),
        "first_tokens": cell.first_tokens,
        **_limits(good),
    }


def _judged(records: Sequence[GenerationRecord]) -> dict[str, Any]:
    """Quality, from the newest record that has it: it is measured once, in no matter which round."""
    newest = sorted(records, key=lambda one: one.started_at, reverse=True)
    tasks = next((one.tasks for one in newest if one.tasks), ())
    quality = next((one.quality for one in newest if one.quality), None)
    if quality is None:
        return {"tasks": tasks}
    return {
        "tasks": tasks,
        "perplexity": quality.perplexity,
        "kl_divergence": quality.against.kl_mean,
        "top1_agreement": quality.against.same_top,
        "quality": quality,
    }


def _peak(cell: GenerationCell) -> int | None:
    allocated = cell.memory.peak_allocated_bytes
    if allocated is None:
        return cell.memory.peak_resident_bytes
    # What a graph keeps for itself counts as free while it is not replaying.
    return allocated + (cell.memory.graph_pool_bytes or 0)


def _by_round(
    good: list[tuple[GenerationRecord, GenerationCell]], of: Callable[[GenerationSample], float | None]
) -> dict[Moment, float]:
    """Median per process; where several processes share a round, their geometric mean."""
    medians: dict[Moment, list[float]] = defaultdict(list)
    for record, cell in good:
        values = [value for sample in cell.samples if (value := of(sample)) is not None]
        if values:
            medians[record.moment].append(statistics.median(values))
    return {number: geometric_mean(medians[number]) for number in sorted(medians)}


def _estimate(
    good: list[tuple[GenerationRecord, GenerationCell]], of: Callable[[GenerationSample], float | None]
) -> Estimate | None:
    medians = list(_by_round(good, of).values())
    repeats = [value for _, cell in good for sample in cell.samples if (value := of(sample)) is not None]
    return estimate(medians, repeats) if medians else None


def _setup(records: Sequence[GenerationRecord], cache: str) -> float | None:
    """Median of those that set up with the compiler's cache in that state."""
    facts = [record.engine for record in records if record.engine and record.engine.setup_cache == cache]
    times = [one.setup_s for one in facts if one.setup_s is not None]
    return statistics.median(times) if times else None


def _kernels(good: list[tuple[GenerationRecord, GenerationCell]]) -> float | None:
    known = [count for record, cell in good if (count := _kernels_of(record, cell)) is not None]
    return statistics.median(known) if known else None


def _kernels_of(record: GenerationRecord, cell: GenerationCell) -> float | None:
    """Of a step at this cell's shape. The profiler counts at the last good cell; else the cell's graph says it, or in
    records from before cells did the runtime, whose facts are those of the last cell."""
    is_last_good = record.last_good is not None and cell is record.cells[record.last_good]
    if record.engine and is_last_good and record.engine.kernels_per_token:
        return record.engine.kernels_per_token
    if cell.step:
        return cell.step.graph_kernels
    return record.engine.graph_kernels if record.engine and cell is record.cells[-1] else None


def _limits(good: list[tuple[GenerationRecord, GenerationCell]]) -> dict[str, Any]:
    """What the device allows, and how near the cell came: each process against its own measured limits."""
    known = [(record.limits, cell.demand, cell) for record, cell in good if record.limits and cell.demand]
    used, floors, prefills = [], [], []
    for limits, demand, cell in known:
        tpots = [sample.tpot_s for sample in cell.samples if sample.tpot_s is not None]
        ttfts = [sample.ttft_s for sample in cell.samples if sample.ttft_s is not None]
        floors.append(floor_s(demand, limits))
        used += [mbu(demand, limits, tpot_s=statistics.median(tpots))] if tpots else []
        prefills += [prefill_mfu(demand, limits, ttft_s=statistics.median(ttfts))] if ttfts else []
    return {
        "floor_s": geometric_mean(floors) if floors else None,
        "mbu": geometric_mean(used) if used else None,
        "prefill_mfu": geometric_mean(prefills) if prefills else None,
        "demand": known[0][1] if known else None,
        "limits": known[0][0] if known else None,
        "fits_cache": any(demand.step_bytes <= (limits.cache_bytes or 0) for limits, demand, _ in known),
    }


def _median_load(loads: list[LoadFacts]) -> float | None:
    return statistics.median(load.load_s for load in loads) if loads else None


def _why_not(cells: list[tuple[GenerationRecord, GenerationCell | None]]) -> tuple[str, str | None]:
    """Status and reason where no process measured the cell: the cell's own if there is one, else the run's."""
    for _, cell in reversed(cells):
        if cell:
            return (cell.status, cell.reason) if cell.status != "ok" else ("error", "it has no samples")
    record = cells[-1][0]
    if record.status == "failed":
        return "failed", record.reason
    return "not measured", None


def _failures(cells: list[tuple[GenerationRecord, GenerationCell | None]]) -> tuple[Failure, ...]:
    measured = {record.moment for record, cell in cells if cell and cell.status == "ok"}
    bad = [(record, cell) for record, cell in cells if cell and cell.status != "ok"]
    return tuple(
        Failure(record.round, cell.status, cell.reason, is_repeated=record.moment in measured) for record, cell in bad
    )


def _clock(good: list[tuple[GenerationRecord, GenerationCell]]) -> float | None:
    clocks = [cell.conditions.sm_clock_mhz for _, cell in good if cell.conditions and cell.conditions.sm_clock_mhz]
    return statistics.median(clocks) if clocks else None
