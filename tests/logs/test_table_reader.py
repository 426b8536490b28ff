"""Printed profiler tables are parsed to rows, row kinds, totals and the share of time that is not listed."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarker.core.errors import ResultsError
from benchmarker.profiling.kernel_categories import category
from benchmarker.profiling.printed_reader import read_tables
from benchmarker.profiling.printed_table import ProfilerTable, TableRow

DATA = Path(__file__).parents[1] / "data"
HEADINGS = ("Self CPU %", "Self CPU", "CPU total %", "CPU total", "CPU time avg")
ON_DEVICE = ("Self {0}", "Self {0} %", "{0} total", "{0} time avg")

Row = tuple[str, str, str, str]
"""Name, total CPU time, self device time, total device time."""


def printed(*rows: Row, device: str = "CUDA", total: str = "1.000s", more: tuple[str, ...] = ()) -> str:
    """Return a table as torch prints it."""
    headings = ["Name", *HEADINGS, *(heading.format(device) for heading in ON_DEVICE), *more, "# of Calls"]
    widths = [55, *[12] * (len(headings) - 1)]
    rule = "".join("-" * width + "  " for width in widths)
    lines = [rule, _line(headings, widths), rule]
    for name, cpu, self_device, device_total in rows:
        cells = [
            name,
            "0.00%",
            cpu,
            "0.00%",
            cpu,
            cpu,
            self_device,
            "0.00%",
            device_total,
            device_total,
            *("" for _ in more),
            "10",
        ]
        lines.append(_line(cells, widths))
    return "\n".join([*lines, rule, "Self CPU time total: 2.000s", f"Self {device} time total: {total}", ""])


def _line(cells: list[str], widths: list[int]) -> str:
    return "".join(f"{cell:>{width}}  " for cell, width in zip(cells, widths, strict=True))


def read_table(text: str) -> ProfilerTable:
    (table,) = read_tables(text)
    return table


def kinds(text: str) -> dict[str, str]:
    return {row.name: row.kind for row in read_table(text).rows}


ORDINARY: tuple[Row, ...] = (
    ("model_inference", "0.000us", "1.670s", "1.670s"),
    ("model_inference", "1.700s", "0.000us", "1.000s"),
    ("aten::mm", "500.000ms", "600.000ms", "600.000ms"),
    ("void gemv2T_kernel_val<int, int, __half>(...)", "0.000us", "600.000ms", "600.000ms"),
    ("aten::mul", "30.000ms", "150.000ms", "150.000ms"),
)


def test_unlisted_share_of_the_reference_tables_is_computed() -> None:
    tables = [
        table
        for name in ("reference-log.md", "qlora-table.txt")
        for table in read_tables((DATA / name).read_text(encoding="utf-8"))
    ]
    shares = [round(100 * share) for table in tables if (share := table.not_listed_share) is not None]
    assert shares == [25, 12, 24, 24, 15]
    assert [table.device_s for table in tables] == [2.468, 4.192, 3.223, 3.204, 3.904]
    assert [table.cpu_s for table in tables] == [4.122, 6.371, 8.030, 7.875, 12.905]


def test_kernels_and_operators_of_reference_tables_have_a_category() -> None:
    text = (DATA / "reference-log.md").read_text(encoding="utf-8") + (DATA / "qlora-table.txt").read_text("utf-8")
    rows = [row for table in read_tables(text) for row in (*table.of_kind("kernel"), *table.of_kind("operator"))]
    assert [row.name for row in rows if category(row.name) == "other"] == []


def test_device_annotation_is_a_span_and_not_kernel_time() -> None:
    first = read_tables((DATA / "reference-log.md").read_text(encoding="utf-8"))[0]
    assert first.of_kind("span") == (
        TableRow(
            "model_inference", "span", 1, 0.0, 0.0, 4.121, 4.121, device_memory_bytes=0, self_device_memory_bytes=0
        ),
    )
    assert first.line == 56
    assert [row.self_device_s for row in first.of_kind("kernel")] == [0.841346, 0.509421, 0.136484, 0.134572]
    assert [(row.name, row.self_device_s, row.calls) for row in first.listed] == [
        ("aten::mm", 1.622, 25300),
        ("aten::mul", 0.236915, 47400),
    ]
    assert first.rows[4].device_memory_bytes == round(244.16 * 2**20)


def test_compiled_kernel_named_like_its_operator_is_a_kernel() -> None:
    third = read_tables((DATA / "reference-log.md").read_text(encoding="utf-8"))[2]
    fused = [row.kind for row in third.rows if row.name == "triton_poi_fused_index_mul_sub_0"]
    assert fused == ["operator", "kernel"]


def test_kernels_are_listed_if_they_cover_the_operator_time() -> None:
    table = read_table(printed(*ORDINARY[:4]))
    assert [row.kind for row in table.listed] == ["kernel"]
    assert table.not_listed_share == pytest.approx(0.4)


@pytest.mark.parametrize("device", ["XPU", "device", "HIP", "PRIVATEUSEONE"])
def test_any_device_name_is_accepted(device: str) -> None:
    table = read_table(printed(*ORDINARY, device=device))
    assert (table.device, table.device_s, table.listed_s) == (device, 1.0, 0.75)


def test_times_in_a_single_unit_are_read() -> None:
    text = printed(("Memcpy HtoD (Pageable -> Device)", "0.000s", "0.250s", "0.250s"), total="1000.000ms")
    assert read_table(text).not_listed_share == 0.75
    text = printed(
        ("Memcpy HtoD (Pageable -> Device)", "0.000us", "250000.000us", "250000.000us"), total="1000000.000us"
    )
    assert read_table(text).not_listed_share == 0.75


def test_interleaved_tables_of_two_ranks_are_separated() -> None:
    first, second = printed(*ORDINARY), printed(*ORDINARY[2:], total="2.000s")
    pairs = zip(first.split("\n"), second.split("\n") + 2 * [""], strict=True)
    text = "\n".join(f"[rank0]:{line_0}\n[rank1]:{line_1}" for line_0, line_1 in pairs)
    assert [(table.rank, table.device_s, len(table.rows)) for table in read_tables(text)] == [(0, 1.0, 5), (1, 2.0, 3)]
    assert read_tables(text)[0].text == "\n".join(line.rstrip() for line in first.split("\n"))


def test_empty_columns_and_call_stack_lines_are_ignored() -> None:
    text = printed(*ORDINARY, more=("Overload Name",))
    lines = text.split("\n")
    lines.insert(4, " " * 200 + "torch/nn/modules/linear.py(130): forward")
    assert read_table("\n".join(lines)).rows == read_table(printed(*ORDINARY)).rows


def test_table_without_a_device_has_only_operators() -> None:
    headings, widths = ["Name", *HEADINGS, "# of Calls"], [30, 12, 12, 12, 12, 12, 12]
    rule = "".join("-" * width + "  " for width in widths)
    row = _line(["aten::addmm", "99.00%", "1.980s", "99.00%", "1.980s", "2.000ms", "990"], widths)
    table = read_table("\n".join([rule, _line(headings, widths), rule, row, rule, "Self CPU time total: 2.000s"]))
    assert table.rows == (TableRow("aten::addmm", "operator", 990, 1.98, 1.98, None, None),)
    assert (table.device, table.device_s, table.cpu_s, table.not_listed_share) == (None, None, 2.0, pytest.approx(0.01))
    assert (table.by, table.listed, table.listed_s) == ("cpu", table.rows, 1.98)


def test_rows_without_cpu_time_are_classified_by_name() -> None:
    names = (
        "Memset (Device)",
        "_attn_fwd_kernel",
        "ampere_fp16_s16816gemm_fp16_64x64_ldg8_f2f_stages_64...",
        "ProfilerStep*",
        "nccl:all_reduce",
        "cudaLaunchKernel",
        "Activity Buffer Request",
        "aten::silu",
        "my_region",
    )
    text = printed(*((name, "0.000us", "10.000ms", "10.000ms") for name in names))
    assert kinds(text) == {
        "Memset (Device)": "kernel",
        "_attn_fwd_kernel": "kernel",
        "ampere_fp16_s16816gemm_fp16_64x64_ldg8_f2f_stages_64...": "kernel",
        "ProfilerStep*": "span",
        "nccl:all_reduce": "span",
        "cudaLaunchKernel": "overhead",
        "Activity Buffer Request": "overhead",
        "aten::silu": "operator",
        "my_region": "unclear",
    }


def test_row_longer_than_the_total_is_a_span() -> None:
    assert kinds(printed(("my_region", "0.000us", "1.200s", "1.200s"))) == {"my_region": "span"}


def test_rows_exceeding_the_total_have_no_unlisted_share() -> None:
    assert read_table(printed(("void f(int)", "0.000us", "1.200s", "1.200s"))).not_listed_share is None


def format_table(headings: list[str], *rows: list[str], total: str = "") -> str:
    """Return a printed table with these columns."""
    widths = [55, *[12] * (len(headings) - 1)]
    rule = "".join("-" * width + "  " for width in widths)
    return "\n".join([rule, _line(headings, widths), rule, *(_line(row, widths) for row in rows), rule, total, ""])


def test_sum_of_rows_replaces_a_smaller_total() -> None:
    table = read_table(printed(("void f(int)", "0.000us", "1.200s", "1.200s")))
    assert (table.is_total_too_small, table.known_total_s, table.total_s) == (True, 1.0, 1.2)
    assert not read_table(printed(*ORDINARY)).is_total_too_small


def test_missing_total_is_derived_from_the_largest_percentage() -> None:
    headings = ["Name", "Self CPU", "Self CUDA", "Self CUDA %", "# of Calls"]
    rows = (["aten::mm", "1.000s", "1.622s", "65.71%", "10"], ["aten::mul", "1.000s", "0.010s", "0.41%", "10"])
    table = read_table(format_table(headings, *rows))
    assert table.device_s == pytest.approx(2.468, abs=0.001)
    assert not table.is_total_printed
    assert read_table(format_table(headings, *rows, total="Self CUDA time total: 2.000s")).device_s == 2.0
    without = read_table(format_table(headings[:3] + headings[4:], *(row[:3] + row[4:] for row in rows)))
    assert (without.known_total_s, without.total_s, without.not_listed_share) == (None, without.listed_s, None)


def test_one_time_column_and_the_calls_are_sufficient() -> None:
    headings = ["Name", "Self CUDA", "Self CUDA %", "# of Calls"]
    cells = ["aten::mm", "1.622s", "65.71%", "10"]
    table = read_table(format_table(headings, cells, total="Self CUDA time total: 2.468s"))
    assert [(row.kind, row.self_device_s, row.calls) for row in table.listed] == [("operator", 1.622, 10)]
    assert read_table(format_table(["Name", "CPU total", "CUDA total", "Calls", "# of Calls"])).device == "CUDA"


def test_kernel_and_operator_of_one_name_are_counted_once() -> None:
    row = ["triton_poi_fused_index_mul_sub_0", "1.000s", "10"]
    table = read_table(
        format_table(["Name", "Self CUDA", "# of Calls"], row, row, total="Self CUDA time total: 2.000s")
    )
    assert (table.listed_s, table.not_listed_share) == (1.0, 0.5)


def test_annotations_in_a_cpu_table_are_not_operators() -> None:
    headings = ["Name", "Self CPU", "CPU total", "# of Calls"]
    rows = (["model_inference", "1.000s", "4.000s", "1"], ["aten::mm", "2.000s", "2.000s", "10"])
    table = read_table(format_table(headings, *rows, total="Self CPU time total: 4.000s"))
    assert ([row.name for row in table.listed], table.known_total_s) == (["aten::mm"], 3.0)


def test_text_without_a_table_gives_no_tables() -> None:
    assert read_tables("") == ()
    assert read_tables("---  ---\nName  Value\n---  ---\na  1\n---  ---\n") == ()


@pytest.mark.parametrize("line_count", [2, 3])
def test_table_truncated_before_its_first_row_is_refused(line_count: int) -> None:
    truncated = "\n".join(["a log", *printed(*ORDINARY).split("\n")[:line_count]])
    for text in (truncated, f"{truncated}\n{printed(*ORDINARY)}"):
        with pytest.raises(ResultsError) as caught:
            read_tables(text)
        assert str(caught.value) == (
            "line 2: the profiler's table that begins here is cut before its first row; "
            "get the whole log, or take these lines out"
        )


def test_line_of_a_million_dashes_is_parsed_without_backtracking() -> None:
    assert read_tables("-" * 1_000_000 + "\n" + "- " * 500_000 + "x") == ()
