"""Reading of the records of operations: the profiled call for an explanation, and series of lengths."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarker.comparison.results import make_row
from benchmarker.comparison.rows import CellKey, Row, cell_of, keys_of
from benchmarker.core.formatting import abridged
from benchmarker.explain.values import Bound, Floor, Phase, code, ms
from benchmarker.explain.verdict import always
from benchmarker.explain.waterfall import Case, Timed
from benchmarker.profiling.categories import CATEGORIES, Category
from benchmarker.schema.record import Kernel, RunRecord
from benchmarker.workloads.operation.record import SeenKernel

SHOWN_KERNELS = 3
FLOORS = {"bytes": "moving data at the measured bandwidth", "flops": "products at the measured matmul rate"}
CALL_ADVICE: Mapping[Bound, Callable[[Case], str]] = {
    "host": always("Larger batches or longer sequences fill the device; a captured graph saves the launches."),
    "slow products": always("Another kernel for the same work helps, if a row here is faster."),
}


@dataclass(frozen=True)
class LargestCall:
    """Call of the largest cell that was measured."""

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
    """Return the call of the largest measured cell that can be explained."""
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
    advice: Mapping[Bound, Callable[[Case], str]] = CALL_ADVICE,
) -> Timed:
    """Return the call for an explanation.

    Args:
        categories: Seconds of the profiled call by category of kernels.
        busy_s: Seconds in which a kernel ran; by default the sum of the categories.
        products: Categories of kernels to which the floor applies.
    """
    kernels: Sequence[SeenKernel] = () if call.on_cpu else call.cell.kernels
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
    names = [f"{code(kernel.name)} {ms(kernel.total_s)}" for kernel in kernels]
    return [f"one profiled call ran {abridged(names, SHOWN_KERNELS)}"] if kernels else []


@dataclass(frozen=True)
class LengthSeries:
    """Cells of several lengths with one batch size, or with one number of tokens."""

    label: str
    keys: tuple[CellKey, ...]
    has_one_batch_size: bool


def length_series(keys: Sequence[CellKey], *, mode_text: Callable[[str], str]) -> list[LengthSeries]:
    """Return the series of two lengths or more, by mode. A series of one number of tokens must add a cell."""
    series: list[LengthSeries] = []
    for mode in sorted({key["mode"] for key in keys}):
        by_batch: dict[int, list[CellKey]] = defaultdict(list)
        by_tokens: dict[int, list[CellKey]] = defaultdict(list)
        for key in sorted({key for key in keys if key["mode"] == mode}):
            by_batch[key["batch_size"]].append(key)
            by_tokens[key["batch_size"] * key["seq_len"]].append(key)
        label = mode_text(mode)
        of_batches = [
            LengthSeries(f"{label}, batch of {size}", tuple(members), has_one_batch_size=True)
            for size, members in by_batch.items()
            if len(members) > 1
        ]
        covered = {key for line in of_batches for key in line.keys}
        series += of_batches
        series += [
            LengthSeries(f"{label}, {tokens:,} tokens", tuple(members), has_one_batch_size=False)
            for tokens, members in by_tokens.items()
            if len(members) > 1 and not covered.issuperset(members)
        ]
    return series
