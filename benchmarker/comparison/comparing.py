"""How a workload's records are compared, beyond its axes and metrics. Every field has a default."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarker.comparison.rows import CellKey, Row
from benchmarker.core.named_import import imported
from benchmarker.core.stats import Estimate
from benchmarker.core.tables import escaped
from benchmarker.schema.record import CellBase, RunRecord
from benchmarker.schema.registry import workload_of

if TYPE_CHECKING:
    from benchmarker.schema.workload import Metric

Good = Sequence[tuple[Any, Any]]
"""Records and their cells, of those that measured a cell."""
Circumstance = Callable[[Any], str | None]
KEY_ENDINGS = {"s": "_s", "B": "_bytes", "1/s": "_per_s", "FLOP/s": "_flop_per_s"}
"""Of a metric's JSON key, by its unit."""
SIZES = {"b": 1.0, "mib": 2.0**20, "gib": 2.0**30, "mb": 1e6, "gb": 1e9}
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
PLAIN = {"": 1.0, "%": 0.01}
"""Units that a budget is given in. A size and a time have no bare number: 6 bytes or 6 GiB is no small thing."""


@dataclass(frozen=True)
class Limitable:
    """A quantity that a budget can limit."""

    value_of: Callable[[Any], float | Estimate | None]
    """Its value in a row; None where it was not measured."""
    units: Mapping[str, float]
    """How much of the base unit each unit is, by its name in small letters; the empty name is for a bare number."""
    form: Callable[[float], str]
    """A value in words, with its unit."""
    how: str
    """How to measure it, for a message where it was not measured."""
    meaning: str = ""
    """What keeping to the limit does not mean, for a reader; empty where there is nothing to add."""


def plain_keys(record: RunRecord) -> list[CellKey]:
    """The record's cells in their order: a value for each axis."""
    axes = workload_of(record.workload).axes
    return [
        CellKey(tuple((axis.name, getattr(cell, axis.name)) for axis in axes), record.workload) for cell in record.cells
    ]


def plain_form(record: RunRecord) -> dict[str, str]:
    """The variant's options."""
    options = ", ".join(f"{key}={value}" for key, value in sorted(record.variant.options.items()))
    return {"options": options or "no options"}


def plain_row(row: Row) -> dict[str, Any]:
    """Form, cell, and each declared metric with its interval, in base units; null for what is not known."""
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
    """Declared metrics of a row by their JSON keys, in base units: the value, and its interval where it has one."""
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


def no_fields(records: Sequence[Any], good: Good) -> dict[str, Any]:  # noqa: ARG001
    """No further fields."""
    return {}


def not_void(records: Sequence[Any]) -> str | None:  # noqa: ARG001
    """Nothing that speaks against the records."""
    return None


def nothing_to_check(record: Any) -> tuple[Any, ...]:  # noqa: ARG001
    """No further statements."""
    return ()


def as_they_are(rows: Sequence[Row], baseline: str | None) -> tuple[Row, ...]:  # noqa: ARG001
    """The rows unchanged."""
    return tuple(rows)


def form_words(row: Row) -> str:
    """The variant's name, which says all where a workload has no forms."""
    return escaped(row.variant)


@dataclass(frozen=True)
class Comparing:
    """How records of a workload are compared."""

    row: type[Row] = Row
    fields: Callable[[Sequence[Any], Good], dict[str, Any]] = no_fields
    """Further fields of a row, from all records of the variant and from those with their cells that measured it."""
    void: Callable[[Sequence[Any]], str | None] = not_void
    """Why none of a variant's records has a speed, such as a proof in one of them that it computes something else."""
    keys: Callable[[Any], list[CellKey]] = plain_keys
    """Of a record's cells, in their order."""
    form: Callable[[Any], dict[str, str]] = plain_form
    """What makes a variant what it is beside its name, by field: equal in all records of one name."""
    ran: Callable[[Any], Mapping[str, str | None]] = lambda record: {}
    """What the form turned out to be when it ran, such as the kernel that `auto` chose: equal in all records of one
    name that say it."""
    libraries: Callable[[Any], Container[str] | None] = lambda record: None
    """Of the libraries that a quantization brings, those that a record's variant runs. None where nobody knows."""
    family: Callable[[Any], str] = lambda record: str(record.variant.name)
    """What variants share that belong together."""
    place: Callable[[Any], int] = lambda record: 0
    """Where a variant stands among its family when single runs are compared, whose order nobody chose."""
    plainness: Callable[[Any], tuple[bool, ...]] = lambda record: ()
    """Which variant is the baseline if nobody says: that with the greatest. Of equals the first."""
    is_plain: Callable[[Any], bool] = lambda row: row.is_baseline
    """Whether a row is of the form that the others are held against, such as the unquantized one."""
    surroundings: Callable[[Any], object] = lambda row: None
    """What a row has in common with the plain form that it is held against, such as the engine."""
    circumstances: Mapping[str, Circumstance] = field(default_factory=dict)
    """What must be equal in all records beside device, driver and versions, by its name in a message."""
    as_one: Callable[[Sequence[Any]], Sequence[Any]] = lambda records: records
    """The records as circumstances are held against each other: what is the same by two names has one."""
    must_be_equal: tuple[str, ...] = ()
    """Which of these must be equal for the gate too; a change of the others is what it may be asked about."""
    subject: tuple[str, ...] = ()
    """Fields of a record that hold what was measured: they decide a cell's key, with variant, environment and
    procedure."""
    knows: Callable[[Any], bool] = lambda record: bool(record.cells)
    """Whether a record knows its circumstances: a run that failed early may not."""
    with_baseline: Callable[[Any, str | None], tuple[Any, ...]] = as_they_are
    """The rows with what only all of them together tell, such as what is compared with the baseline's."""
    to_row: Callable[[Any], dict[str, Any]] = plain_row
    """Plain values for a program."""
    limitable: Mapping[str, Limitable] = field(default_factory=dict)
    """What a budget can limit beside memory and the metrics, by its word."""
    loss: Callable[[Any], float | None] = lambda row: 0.0
    """What a variant costs beside time and memory, less is better. None where it was not measured."""
    form_words: Callable[[Any], str] = form_words
    """A variant by its name and form."""
    checks: Callable[[Any], Iterable[Any]] = nothing_to_check
    """Statements of a record that `verify` checks beyond those of any record: `invariants.Check`."""
    labels: Mapping[str, Callable[[Any], str]] = field(default_factory=dict)
    """What a recommendation says of the variant beside its name, from its row, by the key in JSON."""


def comparing_of(name: str) -> Comparing:
    """How records of the workload of that name are compared."""
    where = workload_of(name).comparing
    comparing: Comparing = imported(where) if where else Comparing()
    return comparing


def keys_of(record: RunRecord) -> list[CellKey]:
    """The record's cells in their order."""
    return comparing_of(record.workload).keys(record)


def cell_of(record: RunRecord, key: CellKey | None) -> CellBase | None:
    """The record's cell under that key, if it has one."""
    return next((cell for cell, cell_key in zip(record.cells, keys_of(record), strict=True) if cell_key == key), None)
