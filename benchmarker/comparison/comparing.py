"""Plain values of rows for JSON, and quantities for budgets."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarker.comparison.rows import CellKey, Row
from benchmarker.core.stats import Estimate
from benchmarker.schema.record import CellBase, RunRecord
from benchmarker.schema.registry import workload_of

if TYPE_CHECKING:
    from benchmarker.schema.metric import Axis, Metric

Circumstance = Callable[[Any], str | None]
KEY_ENDINGS = {"s": "_s", "B": "_bytes", "1/s": "_per_s", "FLOP/s": "_flop_per_s"}
"""Ending of a metric's JSON key by its unit."""
SIZES = {"b": 1.0, "mib": 2.0**20, "gib": 2.0**30, "mb": 1e6, "gb": 1e9}
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
PLAIN = {"": 1.0, "%": 0.01}
"""Units of a budget. Sizes and times need a unit: 6 bytes and 6 GiB are both sizes."""


@dataclass(frozen=True)
class Limitable:
    """A quantity that a budget can limit."""

    value_of: Callable[[Any], float | Estimate | None]
    """Returns its value in a row, or None if it was not measured."""
    units: Mapping[str, float]
    """Factors to the base unit by the unit's name in small letters. The empty name is for a number without unit."""
    form: Callable[[float], str]
    """Returns a value as text with its unit."""
    how: str
    """How to measure it, for the message that it was not measured."""
    meaning: str = ""
    """Sentence that limits the interpretation; empty if there is none."""


def plain_keys(record: RunRecord, axes: Sequence[Axis]) -> list[CellKey]:
    """Return the keys of a record's cells in their order, with a value for each axis."""
    return [
        CellKey(tuple((axis.name, getattr(cell, axis.name)) for axis in axes), record.workload) for cell in record.cells
    ]


def plain_row(row: Row) -> dict[str, Any]:
    """Return the row for JSON: form, cell, and each metric with its interval in base units."""
    ratio = row.ratio
    return {
        "workload": row.workload,
        "variant": row.variant,
        **row.form,
        "device": row.device,
        **{axis.name: row.cell[axis.name] if row.cell else None for axis in row.described.axes},
        "status": row.status,
        **metric_numbers(row, row.described.metrics),
        "peak_memory_bytes": row.peak_memory_bytes,
        "floor_s": row.floor_s,
        "ratio": ratio.value if ratio else None,
        "ratio_low": ratio.low if ratio else None,
        "ratio_high": ratio.high if ratio else None,
        "verdict": row.verdict,
        **ratio_numbers(row),
        "bound_by": row.bound_by,
        "rounds": row.rounds,
        "runs": row.runs,
        "flags": list(row.flags),
    }


def ratio_numbers(row: Row) -> dict[str, float | str | None]:
    """Return the name of the speed-up's reference, and the ratio of whole calls to the baseline with its interval."""
    call = row.call.ratio if row.call else None
    return {
        "reference": row.variant if row.is_reference else row.speed_up.reference if row.speed_up else None,
        "call_ratio": call.value if call else 1.0 if row.is_baseline and row.latency else None,
        "call_ratio_low": call.low if call else None,
        "call_ratio_high": call.high if call else None,
    }


def metric_numbers(row: Row, metrics: Iterable[Metric]) -> dict[str, float | None]:
    """Return the declared metrics of a row by their JSON keys, in base units, with intervals."""
    numbers: dict[str, float | None] = {}
    for metric in metrics:
        key = re.sub(r"\W+", "_", metric.name) + KEY_ENDINGS.get(metric.unit, "")
        if metric.of_cell:
            numbers[key] = row.facts.get(metric.name)
            continue
        measured = row.metrics.get(metric.name)
        numbers[key] = measured.value if measured else None
        numbers[f"{key}_low"] = measured.low if measured else None
        numbers[f"{key}_high"] = measured.high if measured else None
    return numbers


def keys_of(record: RunRecord) -> list[CellKey]:
    """Return the keys of the record's cells in their order."""
    return workload_of(record.workload).cell_keys(record)


def cell_of(record: RunRecord, key: CellKey | None) -> CellBase | None:
    """Return the record's cell with that key, if it has one."""
    return next((cell for cell, cell_key in zip(record.cells, keys_of(record), strict=True) if cell_key == key), None)
