"""Profiler tables as people paste them: cut off, without a rule, with a host's name on each line, as markdown."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarker.cli.app import app
from benchmarker.profiling.printed_reader import read_tables
from benchmarker.profiling.printed_table import ProfilerTable

HEADINGS = ("Name", "Self CPU", "Self CUDA", "Self CUDA %", "CUDA total", "# of Calls")
ROWS = (
    ("void flash_bwd_kernel<Traits<128, 64>, true...", "0.000us", "14.000s", "43.75%", "14.000s", "388"),
    ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "0.000us", "11.200s", "35.00%", "11.200s", "1211"),
    ("void flash_fwd_kernel<Traits<128, 128>, false...", "0.000us", "5.600s", "17.50%", "5.600s", "372"),
    ("Memcpy DtoD (Device -> Device)", "0.000us", "800.000ms", "2.50%", "800.000ms", "372"),
    ("cudaLaunchKernel", "15.480s", "0.000us", "0.00%", "0.000us", "3870"),
)
TOTALS = ("Self CPU time total: 22.000s", "Self CUDA time total: 32.000s")


def lines_of_a_table(rows: tuple[tuple[str, ...], ...] = ROWS, totals: tuple[str, ...] = TOTALS) -> list[str]:
    """As torch prints it: rule, headings, rule, rows, rule, totals."""
    widths = (62, 12, 12, 12, 12, 12)
    rule = "  ".join("-" * width for width in widths) + "  "
    shown = [
        "".join(f"{cell:>{width}}  " for cell, width in zip(row, widths, strict=True)) for row in (HEADINGS, *rows)
    ]
    return [rule, shown[0], rule, *shown[1:], rule, *totals]


def markdown_of_a_table() -> list[str]:
    rows = [HEADINGS, ("---",) * len(HEADINGS), *((f"`{name}`", *cells) for name, *cells in ROWS)]
    return [f"| {' | '.join(row)} |" for row in rows] + ["", *TOTALS]


def the_table(lines: list[str]) -> ProfilerTable:
    (table,) = read_tables("\n".join(lines))
    return table


def explained(tmp_path: Path, *lines: str) -> str:
    path = tmp_path / "pasted.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    run = CliRunner().invoke(app, ["explain", "--format", "markdown", str(path)])
    assert run.exit_code == 0, run.output
    return run.output


WHOLE = the_table(lines_of_a_table())


def test_seconds_and_milliseconds_in_one_column_are_both_read() -> None:
    assert [row.self_device_s for row in WHOLE.of_kind("kernel")] == [14.0, 11.2, 5.6, 0.8]
    assert (WHOLE.device_s, WHOLE.cpu_s, WHOLE.is_whole) == (32.0, 22.0, True)


@pytest.mark.parametrize(
    "prefix",
    ["g43: ", "node-07: ", "[rank0]: ", "0: ", "2026-03-01 10:00:00,123 ", "[10:00:00] ", "g43: 2026-03-01 10:00:00 "],
)
@pytest.mark.parametrize("begin", [0, 1], ids=["whole", "without its opening rule"])
def test_a_prefix_on_each_line_and_a_missing_opening_rule_change_nothing(prefix: str, begin: int) -> None:
    table = the_table([prefix + line for line in lines_of_a_table()[begin:]])
    assert table.rows == WHOLE.rows
    assert (table.line, table.device_s, table.is_whole) == (1, 32.0, True)


def test_tables_of_two_hosts_whose_lines_are_shuffled_come_apart() -> None:
    first, second = lines_of_a_table(), lines_of_a_table(ROWS[1:])
    second.insert(3, first[3])
    shuffled = [line for pair in zip(first, second, strict=True) for line in (f"g43: {pair[0]}", f"g44: {pair[1]}")]
    assert [table.rows for table in read_tables("\n".join(shuffled))] == [WHOLE.rows, WHOLE.rows]


@pytest.mark.parametrize("after", [[], ["", "step 5 done"], ["Traceback (most recent call last):", "  File x"]])
def test_a_table_that_is_cut_off_has_its_total_from_the_percentage_of_a_row(after: list[str]) -> None:
    table = the_table([*lines_of_a_table()[:5], *after])
    assert [row.self_device_s for row in table.rows] == [14.0, 11.2]
    assert table.device_s == pytest.approx(32.0)
    assert (table.is_whole, table.is_total_printed) == (False, False)


def test_a_row_that_is_cut_in_its_middle_is_left_out() -> None:
    lines = lines_of_a_table()[:6]
    assert the_table([*lines[:5], lines[5][:90]]).rows == the_table(lines[:5]).rows


def test_another_rule_below_a_cut_table_does_not_end_it() -> None:
    lines = [*lines_of_a_table()[:5], "-" * 80, "loss: 0.1", "-" * 80]
    table = the_table(lines)
    assert (len(table.rows), table.is_whole) == (2, False)


def test_a_cut_table_and_a_whole_one_below_it_are_two() -> None:
    whole = lines_of_a_table(
        (
            *ROWS[2:],
            ("other", "0.000us", "1.000s", "1.00%", "1.000s", "1"),
        )
    )
    tables = read_tables("\n".join([*lines_of_a_table()[:5], *whole]))
    assert [(table.line, len(table.rows), table.is_whole) for table in tables] == [(1, 2, False), (6, 4, True)]


def test_a_markdown_table_is_read_like_the_printed_one() -> None:
    table = the_table(["Before it.", "", *markdown_of_a_table()])
    assert table.rows == WHOLE.rows
    assert (table.device_s, table.cpu_s, table.is_whole) == (32.0, 22.0, True)


def test_what_is_read_is_read_again_from_the_text_that_a_record_keeps() -> None:
    for lines in (lines_of_a_table(), lines_of_a_table()[1:], lines_of_a_table()[:5], markdown_of_a_table()):
        table = the_table(lines)
        (again,) = read_tables(table.text)
        assert (again.rows, again.device_s) == (table.rows, table.device_s)


def test_communication_in_the_sum_of_the_kernels_is_not_called_lost_time(tmp_path: Path) -> None:
    text = explained(tmp_path, *(f"g43: {line}" for line in lines_of_a_table()[1:]))
    assert "**Table in line 1, g43**: 32.00 s in kernels, most of it for attention/KV" in text
    assert "kernel time: attention 61 %, communication 35 %, copy/cast 2.5 %" in text
    assert "communication is 35 % of the kernels' sum; the part of it that runs beside" in text
    assert "32.00 s of kernels in 22.00 s of the host's rows: kernels ran at the same time on several streams" in text
    assert "the host spent 15.48 s on launches that waited for room in the queue" in text


def test_a_cut_table_says_so(tmp_path: Path) -> None:
    text = explained(tmp_path, *lines_of_a_table()[:5])
    assert "32.00 s in kernels (worked out from the percentage of a row), most of it for attention/KV" in text
    assert "- the table is cut off at its end" in text


def test_kernels_in_32_bits_are_named(tmp_path: Path) -> None:
    rows = (
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_...", "0.000us", "4.000s", "40.00%", "4.000s", "10"),
        ("nvjet_hsh_128x128", "0.000us", "6.000s", "60.00%", "6.000s", "10"),
    )
    text = explained(tmp_path, *lines_of_a_table(rows, ("Self CPU time total: 9.9s", "Self CUDA time total: 10.000s")))
    assert "40 % of the kernel time is products or attention in 32-bit floats, most of it in `cutlass::Kernel2<" in text


def test_two_tables_of_one_log_are_contrasted_by_their_titles(tmp_path: Path) -> None:
    before = (
        ("ampere_sgemm_128x128_nn", "0.000us", "2.000s", "40.00%", "2.000s", "100"),
        ("void softmax_warp_forward<float>", "0.000us", "3.000s", "60.00%", "3.000s", "100"),
    )
    after = (("flash_attention_kernel", "0.000us", "500.000ms", "100.00%", "500.000ms", "100"),)
    text = explained(
        tmp_path,
        "original:",
        *lines_of_a_table(before, ("Self CPU time total: 5.1s", "Self CUDA time total: 5.000s")),
        "",
        "opt:",
        *lines_of_a_table(after, ("Self CPU time total: 600ms", "Self CUDA time total: 500.000ms")),
    )
    assert "**Table in line 2** (original): 5.0000 s in kernels, most of it for attention/KV" in text
    assert (
        "**Against original**\n\n- opt takes 10.00x less kernel time (500.00 ms for 5.0000 s): -2.5000 s attention, "
        "-2.0000 s matmul\n"
    ) in text
