"""Reader of the tables that `print(prof.key_averages().table())` prints, from a log, a README or a bug report.

Pasted tables have lost their layout: a logger's prefix on every line, lines wrapped at a terminal's width, single
spaces, markdown, no headings or lines of dashes. So cells are recognized by their types and order, not by position:

    aten::mm    6.58%  134.363ms  9.33%  190.676ms  20.547us  424.475ms  84.88%  424.531ms  45.747us  9280
    name        percent  time     percent  time      time       time     percent   time      time     count

Lines of several processes may be interleaved. The text before the headings, in which times vary, identifies a process.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from benchmarker.core.errors import ResultsError
from benchmarker.core.tables import lines_of
from benchmarker.profiling import printed_layout as layout
from benchmarker.profiling.printed_table import ProfilerTable, TableRow, complete_table, merged

_TOTAL = re.compile(r"(?:Self )?(\w+) time total:\s*(-?[\d.,]+\s?[a-zμµ]+)")
_STACK = re.compile(r"[\s|]{10,}|.*\(\d+\): |\s*(?:nn\.Module|<built-in|<\w+ )|(?:[\s|]*\|)?\s*$")
_RULE = re.compile(r"(.*?)([\s|]*)-{3,}[-\s]*$")
_FENCE = re.compile(r"\s*(?:```|~~~)")
_BOX = str.maketrans(
    {**dict.fromkeys("│┃║", "|"), **dict.fromkeys("─━═", "-"), **dict.fromkeys("┡╇┩┏┳┓└┴┘├┼┤╞╪╡", "|")}
)
_LONGEST_LINE = 20_000
_MOST_ROWS = 300  # Maximum number of lines from the first row to the total of a table without headings.
_HEADLESS_PIECES = 6
_MISSES = 12  # Number of consecutive lines without a row that end a table without a closing rule.
_LONGEST_TITLE = 60


@dataclass
class _PrintedTable:
    line: int
    columns: tuple[layout.Column, ...]
    is_markdown: bool = False
    is_cut: bool = False  # True if the columns on the right are missing.
    rows: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    foreign: list[int] = field(default_factory=list)
    totals: dict[str, float | None] = field(default_factory=dict)
    is_whole: bool = False

    def __post_init__(self) -> None:
        cells = "".join(
            (" " if position == 0 or column.kind == "flops" else " ?") + f"({layout.CELL_TYPES[column.kind]})"
            for position, column in enumerate(self.columns)
        )
        self._pattern = re.compile(rf"(.*?){cells}{'(?:.*)' if self.is_cut else ''} ?$")
        self.names = ("Name", *(column.name for column in self.columns))
        self._times = sum(column.kind == "time" for column in self.columns)

    def cells(self, text: str) -> dict[str, str] | None:
        """Return the cells by column; None for a line that is not a row."""
        if len(text) > _LONGEST_LINE or len(layout.TIME.findall(text)) < self._times:
            return None
        parts: list[str] = []
        if self.is_markdown:
            bars = re.split(r"(?<!\\)\|", re.sub(r"^[\s|]*|\|\s*$", "", text))
            parts, text = [cell.strip() for cell in bars], text.replace("|", " ")
        extra = len(parts) - len(self.names)
        if extra >= 0:
            values = dict(zip(self.names, ["|".join(parts[: extra + 1]), *parts[extra + 1 :]], strict=True))
            return values if layout.CALLS not in values or values[layout.CALLS].replace(",", "").isdecimal() else None
        match = self._pattern.match(" ".join(text.lstrip("| \t").split()))
        return dict(zip(self.names, match.groups(), strict=True)) if match else None


def read_tables(text: str) -> tuple[ProfilerTable, ...]:
    """Read all tables of a text. Tables of one profile in several sort orders are merged. Raises ResultsError."""
    tables = [
        table for prefix, lines in _by_process(lines_of(text.translate(_BOX))) for table in _tables(prefix, lines)
    ]
    return merged(sorted(tables, key=lambda table: table.line))


def _by_process(lines: Sequence[str]) -> Iterator[tuple[layout.Prefix, list[layout.Line]]]:
    """Yield the lines of each process; a line without a prefix continues the line above it."""
    prefixes: dict[str, layout.Prefix] = {}
    for index, line in enumerate(lines):
        if (begin := layout.heading_begin(line)) is not None:
            nearby = map(_RULE.match, lines[max(0, index - layout.PIECES) : index + layout.PIECES])
            rules = [match for match in nearby if match and (match[1].strip("- ") or not match[1])]
            # A terminal may have wrapped the headings before `Name`.
            texts = [line[:begin].strip(" |"), *(match[1] for match in rules)]
            prefix = layout.prefix_before(next(filter(None, texts), ""), lines[index + 1 : index + 41], rules)
            prefixes.setdefault(prefix.pattern.pattern, prefix)
    for index, line in enumerate([] if prefixes else lines):
        if total := _TOTAL.search(line):
            rules = list(filter(None, map(_RULE.match, lines[max(0, index - layout.PIECES) : index])))
            prefix = layout.prefix_before(line[: total.start()], lines[max(0, index - 40) : index], rules)
            prefixes.setdefault(prefix.pattern.pattern, prefix)
    if not prefixes:
        prefixes[""] = layout.prefix_before("", (), ())
    groups: dict[str, list[layout.Line]] = {key: [] for key in prefixes}
    longest_first = sorted(prefixes, key=len, reverse=True)
    current = next(iter(prefixes))
    for number, line in enumerate(lines, 1):
        matches = ((key, prefixes[key].pattern.match(line)) for key in longest_first)
        first = next(((key, match) for key, match in matches if match), None)
        current, begin = (first[0], first[1].end()) if first else (current, 0)
        if line[begin:].strip():
            groups[current].append(layout.Line(number, line, begin))
    return ((prefixes[key], group) for key, group in groups.items())


def _tables(prefix: layout.Prefix, lines: Sequence[layout.Line]) -> Iterator[ProfilerTable]:
    position = above = 0
    totals = [index for index, line in enumerate(lines) if "time total" in line.body]
    while position < len(lines):
        begun = _heading(lines, position)
        if begun is None and "%" in lines[position].body:
            # Without headings, lines with a percentage are rows if a total follows.
            nearest = bisect_right(totals, position)
            if nearest < len(totals) and totals[nearest] - position <= _MOST_ROWS:
                begun = _headless(lines, position)
        if begun is None:
            position += 1
            continue
        printed, first_row = begun
        end = _read_rows(printed, lines, first_row, max(len(line.raw) for line in lines[position : position + 40]))
        if printed.rows or printed.is_whole:
            yield _finished(printed, prefix, _title(lines[above:position], printed.line))
        elif len(printed.columns) >= 2 and first_row > position + 1:
            raise ResultsError(
                f"line {printed.line}: the profiler's table that begins here is cut before its first row; "
                "get the whole log, or take these lines out"
            )
        position = above = max(end, first_row)


def _heading(lines: Sequence[layout.Line], position: int) -> tuple[_PrintedTable, int] | None:
    """Return the table whose headings begin at a position, and the position of its first row; else None."""
    has_rule = _dashes(lines[position].body) > 0
    at = position + has_rule
    if at >= len(lines) or (begin := layout.heading_begin(lines[at].body)) is None:
        return None
    text, end = lines[at].body[begin:].rstrip(), at + 1
    columns, rest = layout.columns_of(text[len("Name") :])
    while end < len(lines) and not _dashes(lines[end].body) and not re.search(r"\d", lines[end].body):
        best = max((text + glue + lines[end].body.rstrip() for glue in ("", " ")), key=layout.join_score)
        more, rest_of_more = layout.columns_of(best[len("Name") :])
        if len(more) <= len(columns):
            break
        text, columns, rest, end = best, more, rest_of_more, end + 1
    opening = [lines[position].body.rstrip()] if has_rule else []
    heading = lines[at].body.rstrip() if end == at + 1 else text
    text_lines, runs = [*opening, heading], 0
    # A second whole rule is the end of a table without rows.
    while (
        end < len(lines) and (more_runs := _dashes(lines[end].body)) and not (runs > len(columns) and more_runs == runs)
    ):
        text_lines += [lines[end].body.rstrip()] if not runs else []
        runs, end = runs + more_runs, end + 1
    if layout.CALLS not in (column.name for column in columns):
        columns = layout.typed_columns(lines[end : end + layout.PIECES], text) or columns
    is_cut = layout.CALLS not in (column.name for column in columns) or bool(rest)
    return _PrintedTable(lines[position].number, columns, "|" in text, is_cut, text=text_lines), end


def _headless(lines: Sequence[layout.Line], position: int) -> tuple[_PrintedTable, int] | None:
    printed = _PrintedTable(
        lines[position].number, layout.typed_columns(lines[position : position + _HEADLESS_PIECES], "")
    )
    if layout.CALLS not in printed.names:
        return None
    width = max(len(line.raw) for line in lines[position : position + layout.PIECES])
    first = _row(printed, lines, position, width)
    return (printed, position) if first and _row(printed, lines, first[2], width) else None


def _read_rows(printed: _PrintedTable, lines: Sequence[layout.Line], position: int, width: int) -> int:
    """Read rows and totals, and return the position after them. A row may be wrapped at the width of a terminal."""
    end, waiting = position, 0
    foreign: list[int] = []
    while position < len(lines) and waiting < _MISSES:
        body = lines[position].body
        following = lines[position + 1].body if position + 1 < len(lines) else ""
        total = _TOTAL.search(body)
        if total is None and len(lines[position].raw) == width and (total := _TOTAL.match(body + following)):
            position += 1
        if total:
            printed.totals[total[1]] = time_s(total[2])
            printed.text.append(total[0])
            printed.is_whole = printed.is_whole or bool(printed.rows)
            end, waiting = position + 1, max(waiting, _MISSES - 3)
        elif printed.totals or _heading(lines, position):
            break
        elif _dashes(body) and not printed.is_whole:
            printed.is_whole = _dashes(body) > 1 and not printed.is_markdown
            printed.text += [body.rstrip()] if printed.is_whole else []
            end, waiting = (position + 1, _MISSES - 5) if printed.is_whole else (end, waiting + 1)
        elif row := None if printed.is_whole else _row(printed, lines, position, width):
            cells, text, end = row
            printed.rows.append((lines[position].number, cells))
            printed.text.append(text)
            printed.foreign += foreign
            foreign, waiting, position = [], 0, end - 1
        elif not _STACK.match(body) and not _FENCE.match(body) and not _dashes(body):
            foreign.append(lines[position].number)
            waiting += 1
        position += 1
    printed.is_whole = printed.is_whole or (printed.is_markdown and bool(printed.rows))
    return end


def _row(
    printed: _PrintedTable, lines: Sequence[layout.Line], position: int, width: int
) -> tuple[dict[str, str], str, int] | None:
    first = lines[position]
    row = printed.cells(first.body)
    found_row = (row, first.body.rstrip(), position + 1) if row is not None else None
    has_cell = re.search(r"\d\s?(?:%|[nuμµm]?s\b)", first.body)
    is_continued = first.begin > 0 and any(line.begin == 0 for line in lines[position + 1 : position + 2])
    if row is None and len(first.raw) < width and not has_cell and not is_continued:
        return None
    padded, plain = first.raw.ljust(width)[first.begin :], first.body
    for end in range(position + 1, min(position + layout.PIECES, len(lines))):
        line = lines[end]
        is_full = len(lines[end - 1].raw) == width
        if (found_row and not is_full) or _dashes(line.body) or _TOTAL.search(line.body) or printed.cells(line.body):
            break
        padded, plain = padded + line.raw.ljust(width)[line.begin :], plain + line.body
        texts = ((text.rstrip(), printed.cells(text)) for text in (padded, plain))
        longer = next(((cells, text, end + 1) for text, cells in texts if cells is not None), None)
        if found_row and not longer:
            break
        found_row = longer or found_row
    return found_row


def _finished(printed: _PrintedTable, prefix: layout.Prefix, title: str | None) -> ProfilerTable:
    names = [match[1] for column in printed.columns if (match := re.match(r"(?:Self )?(\w+)(?: total)?$", column.name))]
    device = next((name for name in names if name not in ("CPU", "Calls")), None)
    total_device = next((name for name in printed.totals if name != "CPU"), None)
    rows = [_table_row(cells, device) for _, cells in printed.rows]
    own = f"Self {device or 'CPU'}"
    if own not in (column.name for column in printed.columns):
        rows = _innermost(rows, on_device=device is not None)
    total_s = printed.totals.get((total_device or "") if device else "CPU")
    is_printed = total_s is not None
    if total_s is None:
        # The total follows from the row with the largest percentage.
        shares = ((_number(cells.get(f"{own} %")), time_s(cells.get(own))) for _, cells in printed.rows)
        percent, own_s = max(((percent, own_s) for percent, own_s in shares if percent and own_s), default=(0.0, 0.0))
        total_s = 100 * own_s / percent if percent > 0 else None
    return complete_table(
        ProfilerTable(
            line=printed.line,
            rank=prefix.rank,
            process=prefix.process,
            device=total_device if device and total_device else device,
            rows=tuple(rows),
            cpu_s=printed.totals.get("CPU") if device else total_s,
            device_s=total_s if device else None,
            text="\n".join(printed.text) + "\n",
            is_total_printed=is_printed,
            is_whole=printed.is_whole,
            title=title,
            foreign_lines=tuple(printed.foreign),
        )
    )


def _table_row(cells: dict[str, str], device: str | None) -> TableRow:
    calls = cells.get(layout.CALLS, "").replace(",", "")
    total_s, mean_s = (time_s(cells.get(f"{device or 'CPU'} {what}")) for what in ("total", "time avg"))
    return TableRow(
        name=cells["Name"].strip().strip("`").replace("\\|", "|"),
        kind="unclear",
        calls=int(calls) if calls else round(total_s / mean_s) if total_s and mean_s else 1,
        self_cpu_s=time_s(cells.get("Self CPU")),
        cpu_total_s=time_s(cells.get("CPU total")),
        self_device_s=time_s(cells.get(f"Self {device}")),
        device_total_s=time_s(cells.get(f"{device} total")),
        device_memory_bytes=_bytes(cells.get(f"{device} Mem")),
        self_device_memory_bytes=_bytes(cells.get(f"Self {device} Mem")),
    )


def _innermost(rows: Sequence[TableRow], *, on_device: bool) -> list[TableRow]:
    """Return rows with own times, derived from total times: of nested rows with equal calls, the last gets all."""
    totals = [(row.device_total_s if on_device else row.cpu_total_s) or 0.0 for row in rows]
    with_times: list[TableRow] = []
    for index, (row, total_s) in enumerate(zip(rows, totals, strict=True), 1):
        below = zip(rows[index:], totals[index:], strict=True)
        inner = [inner_s for inner_row, inner_s in below if inner_row.calls == row.calls and inner_s]
        own_s = 0.0 if any(0.9 * total_s <= inner_s <= total_s for inner_s in inner) else total_s
        with_times.append(replace(row, self_device_s=own_s) if on_device else replace(row, self_cpu_s=own_s))
    return with_times


def _title(above: Sequence[layout.Line], number: int) -> str | None:
    for line in reversed([line for line in above if line.number >= number - 4]):
        title = re.sub(r"<[^>]*>", "", line.body).strip("=-#* :>`|\t\n")
        if title and not _FENCE.match(line.body) and not _dashes(line.body):
            return title if len(title) <= _LONGEST_TITLE and "time total" not in title else None
    return None


def _dashes(text: str) -> int:
    return len(re.findall("-{2,}", text)) if "---" in text and not set(text) - set("-+|:= \t\r") else 0


_EXPONENTS = {"ns": -9, "us": -6, "μs": -6, "µs": -6, "ms": -3, "s": 0}


def time_s(text: str | None) -> float | None:
    """Return the seconds of a cell such as `136.484ms`, exact as a decimal; None for any other cell."""
    match = re.match(r"\s*(-?[\d.,]+)\s*(ns|us|μs|µs|ms|s)\s*$", text or "")
    return float(f"{match[1].replace(',', '')}e{_EXPONENTS[match[2]]}") if match else None


def _number(text: str | None) -> float | None:
    match = re.match(r"\s*(-?[\d.,]+)", text or "")
    return float(match[1].replace(",", "")) if match else None


def _bytes(text: str | None) -> int | None:
    """Return the bytes of a cell such as `4.81 GB`; torch's units are powers of 1024."""
    match = re.match(r"\s*(-?[\d.]+)\s*([KMGTP]?)i?b\s*$", text or "", re.IGNORECASE)
    return round(float(match[1]) * 1024 ** " KMGTP".index(match[2].upper() or " ")) if match else None
