"""Comparisons: rows of all variants and cells, with their speed-ups.

A record is one process. Several records of a variant are repeated processes, and those of one round are paired with
the baseline's process of that round. Records of different devices, models or library versions are refused, because
their difference would look like a difference between variants.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from benchmarker.comparison.comparable import check_comparable, check_keys, named_variants
from benchmarker.comparison.roofline import floor_of
from benchmarker.comparison.rows import CellKey, Failure, Results, Row, cell_of, grouped, keys_of, listed, with_ends
from benchmarker.comparison.speed_up import unquantized, with_speed_ups
from benchmarker.core.errors import ResultsError, did_you_mean
from benchmarker.core.stats import estimate, geometric_mean
from benchmarker.schema.record import CellBase, Moment, RunRecord, SampleBase
from benchmarker.schema.registry import Metric, workload_of

ResultsT = TypeVar("ResultsT", bound=Results)
Cells = Sequence[tuple[RunRecord, CellBase]]
NO_SAMPLES = {"status": "error", "reason": "it has no samples"}
COMBINE: dict[str, Callable[[Any], float]] = {"median": statistics.median, "max": max, "geometric": geometric_mean}


def results_of_records(
    records: Sequence[RunRecord],
    *,
    baseline: str | None = None,
    sweep_baseline: str | None = None,
    force: bool = False,
    problems: tuple[str, ...] = (),
) -> Results:
    """Return the rows of all variants and cells, with their speed-ups. Raises ResultsError.

    Args:
        sweep_baseline: Baseline in the sweep's file, used if `baseline` is None.
        problems: Messages on files that were left out.
    """
    differences = check_comparable(records, force=force)
    variants = named_variants(records, differences)
    members = {name: tuple(records_of_variant) for name, (_, records_of_variant) in variants.items()}
    circumstances = {name: values for name, (values, _) in variants.items()}
    check_keys(members)
    if baseline and baseline not in members:
        raise ResultsError(f"--baseline {baseline}: no such variant in the records{did_you_mean(baseline, members)}")
    default = _default_baseline(members)
    of_sweep = sweep_baseline if sweep_baseline in members and sweep_baseline != default else None
    named = baseline or of_sweep
    cells = sorted({key for record in records for key in keys_of(record)})
    keys: list[CellKey | None] = [*cells] or [None]
    rows = [make_row(name, key, members[name]) for key in keys for name in members]
    compared = with_speed_ups(rows, baseline=named or default, named=named, circumstances=circumstances)
    return Results(
        rows=workload_of(records[0].workload).with_baseline(compared, named or default),
        records=tuple(records),
        baseline=named or default,
        differences=tuple(difference.sentence() for difference in differences),
        problems=problems,
        members=members,
        named=named or next((row.variant for row in unquantized(compared)), None),
        has_named_baseline=named is not None,
        circumstances=circumstances,
    )


def to_rows(results: Results) -> list[dict[str, Any]]:
    """Return a dict of values in base units for each row, with sweep and change if `results` keeps sweeps apart."""
    if not results.sides:
        return [row.values() for row in results.rows]
    return [
        {
            "sweep": row.sweep,
            **replace(row, variant=row.name_in_sweep).values(),
            **with_ends("change", row.change.ratio if row.change else None),
            "change_verdict": row.change.verdict if row.change else None,
        }
        for row in results.rows
    ]


def lines_by_sweep(results: ResultsT, lines_of: Callable[[ResultsT], Sequence[str]]) -> list[str]:
    """Return the distinct lines of all sweeps. If only some sweeps have a line, their names precede it."""
    sides = cast("Mapping[str, ResultsT]", results.sides or {"": results})
    names = grouped((line, name) for name, side in sides.items() for line in dict.fromkeys(lines_of(side)))
    return [line if len(of) == len(sides) else f"{listed(of)}: {line}" for line, of in names.items()]


def _default_baseline(members: Mapping[str, Sequence[RunRecord]]) -> str:
    def rank(name: str) -> tuple[bool, ...]:
        could = any(cell.status == "ok" for record in members[name] for cell in record.cells)
        # A failed variant of the highest rank stays the baseline: the table gives the reason instead of speed-ups.
        return *members[name][0].baseline_rank, could

    # `max` returns the first of several variants with equal ranks.
    return max(members, key=rank)


def make_row(name: str, key: CellKey | None, records: Sequence[RunRecord]) -> Row:
    """Return the medians of a variant's cell over all its records, or the reason why it has none."""
    first, cells = records[0], [(record, cell) for record in records if (cell := cell_of(record, key))]
    workload, void = workload_of(first.workload), type(first).why_void(records)
    fields: dict[str, Any] = {"variant": name, "cell": key, "workload": first.workload, "form": first.form}
    fields |= {"family": first.family, "device": first.environment.device.name}
    good = [(record, cell) for record, cell in cells if cell.status == "ok" and cell.samples and not void]
    if not good:
        return workload.row(fields | _why_not_measured(cells, void, records[-1]), records, good)
    repeats = [(cell, sample) for _, cell in good for sample in cell.samples]
    latency_by_round = by_round(good, lambda _, sample: sample.latency_s)
    values_by_round = {metric.name: _values_by_round(metric, good) for metric in workload.metrics}
    metrics = {
        metric.name: estimate(values, [value for repeat in repeats if (value := metric.of_repeat(*repeat))])
        for metric in workload.metrics
        if (values := [*values_by_round[metric.name].values()])
    }
    ranking = workload.ranking(metrics)
    rates = values_by_round[ranking.name].items()
    fields |= {
        "status": "ok",
        "latency": estimate(list(latency_by_round.values()), [sample.latency_s for _, sample in repeats]),
        "latency_by_round": latency_by_round,
        "time_by_round": {moment: 1 / value if ranking.better == "higher" else value for moment, value in rates},
        "metrics": metrics,
        "values_by_round": values_by_round,
        "rounds": len(latency_by_round),
        "runs": len(repeats),
    }
    return workload.row(fields | _facts(workload.metrics, cells, good), records, good)


def _why_not_measured(cells: Cells, void: str | None, record: RunRecord) -> dict[str, Any]:
    if void:
        return {"status": "invalid", "reason": void}
    if cells:
        last = cells[-1][1]
        return {"status": last.status, "reason": last.reason} if last.status != "ok" else NO_SAMPLES
    return {"status": "failed", "reason": record.reason} if record.status == "failed" else {"status": "not measured"}


def _facts(metrics: Sequence[Metric], cells: Cells, good: Cells) -> dict[str, Any]:
    """Return the fields of a row that are not times: memory, clock, floor, failed processes, and metrics of a cell."""
    measured = {record.moment for record, cell in cells if cell.status == "ok"}
    clocks = [cell.conditions.sm_clock_mhz for _, cell in good if cell.conditions and cell.conditions.sm_clock_mhz]
    pairs = [(record.limits, cell.demand) for record, cell in good if record.limits and cell.demand]
    floors = [floor.seconds for record, cell in good if (floor := floor_of(cell.demand, record.limits))]
    return {
        "facts": {
            metric.name: COMBINE[metric.combine](values)
            for metric in metrics
            if metric.of_cell and (values := [value for pair in good if (value := metric.of_cell(*pair)) is not None])
        },
        "failures": tuple(
            Failure(record.round, cell.status, cell.reason, is_repeated=record.moment in measured)
            for record, cell in cells
            if cell.status != "ok"
        ),
        "flags": tuple(dict.fromkeys(flag for _, cell in good for flag in cell.flags)),
        "peak_memory_bytes": max((peak for _, cell in good if (peak := _peak(cell)) is not None), default=None),
        "processes": len(good),
        "clock_mhz": statistics.median(clocks) if clocks else None,
        "floor_s": geometric_mean(floors) if floors else None,
        "demand": pairs[0][1] if pairs else None,
        "limits": pairs[0][0] if pairs else None,
    }


def _values_by_round(metric: Metric, good: Cells) -> dict[Moment, float]:
    if metric.of_latency is None:
        return by_round(good, metric.of_repeat)
    # The rate is computed from the median time: a mean of rates would overstate work that is half fast, half slow.
    return by_round(good, metric.time, metric.of_latency)


def by_round(
    good: Cells,
    value_of: Callable[[CellBase, SampleBase], float | None],
    of_median: Callable[[CellBase, float], float | None] = lambda _, median: median,
) -> dict[Moment, float]:
    """Return one number per round: the geometric mean over its processes of `of_median(cell, median of samples)`."""
    numbers: dict[Moment, list[float]] = defaultdict(list)
    for record, cell in good:
        values = [value for sample in cell.samples if (value := value_of(cell, sample)) is not None]
        if values and (number := of_median(cell, statistics.median(values))) is not None:
            numbers[record.moment].append(number)
    return {moment: geometric_mean(numbers[moment]) for moment in sorted(numbers)}


def _peak(cell: CellBase) -> int | None:
    allocated = cell.memory.peak_allocated_bytes
    if allocated is None:
        return cell.memory.resident_growth_bytes
    # The allocator counts the memory pool of a CUDA graph as free between replays.
    return allocated + (cell.memory.graph_pool_bytes or 0)
