"""Find the tables of torch.profiler in a text: whose lines they are, where each begins and ends, where its columns are.

A pasted table may lack its opening rule or its end, may be a markdown table, and may have something before each of its
lines: a rank, a host's name, a time, a quotation mark.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarker.core.errors import ResultsError
from benchmarker.core.terminal_text import lines_of

Line = tuple[int, str]
"""Its number in the text, from 1, and what it says after the rank."""

# torchrun `[rank0]:`, `[default0]:`; srun and mpirun `0: `, `[1,0]<stdout>:`; home-made `(rank 0)`, `rank 0 |`.
# pdsh and clush put the host's name there: `g43: `.
_PREFIX = re.compile(
    r"\s*(?:\[\d+,(?P<mpi>\d+)\]<std\w+>:|[\[(]\s*(?:default|rank|worker|gpu)?[\s_:=-]*(?P<bracket>\d+)\s*[\])]:?"
    r"|(?:default|rank|worker|gpu)[\s_:=-]*(?P<word>\d+)\s*[:|>]|(?P<bare>\d+): |(?P<host>[A-Za-z][\w.-]*\d): )",
    re.IGNORECASE,
)
_BETWEEN = re.compile(r"\s{2,}")
_BAR = re.compile(r"(?<!\\)\|")
_OF_A_TIME = re.compile(r"Self (\w+)$|(\w+) total$")
_CALLS = ("# of Calls", "Number of Calls")
_LINES_ABOVE = 3
_LONGEST_TITLE = 60


@dataclass(frozen=True)
class Layout:
    """Where a table's columns are."""

    line: int
    """Number of the table's first line."""
    before: int
    """Characters in front of each of its lines, such as a time."""
    ends: tuple[int, ...]
    """Last character of each column, after those. Empty for a markdown table."""
    columns: tuple[str, ...]
    rows_from: int
    """Position of the first row."""

    @property
    def device(self) -> str | None:
        """As the columns call it; None for a table of the CPU alone."""
        names = (match[1] or match[2] for column in self.columns if (match := _OF_A_TIME.match(column)))
        return next((name for name in names if name != "CPU"), None)

    def cells(self, line: str) -> dict[str, str] | None:
        """The cells of a row by column; None for a line that is no row at all, such as one of a call stack."""
        text = line[self.before :]
        if not self.ends:
            return dict(zip(self.columns, _bars(text), strict=False)) if _BAR.search(text) else None
        parts = _BETWEEN.split(text.strip())
        if len(parts) < 3:
            return None
        if len(parts) != len(self.columns):
            # By position, where a cell is empty.
            starts = (0, *self.ends)
            parts = [text[start:end].strip() for start, end in zip(starts, self.ends, strict=False)]
        return dict(zip(self.columns, parts, strict=False))

    def calls(self, cells: dict[str, str]) -> str:
        """The cell with the number of calls."""
        return next((cells[name] for name in _CALLS if name in cells), "")


def by_process(text: str) -> dict[tuple[int | None, str], list[Line]]:
    """Lines of several processes may be shuffled: those of each together, by its rank and host."""
    processes: dict[tuple[int | None, str], list[Line]] = {}
    for number, line in enumerate(lines_of(text), 1):
        prefix = _PREFIX.match(line)
        groups = prefix.groupdict() if prefix else {}
        host = groups.pop("host", None) or ""
        rank = next((int(digits) for digits in groups.values() if digits), None)
        processes.setdefault((rank, host), []).append((number, line[prefix.end() :] if prefix else line))
    return processes


def layouts(lines: Sequence[Line]) -> Iterator[tuple[Layout, int, bool]]:
    """Each table's layout, the position after its last row, and whether it is whole: a rule, or the next line of a
    markdown document, ends it.

    Raises:
        ResultsError: A table is cut before its first row.
    """
    position = 0
    while position < len(lines):
        layout = _layout(lines, position)
        if layout is None:
            position += 1
            continue
        end, is_whole = _end(lines, layout)
        if end <= layout.rows_from and not is_whole:
            raise ResultsError(
                f"line {layout.line}: the profiler's table that begins here is cut before its first row; "
                "get the whole log, or take these lines out"
            )
        yield layout, end, is_whole
        position = max(end, layout.rows_from)


def title_above(lines: Sequence[Line], layout: Layout) -> str | None:
    """The nearest line above a table, as people write one to say what was profiled."""
    above = [text.strip() for number, text in lines if layout.line - _LINES_ABOVE <= number < layout.line]
    title = next((text.strip("=-#* :>`|") for text in reversed(above) if text.strip("=-#* :>`|")), "")
    return title if 0 < len(title) <= _LONGEST_TITLE and "time total" not in title else None


def _layout(lines: Sequence[Line], position: int) -> Layout | None:
    """Of the table whose headings stand at this position, or below the rule that does."""
    has_opening = position + 1 < len(lines) and _rule(lines[position][1]) is not None
    headings = lines[position + has_opening]
    if not any(name in headings[1] for name in _CALLS):
        return None
    after = position + has_opening + 1
    rule = _rule(lines[after][1]) if after < len(lines) else None
    if rule is not None:
        before, ends = rule
        columns = tuple(_BETWEEN.split(headings[1][before:].strip()))
    elif after < len(lines) and _is_markdown_rule(lines[after][1]):
        before, ends = headings[1].find("|"), ()
        columns = tuple(_bars(headings[1][before:]))
    elif has_opening:
        before, ends, columns = 0, (), tuple(_BETWEEN.split(headings[1].strip()))
    else:
        return None
    if columns[0].split()[-1:] != ["Name"] or not set(_CALLS) & set(columns):
        return None
    return Layout(lines[position][0], before, ends, ("Name", *columns[1:]), after + 1)


def _end(lines: Sequence[Line], layout: Layout) -> tuple[int, bool]:
    """Position after the last row, and whether the table is whole."""
    if layout.ends:
        for position in range(layout.rows_from, len(lines)):
            rule = _rule(lines[position][1])
            if _layout(lines, position) is not None:
                break
            if rule is not None and len(rule[1]) == len(layout.ends):
                return position, True
    end = layout.rows_from
    while end < len(lines) and _is_row_or_stack(lines[end][1], layout) and _layout(lines, end) is None:
        end += 1
    return end, not layout.ends and end > layout.rows_from


def _is_row_or_stack(line: str, layout: Layout) -> bool:
    """Whether a line goes on with a table whose end is missing: a whole row, or a line of a row's call stack."""
    cells = layout.cells(line)
    if cells is None:
        return bool(layout.ends) and line[layout.before :].startswith("  ")
    return layout.calls(cells).isdecimal()


def _rule(line: str) -> tuple[int, tuple[int, ...]] | None:
    """Where a line of dashes begins, and where each of its runs of dashes ends, or None."""
    before = line.find("---")
    dashes = line[max(before, 0) :].rstrip()
    if before < 0 or set(dashes) != {"-", " "} or "|" in line:
        return None
    return before, tuple(dash.end() for dash in re.finditer("-+", dashes))


def _is_markdown_rule(line: str) -> bool:
    bars = line[max(line.find("|"), 0) :].rstrip()
    return "---" in bars and bars.startswith("|") and not set(bars) - set("|-: ")


def _bars(text: str) -> list[str]:
    """The cells between bars, without the code marks around a name."""
    cells = [cell.strip().replace("\\|", "|") for cell in _BAR.split(text.strip().strip("|"))]
    return [cell[1:-1] if len(cell) > 1 and cell[0] == cell[-1] == "`" else cell for cell in cells]
