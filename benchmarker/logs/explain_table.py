"""What a printed profiler table says by itself, with no record and no trace beside it.

It has kernel time by row and its total. It has no gaps between kernels, does not tell prefill and decode apart, and all
of it was measured with the profiler on; so a busy share from it is of the *profiled* span, and is no verdict.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarker.explain.phases import table_conversion, table_phase, unpacking
from benchmarker.explain.values import Bound, Conversion, Phase
from benchmarker.explain.verdict import bound_of_kernels
from benchmarker.profiling.printed_table import ProfilerTable, TableRow

LARGE_BYTES = 10 * 2**30
"""Operators that allocated less in all are not worth a line."""
SHOWN_ALLOCATIONS = 2
ENOUGH = 0.5
"""With less than this of the time listed, the rest could be anything."""


@dataclass(frozen=True)
class TableReport:
    """What one table says."""

    table: ProfilerTable
    phase: Phase
    """Kernel time by category, of the whole profiled generation as if it were one token."""
    span_s: float | None
    """Seconds from the first kernel to the last; None where no annotation in the table shows it."""
    bounds: tuple[Bound, ...]
    """What most of the kernels' time is for; two where they are as large, and none where too little of the time is
    listed, or how much is not known."""
    conversion: Conversion | None
    """The copy that converts each weight before it is multiplied; None where there is none."""
    repeated: float | None
    """Own device time of all rows over the total: above 1 where operators count their kernels again. None where the
    table has no total of the device."""
    allocations: tuple[TableRow, ...]
    """Operators that allocated most device memory, each with the operators that it called."""

    @property
    def busy_at_most(self) -> float | None:
        """Share of the profiled span in which kernels ran; with kernels on two streams at once it would be less."""
        return self.phase.busy_s / self.span_s if self.span_s else None

    @property
    def bound(self) -> str | None:
        """`dequantizing`, `matrix products and dequantizing`."""
        return ", ".join(self.bounds[:-1]) + " and " * (len(self.bounds) > 1) + self.bounds[-1] if self.bounds else None


def report_on(table: ProfilerTable) -> TableReport | None:
    """What the table says; None where it lists no time on a device, nor has columns of the processor alone."""
    phase = table_phase(table, tokens=1)
    if not phase.categories:
        return None
    conversion = table_conversion(table)
    own_s = sum(row.self_device_s or 0.0 for row in table.rows)
    return TableReport(
        table=table,
        phase=phase,
        span_s=table.span_s,
        bounds=bound_of_kernels(unpacking(phase, conversion)) if _is_enough(table) else (),
        conversion=conversion,
        repeated=own_s / table.device_s if table.device_s else None,
        allocations=_allocations(table),
    )


def _is_enough(table: ProfilerTable) -> bool:
    """Whether the rows that the table lists speak for all."""
    return table.known_total_s is not None and (table.not_listed_share or 0.0) <= 1 - ENOUGH


def _allocations(table: ProfilerTable) -> tuple[TableRow, ...]:
    large = [row for row in table.rows if row.kind == "operator" and (row.device_memory_bytes or 0) >= LARGE_BYTES]
    # A caller repeats what it called: of those with equal sums the one that was called least is nearest to the cause.
    nearest: dict[int | None, TableRow] = {}
    for row in sorted(large, key=lambda row: (-(row.self_device_memory_bytes or 0), row.calls)):
        nearest.setdefault(row.device_memory_bytes, row)
    largest = sorted(nearest.values(), key=lambda row: -(row.device_memory_bytes or 0))
    return tuple(largest[:SHOWN_ALLOCATIONS])
