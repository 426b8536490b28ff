"""A profiler table is read with equal numbers in each layout of logs and pages, with one and with two decorations."""

from __future__ import annotations

import itertools
import re
import textwrap
import time
from collections.abc import Callable, Sequence

import pytest

from benchmarker.profiling.printed_reader import read_tables
from benchmarker.profiling.printed_table import ProfilerTable

Lines = list[str]
COLUMNS = (
    "Self CPU %", "Self CPU", "CPU total %", "CPU total", "CPU time avg",
    "Self CUDA", "Self CUDA %", "CUDA total", "CUDA time avg", "CPU Mem", "Self CPU Mem", "CUDA Mem", "Self CUDA Mem",
)  # fmt: skip
ROWS: tuple[tuple[str, str, str, str, int], ...] = (
    # name, self CPU time, self device time, total device time, calls
    ("ProfilerStep*", "0.000us", "1.500s", "1.500s", 2),
    ("ProfilerStep*", "700.000ms", "0.000us", "900.000ms", 2),
    ("aten::linear", "20.000ms", "0.000us", "500.250ms", 9280),
    ("aten::mm", "110.000ms", "500.250ms", "500.250ms", 9280),
    ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s1681...", "0.000us", "500.250ms", "500.250ms", 9280),
    ("Memcpy HtoD (Pageable -> Device)", "0.000us", "99.750ms", "99.750ms", 3),
    ("void at::native::(anonymous namespace)::cunn_SoftMax...", "0.000us", "200.000ms", "200.000ms", 64),
    ("_add_rms_norm_kernel", "0.000us", "100.000ms", "100.000ms", 4608),
    ("cudaLaunchKernel", "300.000ms", "0.000us", "0.000us", 9695),
)
SIZES = ("0 B", "-2.00 KB", "4.81 GB", "-1651.32 GB")
TOTALS = ("Self CPU time total: 1.200s", "Self CUDA time total: 1.000s")
FOREIGN = "INFO loading done"


def rows_of_cells(rows: Sequence[tuple[str, str, str, str, int]] = ROWS) -> list[list[str]]:
    return [
        [name, "1.00%", cpu, "2.00%", cpu, "1.000us", self_device, "3.00%", total, "1.500us", *SIZES, str(calls)]
        for name, cpu, self_device, total, calls in rows
    ]


def printed(headings: Sequence[str] = ("Name", *COLUMNS, "# of Calls"), keep: slice = slice(None)) -> Lines:
    """Return the table as torch prints it."""
    widths = [55, *[12] * (len(headings) - 1)]
    cells = [list(headings), *rows_of_cells()]
    lines = ["".join(f"{cell:>{width}}  " for cell, width in zip(row, widths, strict=True)) for row in cells]
    rule = "".join("-" * width + "  " for width in widths)
    return [rule, lines[0], rule, *lines[1:], rule, *TOTALS][keep]


def markdown() -> Lines:
    rows = [["Name", *COLUMNS, "# of Calls"], ["---"] * 15, *rows_of_cells()]
    return [*(f"| {' | '.join(row)} |" for row in rows), "", *TOTALS]


def markdown_with_stacks() -> Lines:
    rows = [["Name", *COLUMNS, "# of Calls", "Source Location"], ["---"] * 16]
    for row in rows_of_cells():
        rows += [[*row, "<built-in function linear>"], ["" for _ in row] + ["torch/nn/modules/module.py(15): _call"]]
    return [*(f"| {' | '.join(row)} |" for row in rows), *TOTALS]


def with_stacks() -> Lines:
    lines = printed(("Name", *COLUMNS, "# of Calls"))
    stacked = [lines[0], lines[1] + "   Source Location", lines[2]]
    for line in lines[3:-3]:
        stacked += [line + "  <built-in function linear>", " " * 260 + "torch/nn/modules/module.py(1534): _call_impl"]
    return [*stacked, *lines[-3:]]


def rich() -> Lines:
    """Return the table as rich prints it, with headings truncated to the column width."""
    rows = [[heading[:5] + "…" for heading in COLUMNS] + ["# of…"], *(row[1:] for row in rows_of_cells())]
    names = ["Name", *(row[0] for row in rows_of_cells())]
    lines = ["│ " + " │ ".join([name, *row]) + " │" for name, row in zip(names, rows, strict=True)]
    return ["┏" + "━" * 90 + "┓", lines[0], "┡" + "━" * 90 + "┩", *lines[1:], "└" + "─" * 90 + "┘", *TOTALS]


LAYOUTS: dict[str, Callable[[], Lines]] = {
    "printed": printed,
    "markdown": markdown,
    "markdown with stacks": markdown_with_stacks,
    "stacks": with_stacks,
    "rich": rich,
    "without headings": lambda: printed(keep=slice(3, None)),
    "without its opening rule": lambda: printed(keep=slice(1, None)),
    "headings cut at the right": lambda: [line[:190] if number == 1 else line for number, line in enumerate(printed())],
}
CLOCK = "2026-09-23 10:00:{:02d}.{:03d}"


def prefixed(prefix: str) -> Callable[[Lines], Lines]:
    def apply(lines: Lines) -> Lines:
        return [prefix.replace("TIME", CLOCK.format(number % 60, number)) + line for number, line in enumerate(lines)]

    return apply


def wrapped(width: int, *, is_stripped: bool = False) -> Callable[[Lines], Lines]:
    def apply(lines: Lines) -> Lines:
        pieces = [line[at : at + width] for line in lines for at in range(0, max(1, len(line)), width)]
        return [piece.rstrip() if is_stripped else piece for piece in pieces]

    return apply


def single(separator: str) -> Callable[[Lines], Lines]:
    return lambda lines: [re.sub(r"\s{2,}", separator, line.strip()) for line in lines]


DECORATIONS: dict[str, Callable[[Lines], Lines]] = {
    "loguru": prefixed("TIME | INFO     | __main__:profile:88 - "),
    "docker compose": prefixed("worker-1  | "),
    "torchrun with time": prefixed("[rank3] TIME | "),
    "vllm process": prefixed("(EngineCore_7 pid=1000007) "),
    "vllm process with logger": prefixed("(EngineCore_0 pid=88) INFO 09-23 10:00:00 [worker.py:88] "),
    "logging": prefixed("TIME,123 - INFO - "),
    "host": prefixed("g43: "),
    "comment": prefixed("# "),
    "quotation": prefixed("> "),
    "line numbers": lambda lines: [f"{number:>5}  {line}" for number, line in enumerate(lines, 8)],
    "first line alone": lambda lines: ["INFO:root:" + lines[0], *lines[1:]],
    "empty lines": lambda lines: [text for line in lines for text in (line, "")],
    "indented": lambda lines: textwrap.indent("\n".join(lines), "    ").split("\n"),
    "stripped": lambda lines: [line.strip() for line in lines],
    "single spaces": single(" "),
    "tabs": single("\t"),
    "fence": lambda lines: ["```shell", *lines, "```"],
    "wrapped at 80": wrapped(80),
    "wrapped at 120": wrapped(120, is_stripped=True),
    "wrapped at 200": wrapped(200),
    "colours": lambda lines: [f"\x1b[32m{line}\x1b[0m" for line in lines],
    "text around": lambda lines: ["Starting up", "", *lines, "", "step 5 done, loss 0.1"],
}


def read_table(lines: Lines) -> ProfilerTable:
    (table,) = read_tables("\n".join(lines))
    return table


def numbers(table: ProfilerTable) -> list[object]:
    rows = [
        (row.name, row.kind, row.calls, row.self_cpu_s, row.self_device_s, row.device_total_s) for row in table.rows
    ]
    return [rows, table.device_s, table.cpu_s, table.device, table.listed_s]


EXPECTED = numbers(read_table(printed()))


def test_printed_table_has_the_expected_rows_and_totals() -> None:
    table = read_table(printed())
    assert [(row.kind, row.self_device_s, row.calls) for row in table.listed] == [
        ("kernel", 0.50025, 9280), ("kernel", 0.09975, 3), ("kernel", 0.2, 64), ("kernel", 0.1, 4608),
    ]  # fmt: skip
    assert (table.cpu_s, table.device_s, table.is_whole) == (1.2, 1.0, True)
    assert table.rows[3].device_memory_bytes == round(4.81 * 2**30)
    assert table.rows[3].self_device_memory_bytes == round(-1651.32 * 2**30)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("decoration", ["none", *DECORATIONS])
def test_layouts_and_decorations_do_not_change_the_numbers(layout: str, decoration: str) -> None:
    if (layout, decoration) in (("without headings", "first line alone"), ("markdown with stacks", "wrapped at 80")):
        pytest.skip("the prefix of the first row, or a broken stack, cannot be distinguished from a name")
    lines = LAYOUTS[layout]()
    assert numbers(read_table(DECORATIONS.get(decoration, list)(lines))) == EXPECTED


def can_follow(first: str, second: str) -> bool:
    """Return False if the second decoration removes the line breaks of the first or splits the word `Name`."""
    if first.startswith("wrapped"):
        return second not in ("single spaces", "tabs", "stripped") and not second.startswith("wrapped")
    return not (
        second.startswith("wrapped") and (first == "line numbers" or (second.endswith("80") and "vllm" in first))
    )


PAIRS = [(first, second) for first, second in itertools.permutations(DECORATIONS, 2) if can_follow(first, second)]


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_two_combined_decorations_do_not_change_the_numbers(first: str, second: str) -> None:
    assert numbers(read_table(DECORATIONS[second](DECORATIONS[first](printed())))) == EXPECTED


PROCESSES = [
    "(EngineCore_{} pid=100000{}) ",
    "[rank{}]: ",
    "worker-{}  | ",
    "g4{}: ",
    "[1,{}]<stdout>:",
    "[rank{}] TIME | ",
]


@pytest.mark.parametrize("prefix", PROCESSES)
@pytest.mark.parametrize(
    ("layout", "is_wrapped"),
    [(layout, is_wrapped) for layout in LAYOUTS for is_wrapped in (False, layout != "markdown with stacks")],
)
def test_interleaved_lines_of_two_processes_are_read_as_two_tables(prefix: str, layout: str, is_wrapped: bool) -> None:
    lines = LAYOUTS[layout]()
    processes = [prefixed(prefix.format(number, number))(lines) for number in (6, 7)]
    interleaved = [line for pair in zip(*processes, strict=True) for line in pair]
    tables = read_tables("\n".join(wrapped(120)(interleaved) if is_wrapped else interleaved))
    assert [numbers(table) for table in tables] == [EXPECTED, EXPECTED]
    assert len({table.process for table in tables}) == 2


def test_foreign_lines_between_rows_are_skipped_and_listed() -> None:
    lines = printed()
    table = read_table([*lines[:5], FOREIGN, *lines[5:]])
    assert numbers(table) == EXPECTED
    assert table.foreign_lines == (6,)


def test_table_inside_a_long_log_is_read_within_ten_seconds() -> None:
    noise = [f"step {number} loss 0.{number} 50.00% 3.2ms" for number in range(5000)]
    started = time.monotonic()
    assert numbers(read_table([*noise, *printed(), *noise])) == EXPECTED
    assert read_tables("\n".join(noise)) == ()
    assert time.monotonic() - started < 10
