"""Read tables that torch.profiler printed: `print(prof.key_averages().table())`, from a log or a bug report.

Any columns, times in one unit or each in its own, CUDA, XPU or another device, with a rank or a time before every line,
several tables in one text and anything around them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from benchmarker.core.errors import ResultsError
from benchmarker.core.log_text import lines_of
from benchmarker.profiling.printed_rows import with_kinds
from benchmarker.profiling.printed_values import ProfilerTable, TableRow

Line = tuple[int, str]
"""Its number in the text, from 1, and what it says after the rank."""

# torchrun `[rank0]:`, `[default0]:`; srun and mpirun `0: `, `[1,0]<stdout>:`; home-made `(rank 0)`, `rank 0 |`.
_RANK = re.compile(
    r"\s*(?:\[\d+,(?P<mpi>\d+)\]<std\w+>:|[\[(]\s*(?:default|rank|worker|gpu)?[\s_:=-]*(?P<bracket>\d+)\s*[\])]:?"
    r"|(?:default|rank|worker|gpu)[\s_:=-]*(?P<word>\d+)\s*[:|>]|(?P<bare>\d+): )",
    re.IGNORECASE,
)
_BETWEEN = re.compile(r"\s{2,}")
_TIME = re.compile(r"(-?[\d.]+)\s*(ns|us|μs|µs|ms|s)$")
_SIZE = re.compile(r"(-?[\d.]+)\s*([KMGTP]?)I?B$", re.IGNORECASE)
_TOTAL = re.compile(r"Self (\w+) time total:\s*(\S+)")
_EXPONENTS = {"ns": -9, "us": -6, "μs": -6, "µs": -6, "ms": -3, "s": 0}
_OF_A_TIME = re.compile(r"Self (\w+)$|(\w+) total$")
_FLOPS = re.compile(r"Total ([KMGTP]?)FLOPs$")
_PERCENT = re.compile(r"([\d.]+)\s*%$")
_CALLS = ("# of Calls", "Number of Calls")
# Below a table stand its two totals and nothing else of it.
_LINES_WITH_TOTALS = 4


@dataclass(frozen=True)
class _Layout:
    """Where a table's columns are."""

    line: int
    before: int
    """Characters in front of each of its lines, such as a time."""
    ends: tuple[int, ...]
    """Last character of each column, after those."""
    columns: tuple[str, ...]
    device: str | None


def read_tables(text: str) -> tuple[ProfilerTable, ...]:
    """All tables of a text, in their order. Empty where there is none.

    Raises:
        ResultsError: A table is cut short, or a line inside one is not a row of it.
    """
    tables = [table for rank, lines in _by_rank(text).items() for table in _tables(lines, rank)]
    return tuple(sorted(tables, key=lambda table: table.line))


def _by_rank(text: str) -> dict[int | None, list[Line]]:
    """Lines of several processes may be shuffled: those of each together."""
    ranks: dict[int | None, list[Line]] = {}
    for number, line in enumerate(lines_of(text), 1):
        found = _RANK.match(line)
        rank = int(next(filter(None, found.groups()))) if found else None
        ranks.setdefault(rank, []).append((number, line[found.end() :] if found else line))
    return ranks


def _tables(lines: Sequence[Line], rank: int | None) -> Iterator[ProfilerTable]:
    position = 0
    while position < len(lines):
        layout = _layout(lines[position : position + 2])
        if layout is None:
            position += 1
            continue
        end = _end(lines, position, layout)
        yield _table(lines[position : end + 1 + _LINES_WITH_TOTALS], end - position, layout, rank)
        position = end + 1


def _layout(lines: Sequence[Line]) -> _Layout | None:
    """Of the table that begins here: a rule, then the headings."""
    rule = _rule(lines[0][1])
    if rule is None or len(lines) < 2:
        return None
    before, ends = rule
    columns = tuple(_BETWEEN.split(lines[1][1][before:].strip()))
    if columns[0] != "Name" or not set(_CALLS) & set(columns):
        return None
    return _Layout(lines[0][0], before, ends, columns, _device(columns))


def _rule(line: str) -> tuple[int, tuple[int, ...]] | None:
    """Where a line of dashes begins, and where each of its runs of dashes ends, or None."""
    before = line.find("---")
    dashes = line[max(before, 0) :].rstrip()
    if before < 0 or set(dashes) != {"-", " "}:
        return None
    return before, tuple(found.end() for found in re.finditer("-+", dashes))


def _device(columns: Sequence[str]) -> str | None:
    names = (found[1] or found[2] for column in columns if (found := _OF_A_TIME.match(column)))
    return next((name for name in names if name != "CPU"), None)


def _end(lines: Sequence[Line], start: int, layout: _Layout) -> int:
    """Position of the rule below the rows."""
    # A rule below the headings, then one below the rows; one that begins the next table is neither.
    rules = list(islice((at for at in range(start, len(lines)) if _rule(lines[at][1])), 3))
    if len(rules) < 3 or rules[1] != start + 2 or any(_layout(lines[at : at + 2]) for at in rules[1:]):
        raise ResultsError(
            f"line {layout.line}: the profiler's table that begins here is cut short, so that its total is unknown; "
            f"get the whole log, or take these lines out"
        )
    return rules[2]


def _table(lines: Sequence[Line], end: int, layout: _Layout, rank: int | None) -> ProfilerTable:
    """One table.

    Args:
        lines: From its first rule to some lines after its last one.
        end: Position of the last one.
    """
    shown = [line[layout.before :].rstrip() for _, line in lines[: end + 1]]
    totals: dict[str, float | None] = {}
    for _, line in lines[end + 1 :]:
        found = _TOTAL.search(line)
        if found:
            totals[found[1]] = _time(found[2])
            shown.append(found[0])
    whose = layout.device or "CPU"
    is_printed = totals.get(whose) is not None
    if not is_printed:
        totals[whose] = _worked_out(lines[3:end], layout, whose)
    device_s = totals.get(layout.device or "")
    rows = [row for line in lines[3:end] if (row := _row(line, layout))]
    return ProfilerTable(
        line=layout.line,
        rank=rank,
        device=layout.device,
        rows=_without_twins(with_kinds(rows, device_s), layout),
        cpu_s=totals.get("CPU"),
        device_s=device_s,
        text="\n".join(shown) + "\n",
        is_total_printed=is_printed,
    )


def _without_twins(rows: Sequence[TableRow], layout: _Layout) -> tuple[TableRow, ...]:
    """The rows, where a compiled kernel and its operator of the same name differ in their CPU time alone.

    Without a column of that the two are the same row twice, and the first counts as the operator.
    """
    if {"Self CPU", "CPU total"} & set(layout.columns):
        return tuple(rows)
    pairs = ((row, row.kind == "kernel" and row in rows[at + 1 :]) for at, row in enumerate(rows))
    return tuple(replace(row, kind="operator") if is_twin else row for row, is_twin in pairs)


def _worked_out(lines: Sequence[Line], layout: _Layout, whose: str) -> float | None:
    """The total that the row with the largest percentage is that part of; None without such a column."""
    all_cells = (_cells(text[layout.before :], layout) or {} for _, text in lines)
    pairs = ((_percent(cells.get(f"Self {whose} %")), _time(cells.get(f"Self {whose}"))) for cells in all_cells)
    percent, own_s = max(((percent, own_s) for percent, own_s in pairs if percent and own_s), default=(0.0, 0.0))
    return 100 * own_s / percent if percent else None


def _row(line: Line, layout: _Layout) -> TableRow | None:
    """A row, or None for a line that only goes on with the one above (a call stack) or is of someone else."""
    number, text = line
    cells = _cells(text[layout.before :], layout)
    if cells is None:
        return None
    device = layout.device
    calls = cells.get(_CALLS[0]) or cells.get(_CALLS[1]) or ""
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


def _cells(text: str, layout: _Layout) -> dict[str, str] | None:
    """The cells of a row by column: split at the gaps, or by position where a cell is empty."""
    parts = _BETWEEN.split(text.strip())
    if len(parts) < 3:
        return None
    if len(parts) != len(layout.columns):
        starts = (0, *layout.ends)
        parts = [text[start:end].strip() for start, end in zip(starts, layout.ends, strict=False)]
    return dict(zip(layout.columns, parts, strict=False))


def _time(text: str | None) -> float | None:
    """Seconds."""
    found = _TIME.match(text or "")
    # Read as one decimal number, 136.484ms is exactly what 0.136484 is.
    return float(f"{found[1]}e{_EXPONENTS[found[2]]}") if found else None


def _flops(cells: dict[str, str]) -> float | None:
    """Of the column `Total MFLOPs`, or with another prefix; torch prints two dashes where it has none."""
    for column, text in cells.items():
        found = _FLOPS.match(column)
        if found and text.strip("-"):
            return float(text) * 10.0 ** (3 * " KMGTP".index(found[1] or " "))
    return None


def _percent(text: str | None) -> float | None:
    found = _PERCENT.match(text or "")
    return float(found[1]) if found else None


def _size(text: str | None) -> int | None:
    """Bytes; torch's GB are 2^30."""
    found = _SIZE.match(text or "")
    return round(float(found[1]) * 1024 ** " KMGTP".index(found[2].upper() or " ")) if found else None
