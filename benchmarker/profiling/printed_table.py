"""Read tables that torch.profiler printed: `print(prof.key_averages().table())`, from a log or a bug report.

Any columns, times in one unit or each in its own, CUDA, XPU or another device, several tables in one text and anything
around them. Where a table's lines are is told in `printed_layout`. A table whose end is missing has no line with its
total; the total then follows from a row's own percentage.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from benchmarker.core.errors import ResultsError
from benchmarker.profiling.printed_layout import Layout, Line, by_process, layouts, title_above
from benchmarker.profiling.printed_rows import with_kinds
from benchmarker.profiling.printed_values import ProfilerTable, TableRow

_TIME = re.compile(r"(-?[\d.]+)\s*(ns|us|μs|µs|ms|s)$")
_SIZE = re.compile(r"(-?[\d.]+)\s*([KMGTP]?)I?B$", re.IGNORECASE)
_TOTAL = re.compile(r"Self (\w+) time total:\s*(\S+)")
_EXPONENTS = {"ns": -9, "us": -6, "μs": -6, "µs": -6, "ms": -3, "s": 0}
_FLOPS = re.compile(r"Total ([KMGTP]?)FLOPs$")
_PERCENT = re.compile(r"([\d.]+)\s*%$")
# Below a table stand its two totals and nothing else of it; in markdown after a blank line.
_LINES_WITH_TOTALS = 4


def read_tables(text: str) -> tuple[ProfilerTable, ...]:
    """All tables of a text, in their order. Empty where there is none.

    Raises:
        ResultsError: A table is cut before its first row, or a line inside one is not a row of it.
    """
    processes = by_process(text).items()
    tables = [table for (rank, _), lines in processes for table in _tables(lines, rank)]
    return tuple(sorted(tables, key=lambda table: table.line))


def _tables(lines: Sequence[Line], rank: int | None) -> Iterator[ProfilerTable]:
    begins = [(layout, end, is_whole) for layout, end, is_whole in layouts(lines)]
    for layout, end, is_whole in begins:
        below = lines[end : end + 1 + _LINES_WITH_TOTALS]
        if any(later.line > layout.line for later, _, _ in begins):
            following = min(later.line for later, _, _ in begins if later.line > layout.line)
            below = [line for line in below if line[0] < following]
        yield _table(lines, end, below, layout, rank=rank, is_whole=is_whole)


def _table(
    lines: Sequence[Line], end: int, below: Sequence[Line], layout: Layout, *, rank: int | None, is_whole: bool
) -> ProfilerTable:
    """One table.

    Args:
        lines: All of its process.
        end: Position after its last row.
        below: What follows its rows: a rule and its totals, where it is whole.
    """
    inside = lines[layout.rows_from : end]
    table_lines = [text[layout.before :].rstrip() for number, text in lines[:end] if number >= layout.line]
    table_lines += [text[layout.before :].rstrip() for _, text in below[:1] if is_whole and layout.ends]
    totals: dict[str, float | None] = {}
    for _, text in below:
        total = _TOTAL.search(text)
        if total:
            totals[total[1]] = _time(total[2])
            table_lines.append(total[0])
    whose = layout.device or "CPU"
    is_printed = totals.get(whose) is not None
    if not is_printed:
        totals[whose] = _worked_out(inside, layout, whose)
    device_s = totals.get(layout.device or "")
    rows = [row for line in inside if (row := _row(line, layout))]
    return ProfilerTable(
        line=layout.line,
        rank=rank,
        device=layout.device,
        rows=_without_twins(with_kinds(rows, device_s), layout),
        cpu_s=totals.get("CPU"),
        device_s=device_s,
        text="\n".join(table_lines) + "\n",
        is_total_printed=is_printed,
        is_whole=is_whole,
        title=title_above(lines, layout),
    )


def _without_twins(rows: Sequence[TableRow], layout: Layout) -> tuple[TableRow, ...]:
    """The rows, where a compiled kernel and its operator of the same name differ in their CPU time alone.

    Without a column of that the two are the same row twice, and the first counts as the operator.
    """
    if {"Self CPU", "CPU total"} & set(layout.columns):
        return tuple(rows)
    pairs = ((row, row.kind == "kernel" and row in rows[position + 1 :]) for position, row in enumerate(rows))
    return tuple(replace(row, kind="operator") if is_twin else row for row, is_twin in pairs)


def _worked_out(lines: Sequence[Line], layout: Layout, whose: str) -> float | None:
    """The total that the row with the largest percentage is that part of; None without such a column."""
    all_cells = (layout.cells(text) or {} for _, text in lines)
    pairs = ((_percent(cells.get(f"Self {whose} %")), _time(cells.get(f"Self {whose}"))) for cells in all_cells)
    percent, own_s = max(((percent, own_s) for percent, own_s in pairs if percent and own_s), default=(0.0, 0.0))
    return 100 * own_s / percent if percent else None


def _row(line: Line, layout: Layout) -> TableRow | None:
    """A row, or None for a line that only goes on with the one above (a call stack) or is of someone else."""
    number, text = line
    cells = layout.cells(text)
    if cells is None:
        return None
    device = layout.device
    calls = layout.calls(cells)
    has_time = any(_time(cell) is not None for column, cell in cells.items() if column != "Name")
    if not calls.isdecimal() or not has_time:
        raise ResultsError(
            f"line {number}: not a row of the profiler's table that begins in line {layout.line}; take the line out"
        )
    return TableRow(
        name=cells["Name"],
        kind="unclear",
        calls=int(calls),
        self_cpu_s=_time(cells.get("Self CPU")),
        cpu_total_s=_time(cells.get("CPU total")),
        self_device_s=_time(cells.get(f"Self {device}")),
        device_total_s=_time(cells.get(f"{device} total")),
        device_memory_bytes=_size(cells.get(f"{device} Mem")),
        self_device_memory_bytes=_size(cells.get(f"Self {device} Mem")),
        flops=_flops(cells),
    )


def _time(text: str | None) -> float | None:
    """Seconds."""
    match = _TIME.match(text or "")
    # Read as one decimal number, 136.484ms is exactly what 0.136484 is.
    return float(f"{match[1]}e{_EXPONENTS[match[2]]}") if match else None


def _flops(cells: dict[str, str]) -> float | None:
    """Of the column `Total MFLOPs`, or with another prefix; torch prints two dashes where it has none."""
    for column, text in cells.items():
        match = _FLOPS.match(column)
        if match and text.strip("-"):
            return float(text) * 10.0 ** (3 * " KMGTP".index(match[1] or " "))
    return None


def _percent(text: str | None) -> float | None:
    match = _PERCENT.match(text or "")
    return float(match[1]) if match else None


def _size(text: str | None) -> int | None:
    """Bytes; torch's GB are 2^30."""
    match = _SIZE.match(text or "")
    return round(float(match[1]) * 1024 ** " KMGTP".index(match[2].upper() or " ")) if match else None
