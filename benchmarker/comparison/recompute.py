"""Recomputation of a table's numbers for `verify`, from the records' raw JSON, with numpy and scipy.stats.

Only the metric formulas of the workload are shared with the code of the tables, so that an error in that code is found.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from benchmarker.schema.registry import Metric

Numbers = dict[str, float | None]
Round = tuple[str, int]  # Sweep, and number of the round in it.


class Raw(dict[str, Any]):
    """Object in a record's JSON. Its keys are attributes, as the metric formulas need; a missing key is None."""

    def __getattr__(self, name: str) -> Any:
        return self.get(name)


Cells = Sequence[tuple[Raw, Raw]]
COMBINE: dict[str, Callable[[Sequence[float]], Any]] = {"median": np.median, "max": np.max, "geometric": stats.gmean}


def numbers_of(cells: Cells, metrics: Sequence[Metric]) -> Numbers:
    latencies_s = by_round(cells, lambda _, sample: sample.latency_s)
    peaks = [_peak(cell) for _, cell in cells]
    repeats_s = [sample.latency_s for _, cell in cells for sample in cell.samples]
    numbers = {
        **_with_spread("latency_s", latencies_s, repeats_s),
        "peak_memory_bytes": max((peak for peak in peaks if peak is not None), default=None),
        "rounds": len(latencies_s),
        "runs": len(repeats_s),
    }
    for metric in metrics:
        if metric.of_cell:
            facts = [value for record, cell in cells if (value := metric.of_cell(record, cell)) is not None]
            numbers[metric.name] = float(COMBINE[metric.combine](facts)) if facts else None
        else:
            repeats = [metric.of_repeat(cell, sample) for _, cell in cells for sample in cell.samples]
            numbers |= _with_spread(metric.name, _values_by_round(metric, cells), repeats)
    return numbers


def _with_spread(name: str, rounds: Mapping[Round, float], repeats: Sequence[float | None]) -> Numbers:
    values = [value for value in repeats if value is not None]
    return {name: centre(rounds), **spread(name, list(rounds.values()), values)}


def _values_by_round(metric: Metric, cells: Cells) -> dict[Round, float]:
    if metric.of_latency is None:
        return by_round(cells, metric.of_repeat)
    return by_round(cells, metric.time, metric.of_latency)


def seconds_by_round(metric: Metric, cells: Cells) -> dict[Round, float]:
    values = _values_by_round(metric, cells)
    return {number: 1 / value if metric.better == "higher" else value for number, value in values.items()}


def by_round(
    cells: Cells,
    value_of: Callable[[Any, Any], float | None],
    of_median: Callable[[Any, float], float | None] = lambda _, median: median,
) -> dict[Round, float]:
    """Return one number per round: the geometric mean over its processes of `of_median(cell, median of samples)`."""
    numbers: dict[Round, list[float]] = defaultdict(list)
    for record, cell in cells:
        values = [value for sample in cell.samples if (value := value_of(cell, sample)) is not None]
        if values and (number := of_median(cell, float(np.median(values)))) is not None:
            numbers[record.sweep or "", record.round].append(number)
    return {number: float(np.exp(np.mean(np.log(numbers[number])))) for number in sorted(numbers)}


def _peak(cell: Raw) -> int | None:
    memory = cell.memory or Raw({})
    peaks = [sample.peak_allocated_bytes for sample in cell.samples if sample.peak_allocated_bytes is not None]
    if peaks:
        return int(max(peaks) + (memory.graph_pool_bytes or 0))
    of_driver: int | None = memory.peak_allocated_bytes
    growth: int | None = memory.resident_growth_bytes
    return growth if of_driver is None else of_driver


def ratio(
    baseline: dict[Round, float], variant: dict[Round, float], *, is_paired: bool
) -> tuple[Numbers, float | None]:
    common = sorted(set(baseline) & set(variant)) if is_paired else []
    if common:
        differences = np.log([baseline[number] for number in common]) - np.log([variant[number] for number in common])
        samples, value = [differences], float(np.exp(np.mean(differences)))
    else:
        samples = [np.log(list(baseline.values())), np.log(list(variant.values()))]
        value = float(np.exp(np.mean(samples[0]) - np.mean(samples[1])))
    if min(map(len, samples)) < 3:
        return {"ratio": value, "ratio_low": None, "ratio_high": None}, None
    if all(np.ptp(sample) == 0 for sample in samples):
        return {"ratio": value, "ratio_low": value, "ratio_high": value}, float(value == 1)
    test: Any = (
        stats.ttest_1samp(samples[0], 0.0) if common else stats.ttest_ind(samples[0], samples[1], equal_var=False)
    )
    low, high = (float(np.exp(bound)) for bound in test.confidence_interval(0.95))
    return {"ratio": value, "ratio_low": low, "ratio_high": high}, float(test.pvalue)


def verdict(row: Numbers, p: float | None, all_p: Sequence[float]) -> str:
    value, low, high = row["ratio"], row["ratio_low"], row["ratio_high"]
    if value is None or low is None or high is None or p is None:
        return "not tested"
    if low >= 1 / 1.02 and high <= 1.02:
        return "same"
    # Holm rejects the k-th smallest of m p values, at 5 % / (m - k + 1), only if all smaller p values are rejected.
    ordered = sorted(all_p)
    is_rejected = all(
        smaller * (len(all_p) - bisect_left(ordered, smaller)) < 0.05 for smaller in ordered if smaller <= p
    )
    if not is_rejected or 1 / 1.02 <= value <= 1.02:
        return "inconclusive"
    return "faster" if value > 1 else "slower"


def spread(field: str, rounds: Sequence[float], repeats: Sequence[float]) -> Numbers:
    logs = np.log(rounds)
    low = high = None
    if len(logs) >= 3:
        half = stats.t.ppf(0.975, len(logs) - 1) * stats.sem(logs)
        low, high = float(np.exp(np.mean(logs) - half)), float(np.exp(np.mean(logs) + half))
    deviation = float(np.std(repeats, ddof=1)) if len(repeats) > 1 else None
    return {f"{field} low": low, f"{field} high": high, f"{field} deviation": deviation}


def centre(rounds: Mapping[Round, float]) -> float | None:
    return float(np.exp(np.mean(np.log(list(rounds.values()))))) if rounds else None
