"""Evaluation of the records of operations: the profiled call for an explanation, and series of lengths."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from benchmarker.comparison.results import make_row
from benchmarker.comparison.roofline import Floor
from benchmarker.comparison.rows import CellKey, Row, cell_of, keys_of
from benchmarker.core.formatting import abridged, ms
from benchmarker.explain.phases import Phase
from benchmarker.explain.waterfall import Advice, Timed
from benchmarker.profiling.kernel_categories import CATEGORIES, Category
from benchmarker.profiling.profile_table import kernel_code
from benchmarker.schema.record import Kernel, RunRecord
from benchmarker.workloads.operation.record import SeenKernel
from benchmarker.workloads.operation.spec import mode_text

SHOWN_KERNELS = 3
FLOORS = {"bytes": "moving data at the measured bandwidth", "flops": "products at the measured matmul rate"}
CALL_ADVICE: Advice = {
    "host": "Larger batches or longer sequences fill the device; a captured graph saves the launches.",
    "slow products": "Another kernel for the same work helps, if a row here is faster.",
}


class LargestCall(NamedTuple):
    record: Any
    cell: Any
    key: CellKey
    row: Row

    @property
    def latency_s(self) -> float:
        assert self.row.latency is not None
        return self.row.latency.value

    @property
    def on_cpu(self) -> bool:
        return bool(self.record.environment.device.kind == "cpu")


def largest_call(
    name: str, records: Sequence[RunRecord], *, explains: Callable[[Any], bool] = lambda cell: True
) -> LargestCall | None:
    measured = [
        (key, record, cell)
        for record in records
        for key in keys_of(record)
        if (cell := cell_of(record, key)) is not None and cell.status == "ok" and cell.samples and explains(cell)
    ]
    if not measured:
        return None
    key, record, cell = max(measured, key=lambda entry: entry[0])
    return LargestCall(record, cell, key, make_row(name, key, records))


def timed_call(
    call: LargestCall,
    categories: dict[Category, float],
    *,
    floor: Floor | None,
    busy_s: float | None = None,
    notes: Iterable[str] = (),
    products: tuple[Category, ...] = CATEGORIES,
    advice: Advice = CALL_ADVICE,
) -> Timed:
    """Return the call for an explanation. `categories`: seconds by category of kernels in the profiled call; `busy_s`:
    seconds in which any kernel ran, default: sum of `categories`; `products`: categories to which the floor applies."""
    kernels = () if call.on_cpu else call.cell.kernels
    phase = Phase(
        by="cpu" if call.on_cpu else "device",
        is_decode=False,
        tokens=1,
        busy_s=sum(categories.values()) if busy_s is None else busy_s,
        categories=categories,
        kernels=tuple(Kernel(**dict(kernel)) for kernel in kernels),
        profiled_s=None,
    )
    return Timed(
        record=call.record,
        phase=phase,
        total_s=call.latency_s,
        cell=call.key,
        floor=floor,
        notes=tuple(notes),
        form=call.record.form,
        floors=FLOORS,
        products=products,
        advice=advice,
    )


def kernels_note(kernels: Sequence[SeenKernel]) -> list[str]:
    """Return a sentence on the longest kernels of the profiled call; empty without kernels."""
    names = [f"{kernel_code(kernel.name)} {ms(kernel.total_s)}" for kernel in kernels]
    return [f"one profiled call ran {abridged(names, SHOWN_KERNELS)}"] if kernels else []


def length_of(row: Row) -> int:
    return int(row.cell["seq_len"]) if row.cell else 0


class LengthSeries(NamedTuple):
    label: str
    keys: tuple[CellKey, ...]
    has_one_batch_size: bool


def length_series(keys: Sequence[CellKey]) -> list[LengthSeries]:
    """Return, for each mode, the series of two or more lengths with equal batch size or equal tokens per batch."""
    series: list[LengthSeries] = []
    for mode in sorted({key["mode"] for key in keys}):
        members: dict[tuple[str, bool], list[CellKey]] = defaultdict(list)
        for key in sorted({key for key in keys if key["mode"] == mode}):
            members[f"batch of {key['batch_size']}", True].append(key)
            members[f"{key['batch_size'] * key['seq_len']:,} tokens", False].append(key)
        covered: set[CellKey] = set()
        for (size, is_batch), of_size in sorted(members.items(), key=lambda entry: not entry[0][1]):
            if len(of_size) > 1 and (is_batch or not covered.issuperset(of_size)):
                series.append(LengthSeries(f"{mode_text(mode)}, {size}", tuple(of_size), is_batch))
                covered.update(of_size if is_batch else ())
    return series
