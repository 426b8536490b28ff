"""Comparisons: rows of all variants and cells, with their speed-ups.

A record is one process. Several records of a variant are repeated processes, and those of one round are paired with
the baseline's process of that round. Records of different devices, models or library versions are refused, because
their difference would look like one between variants.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarker.comparison.comparable import Identity, check_comparable, check_keys, named_variants
from benchmarker.comparison.rows import CellKey, Failure, Results, Row, cell_of, keys_of
from benchmarker.comparison.speed_up import unquantized, with_speed_ups
from benchmarker.core.errors import ResultsError, did_you_mean
from benchmarker.core.stats import Estimate, estimate, geometric_mean
from benchmarker.schema.record import CellBase, Demand, Limits, Moment, RunRecord, SampleBase
from benchmarker.schema.registry import Metric, workload_of


def results_of_records(
    records: Sequence[RunRecord],
    *,
    baseline: str | None = None,
    sweep_baseline: str | None = None,
    force: bool = False,
    problems: tuple[str, ...] = (),
) -> Results:
    """Compare records.

    Args:
        baseline: Variant to which all others are compared.
        sweep_baseline: Baseline in the sweep's file, which names one even if its user did not.
        force: Compare also records that differ in device, model or versions.
        problems: Files that were left out.

    Raises:
        ResultsError: No such baseline, or records that do not compare.
    """
    differences = check_comparable(records, force=force)
    variants = named_variants(records, differences)
    check_keys({name: members for name, (_, members) in variants.items()})
    default = _baseline(variants, None)
    of_sweep = sweep_baseline if sweep_baseline in variants and sweep_baseline != default else None
    named = _baseline(variants, baseline) if baseline else of_sweep
    chosen = named or default
    cells = sorted({key for record in records for key in keys_of(record)})
    keys: list[CellKey | None] = [*cells] or [None]
    rows = [make_row(name, key, members) for key in keys for name, (_, members) in variants.items()]
    circumstances = {name: identity.circumstances for name, (identity, _) in variants.items()}
    compared = with_speed_ups(rows, baseline=chosen, named=named, circumstances=circumstances)
    return Results(
        rows=workload_of(records[0].workload).with_baseline(compared, chosen),
        records=tuple(records),
        baseline=chosen,
        differences=tuple(difference.sentence() for difference in differences),
        problems=problems,
        members={name: tuple(members) for name, (_, members) in variants.items()},
        named=named or next((row.variant for row in unquantized(compared)), None),
        has_named_baseline=named is not None,
        circumstances=circumstances,
    )


def to_rows(results: Results) -> list[dict[str, Any]]:
    """Return plain rows for JSON, in base units."""
    return [row.values() for row in results.rows]


def _baseline(variants: dict[str, tuple[Identity, list[RunRecord]]], wanted: str | None) -> str:
    if wanted is not None:
        if wanted not in variants:
            raise ResultsError(f"--baseline {wanted}: no such variant in the records{did_you_mean(wanted, variants)}")
        return wanted

    def rank(name: str) -> tuple[bool, ...]:
        members = variants[name][1]
        could = any(cell.status == "ok" for record in members for cell in record.cells)
        # If the plainest variant failed, no row has a speed-up, and the table gives the reason.
        return *members[0].baseline_rank, could

    # The first of equals, in the order of the variants.
    return max(variants, key=rank)


Cells = Sequence[tuple[RunRecord, CellBase]]
COMBINE: dict[str, Callable[[Sequence[float]], float]] = {
    "median": statistics.median,
    "max": max,
    "geometric_mean": geometric_mean,
}


def make_row(name: str, key: CellKey | None, records: Sequence[RunRecord]) -> Row:
    """Return the row of one variant and cell.

    Args:
        records: All records of the variant, one per process.
    """
    cells = [(record, cell_of(record, key)) for record in records]
    first = records[0]
    workload = workload_of(first.workload)
    void = type(first).why_void(records)
    good = [(record, cell) for record, cell in cells if cell and cell.status == "ok" and cell.samples and not void]
    status, reason = ("ok", None) if good else ("invalid", void) if void else _why_not(cells)
    measured = _measured(good) if good else {}
    return workload.row(
        {
            "workload": first.workload,
            "variant": name,
            "form": first.form,
            "family": first.family,
            "device": first.environment.device.name,
            "cell": key,
            "status": status,
            "reason": reason,
            "flags": tuple(dict.fromkeys(flag for _, cell in good for flag in cell.flags)),
            "failures": _failures(cells) if good else (),
            **measured,
        },
        records,
        good,
    )


def _measured(good: Cells) -> dict[str, Any]:
    latency_by_round = by_round(good, lambda _, sample: sample.latency_s)
    metrics = {metric.name: _metric(metric, good) for metric in workload_of(good[0][0].workload).metrics}
    facts = {metric.name: _fact(metric, good) for metric in workload_of(good[0][0].workload).metrics}
    return {
        "latency": estimate_over(good, lambda _, sample: sample.latency_s),
        "latency_by_round": latency_by_round,
        "pace_by_round": _pace(good, metrics),
        "metrics": {name: measured for name, measured in metrics.items() if measured},
        "facts": {name: fact for name, fact in facts.items() if fact is not None},
        "peak_memory_bytes": max((peak for _, cell in good if (peak := _peak(cell)) is not None), default=None),
        "rounds": len(latency_by_round),
        "processes": len(good),
        "runs": sum(len(cell.samples) for _, cell in good),
        "clock_mhz": _clock(good),
        **_limits(good),
    }


def _metric(metric: Metric, good: Cells) -> Estimate | None:
    values = list(_values_by_round(metric, good).values())
    cell = good[0][1]
    repeats = [
        value
        for _, process_cell in good
        for sample in process_cell.samples
        if (value := metric.of_repeat(cell, sample))
    ]
    return estimate(values, repeats) if values else None


def _values_by_round(metric: Metric, good: Cells) -> dict[Moment, float]:
    rate, cell = metric.of_latency, good[0][1]
    if rate is None:
        return by_round(good, metric.of_repeat)
    # From the median time: a mean of rates would overstate work that is half fast and half slow.
    times = by_round(good, metric.time).items()
    return {moment: value for moment, time_s in times if (value := rate(cell, time_s)) is not None}


def _pace(good: Cells, metrics: Mapping[str, Estimate | None]) -> dict[Moment, float]:
    metric = workload_of(good[0][0].workload).ranking([name for name, measured in metrics.items() if measured])
    values = _values_by_round(metric, good).items()
    return {moment: 1 / value if metric.better == "higher" else value for moment, value in values}


def _fact(metric: Metric, good: Cells) -> float | None:
    if metric.of_cell is None:
        return None
    values = [value for record, cell in good if (value := metric.of_cell(record, cell)) is not None]
    return COMBINE[metric.combine](values) if values else None


def by_round(good: Cells, value_of: Callable[[CellBase, SampleBase], float | None]) -> dict[Moment, float]:
    """Return one number per round: the median of a process, or the geometric mean over several processes.

    Args:
        value_of: Returns the number of a repeat from its cell and sample, or None.
    """
    medians: dict[Moment, list[float]] = defaultdict(list)
    for record, cell in good:
        values = [value for sample in cell.samples if (value := value_of(cell, sample)) is not None]
        if values:
            medians[record.moment].append(statistics.median(values))
    return {number: geometric_mean(medians[number]) for number in sorted(medians)}


def estimate_over(good: Cells, value_of: Callable[[CellBase, SampleBase], float | None]) -> Estimate | None:
    """Return a number over all processes with its interval; None if no repeat has it."""
    medians = list(by_round(good, value_of).values())
    repeats = [value for _, cell in good for sample in cell.samples if (value := value_of(cell, sample)) is not None]
    return estimate(medians, repeats) if medians else None


def _peak(cell: CellBase) -> int | None:
    allocated = cell.memory.peak_allocated_bytes
    if allocated is None:
        return cell.memory.resident_growth_bytes
    # The allocator counts a graph's pool as free between replays.
    return allocated + (cell.memory.graph_pool_bytes or 0)


def _limits(good: Cells) -> dict[str, Any]:
    pairs = [(record.limits, cell.demand) for record, cell in good if record.limits and cell.demand]
    floors = [floor for limits, demand in pairs if (floor := floor_s(demand, limits)) is not None]
    return {
        "floor_s": geometric_mean(floors) if floors else None,
        "demand": pairs[0][1] if pairs else None,
        "limits": pairs[0][0] if pairs else None,
    }


def floor_s(demand: Demand, limits: Limits) -> float | None:
    """Return the shortest possible time of a call: that of its bytes or of its arithmetic, whichever takes longer."""
    times = [
        amount / rate
        for amount, rate in ((demand.bytes, limits.bytes_per_s), (demand.flops, limits.matmul_flops_per_s))
        if amount is not None
    ]
    return max(times) if times and max(times) > 0 else None


def _why_not(cells: Sequence[tuple[RunRecord, CellBase | None]]) -> tuple[str, str | None]:
    for _, cell in reversed(cells):
        if cell:
            return (cell.status, cell.reason) if cell.status != "ok" else ("error", "it has no samples")
    record = cells[-1][0]
    if record.status == "failed":
        return "failed", record.reason
    return "not measured", None


def _failures(cells: Sequence[tuple[RunRecord, CellBase | None]]) -> tuple[Failure, ...]:
    measured = {record.moment for record, cell in cells if cell and cell.status == "ok"}
    bad = [(record, cell) for record, cell in cells if cell and cell.status != "ok"]
    return tuple(
        Failure(record.round, cell.status, cell.reason, is_repeated=record.moment in measured) for record, cell in bad
    )


def _clock(good: Cells) -> float | None:
    clocks = [cell.conditions.sm_clock_mhz for _, cell in good if cell.conditions and cell.conditions.sm_clock_mhz]
    return statistics.median(clocks) if clocks else None
