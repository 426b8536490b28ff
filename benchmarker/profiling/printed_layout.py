"""Layout of printed profiler tables: the prefix of their lines, and their columns.

A logger, a container or a launcher writes the prefix, in which only times vary. Columns follow from the headings, even
if these are wrapped or cut, and otherwise from the types of a row's cells, which torch prints in a fixed order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

CELL_TYPES = {
    "percent": r"(?:-?[\d.,]+\s?%|NaN)",
    "time": r"-?[\d.,]+\s?(?:ns|us|μs|µs|ms|s)(?![A-Za-z])",
    "size": r"-?[\d.,]+\s?[KMGTPkmgtp]?i?[Bb](?![A-Za-z])",
    "count": r"\d[\d,]*",
    "flops": r"(?:--|-?[\d.]+(?:e[+-]?\d+)?)",
    "text": r".*?",
}
TIME = re.compile(CELL_TYPES["time"])
CALLS = "# of Calls"
_HEADINGS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern.replace(" ", r"\s+")))
    for kind, pattern in (
        ("text", r"(Overload Name|Input Shapes|Source Location)(?!\w)"),
        ("percent", r"Self (\w+)(?: total)? ?%"),
        ("percent", r"(\w+) total ?%"),
        ("size", r"Self (\w+) Mem(?!\w)"),
        ("size", r"(\w+) Mem(?!\w)"),
        ("time", r"Self (\w+)(?: total)?(?!\w)(?! time)"),
        ("time", r"(\w+) (?:total|time avg)(?!\w)"),
        ("count", r"(?:\\?# of Calls|Number of Calls|Calls)(?!\w)"),
        ("count", r"Node ID(?!\w)"),
        ("flops", r"Total [KMGTP]?FLOPs(?!\w)"),
    )
)
PIECES = 24  # Maximum number of terminal lines of one wrapped row.


class Column(NamedTuple):
    name: str  # Heading as torch prints it since 1.7: `Self CUDA %`.
    kind: str


class Line(NamedTuple):
    """Line of the text that is not blank after its prefix."""

    number: int
    raw: str
    begin: int  # Length of the prefix.

    @property
    def body(self) -> str:
        return self.raw[self.begin :]


_CUT_HEADING = re.compile(r"(?:Self|CPU|CUDA|XPU)\s?\w*[.…]|S(?:e|el|elf(?: \w*)?)?$")


def heading_begin(line: str) -> int | None:
    """Return the position of `Name` in a line of headings; None for any other line."""
    for match in re.finditer(r"(?<![\w.])Name(?!\w)", line) if "Name" in line else ():
        columns, rest = columns_of(line[match.end() :])
        if len(columns) >= 2 or (columns and columns[0].name.startswith("Self ")) or _CUT_HEADING.match(rest):
            return match.start()
    return None


def columns_of(text: str) -> tuple[tuple[Column, ...], str]:
    """Return the columns of the headings after `Name`, and the text after the last column."""
    columns: list[Column] = []
    position = 0
    while True:
        begin = re.compile(r"[\s|*`]*").match(text, position).end()  # type: ignore[union-attr]
        match = next(((kind, match) for kind, one in _HEADINGS if (match := one.match(text, begin))), None)
        if match is None:
            return tuple(columns), text[begin:].strip()
        # torch 1.0 has `Self CPU total %` and `Number of Calls`.
        name = re.sub(r"\s*%", " %", " ".join(match[1][0].split()))
        name = CALLS if name.endswith("Calls") else re.sub(r"^(Self \w+) total", r"\1", name)
        columns.append(Column(name, match[0]))
        position = match[1].end()


def join_score(headings: str) -> int:
    """Score joined headings: columns minus 2 per device. A wrong join adds an apparent device: `Self CUDAMem`."""
    names = [column.name for column in columns_of(headings[len("Name") :])[0]]
    devices = {match[1] for name in names if (match := re.match(r"(?:Self )?(\w+)", name))}
    return len(names) - 2 * len(devices - {"CPU"})


_TYPED_CELL = re.compile(
    rf"(?<!\S)(?:(?P<P>{CELL_TYPES['percent']})|(?P<T>{CELL_TYPES['time']})|(?P<S>{CELL_TYPES['size']})"
    rf"|(?P<N>{CELL_TYPES['count']})|(?P<F>--))\s*$"
)
_LETTERS = {"P": "percent", "T": "time", "S": "size", "N": "count", "F": "flops"}
_TORCH_ORDER = re.compile(
    r"(?P<cpu>PTPTT)?(?P<device>TPTT)?(?P<old>PTT)?(?P<memory>SSSS|SS)?(?P<calls>N)?(?P<flops>[FN])?$"
)


def typed_columns(lines: Sequence[Line], headings: str) -> tuple[Column, ...]:
    """Return the columns of a row, maybe wrapped, from its cells' types; () if they are not in torch's order."""
    width = max((len(line.raw) for line in lines), default=0)
    best = ""
    for count in range(1, 1 + min(len(lines), PIECES)):
        padded = "".join(line.raw.ljust(width)[line.begin :] for line in lines[:count])
        text, types = padded.replace("|", " ").rstrip(), ""
        while (match := _TYPED_CELL.search(text)) and len(types) < 16:
            types = (match.lastgroup or "") + types
            text = text[: match.start()].rstrip()
        order = _TORCH_ORDER.match(types)
        if order and (order["cpu"] or order["device"]) and text:
            best = types
            if order["calls"]:
                break
    order = _TORCH_ORDER.match(best) if best else None
    if not order:
        return ()
    other = next((name for name in re.findall(r"\b[A-Z]{3,}\b", headings) if name not in ("CPU", "FLOP")), "CUDA")
    names = [
        *("Self CPU %", "Self CPU", "CPU total %", "CPU total", "CPU time avg")[: 5 * bool(order["cpu"])],
        *(f"Self {other}", f"Self {other} %", f"{other} total", f"{other} time avg")[: 4 * bool(order["device"])],
        *(f"{other} total %", f"{other} total", f"{other} time avg")[: 3 * bool(order["old"])],
        *("CPU Mem", "Self CPU Mem", f"{other} Mem", f"Self {other} Mem")[: len(order["memory"] or "")],
        *(CALLS, "Total FLOPs")[: bool(order["calls"]) + bool(order["flops"])],
    ]
    return tuple(Column(name, _LETTERS[letter]) for name, letter in zip(names, best, strict=True))


_CLOCK = re.compile(
    r"\d{4}[-/.]\d\d[-/.]\d\d|(?<!\d)\d\d[-/]\d\d(?![\d/])"
    r"|\d{1,2}:\d\d(?::\d\d)?(?:[.,]\d+)?|(?<![\d.])\d+\.\d{3,}(?!\.)"
)
_NUMBER = re.compile(r"\d+")
# torchrun `[rank0]:`, `[default0]:`; mpirun `[1,0]<stdout>:`; vLLM `(EngineCore_7 pid=88)`; Ray `(Worker pid=88, ip=`;
# srun `0: `; home-made `(rank 0)`, `rank 0 |`; pdsh and docker compose `node-07: `, `worker-1  | `.
_RANK = re.compile(
    r"\[\d+,(?P<mpi>\d+)\]<std|(?<![A-Za-z])(?:default|rank|worker|gpu)[\s_:=-]*(?P<word>\d+)(?![\w.])"
    r"|^[\[(]?\s*(?P<bare>\d+)\s*[\])]?:?$",
    re.IGNORECASE,
)
_PROCESS = re.compile(r"\((?P<name>[A-Za-z][\w.:-]*) pid=(?P<pid>\d+)")
_HOST = re.compile(r"(?P<host>[A-Za-z][\w.-]*\d)\s*[:|]*$")


class Prefix(NamedTuple):
    """Text that a logger or launcher writes before each line of a process."""

    pattern: re.Pattern[str]
    rank: int | None = None
    process: str | None = None
    """Name of the process or host: `EngineCore_7`, `rank 3`, `node-07`; None if the prefix names none."""


def prefix_before(text: str, following: Sequence[str], rules: Iterable[re.Match[str]]) -> Prefix:
    """Return the prefix of a table's lines, from the text before its headings.

    Args:
        following: Lines below the headings. A prefix that none of these lines has is ignored.
        rules: Matches of nearby lines of dashes. Group 2, the blanks before the dashes, belongs to the prefix.
    """
    text = text.strip().rstrip(" |\t")
    for numbers in (None, _NUMBER) if text else ():
        pattern = re.compile(_generalized(text, numbers))
        if any(pattern.match(line) for line in following):
            pattern = re.compile(pattern.pattern + _blanks(rule for rule in rules if pattern.fullmatch(rule[1])))
            return Prefix(pattern) if numbers else _named(pattern, text)
    return Prefix(re.compile(_blanks(rule for rule in rules if not rule[1])))


def _blanks(rules: Iterable[re.Match[str]]) -> str:
    least = min((len(rule[2]) for rule in rules), default=0)
    return rf"[\s|]{{0,{least}}}" if least else ""


def _generalized(text: str, numbers: re.Pattern[str] | None) -> str:
    varying, glue = (numbers, r"\d+") if numbers else (_CLOCK, r"[\d\-/:.,]+")
    literals = (r"\s+".join(map(re.escape, re.split(r"\s+", literal))) for literal in varying.split(text))
    # A wrapped line may begin with a time or size, which is no line number.
    return r"\s*" + glue.join(literals) + (r"(?![\w.,%])" if numbers else "")


def _named(pattern: re.Pattern[str], text: str) -> Prefix:
    rest = _CLOCK.sub("", text).strip(" |-")
    process, rank, host = _PROCESS.search(rest), _RANK.search(rest), _HOST.match(rest)
    if process:
        name = process["name"] if re.search(r"\d", process["name"]) else f"{process['name']} {process['pid']}"
        return Prefix(pattern, int(rank["word"]) if rank and rank["word"] else None, name)
    if rank:
        number = int(rank["mpi"] or rank["word"] or rank["bare"])
        return Prefix(pattern, number, f"rank {number}")
    return Prefix(pattern, None, host["host"] if host else None)
