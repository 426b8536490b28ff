"""Profiler tables as users paste them are read: truncated, without a rule, with host prefixes, and as markdown."""

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


def printed_lines(rows: tuple[tuple[str, ...], ...] = ROWS, totals: tuple[str, ...] = TOTALS) -> list[str]:
    """Return the lines that torch prints: rule, headings, rule, rows, rule, totals."""
    widths = (62, 12, 12, 12, 12, 12)
    rule = "  ".join("-" * width for width in widths) + "  "
    lines = [
        "".join(f"{cell:>{width}}  " for cell, width in zip(row, widths, strict=True)) for row in (HEADINGS, *rows)
    ]
    return [rule, lines[0], rule, *lines[1:], rule, *totals]


def markdown_lines() -> list[str]:
    rows = [HEADINGS, ("---",) * len(HEADINGS), *((f"`{name}`", *cells) for name, *cells in ROWS)]
    return [f"| {' | '.join(row)} |" for row in rows] + ["", *TOTALS]


def read_table(lines: list[str]) -> ProfilerTable:
    (table,) = read_tables("\n".join(lines))
    return table


def explain_output(tmp_path: Path, *lines: str) -> str:
    path = tmp_path / "pasted.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    result = CliRunner().invoke(app, ["explain", "--format", "markdown", str(path)])
    assert result.exit_code == 0, result.output
    return result.output


WHOLE = read_table(printed_lines())


def test_column_with_seconds_and_milliseconds_is_read() -> None:
    assert [row.self_device_s for row in WHOLE.of_kind("kernel")] == [14.0, 11.2, 5.6, 0.8]
    assert (WHOLE.device_s, WHOLE.cpu_s, WHOLE.is_whole) == (32.0, 22.0, True)


@pytest.mark.parametrize(
    "prefix",
    ["g43: ", "node-07: ", "[rank0]: ", "0: ", "2026-03-01 10:00:00,123 ", "[10:00:00] ", "g43: 2026-03-01 10:00:00 "],
)
@pytest.mark.parametrize("begin", [0, 1], ids=["whole", "without its opening rule"])
def test_line_prefixes_and_a_missing_opening_rule_are_ignored(prefix: str, begin: int) -> None:
    table = read_table([prefix + line for line in printed_lines()[begin:]])
    assert table.rows == WHOLE.rows
    assert (table.line, table.device_s, table.is_whole) == (1, 32.0, True)


def test_interleaved_tables_of_two_hosts_are_separated() -> None:
    first, second = printed_lines(), printed_lines(ROWS[1:])
    second.insert(3, first[3])
    shuffled = [line for pair in zip(first, second, strict=True) for line in (f"g43: {pair[0]}", f"g44: {pair[1]}")]
    assert [table.rows for table in read_tables("\n".join(shuffled))] == [WHOLE.rows, WHOLE.rows]


@pytest.mark.parametrize("after", [[], ["", "step 5 done"], ["Traceback (most recent call last):", "  File x"]])
def test_total_of_a_truncated_table_is_derived_from_a_percentage(after: list[str]) -> None:
    table = read_table([*printed_lines()[:5], *after])
    assert [row.self_device_s for row in table.rows] == [14.0, 11.2]
    assert table.device_s == pytest.approx(32.0)
    assert (table.is_whole, table.is_total_printed) == (False, False)


def test_truncated_row_is_skipped() -> None:
    lines = printed_lines()[:6]
    assert read_table([*lines[:5], lines[5][:90]]).rows == read_table(lines[:5]).rows


def test_unrelated_rule_below_a_truncated_table_does_not_complete_it() -> None:
    lines = [*printed_lines()[:5], "-" * 80, "loss: 0.1", "-" * 80]
    table = read_table(lines)
    assert (len(table.rows), table.is_whole) == (2, False)


def test_truncated_and_complete_tables_are_read_as_two() -> None:
    whole = printed_lines(
        (
            *ROWS[2:],
            ("other", "0.000us", "1.000s", "1.00%", "1.000s", "1"),
        )
    )
    tables = read_tables("\n".join([*printed_lines()[:5], *whole]))
    assert [(table.line, len(table.rows), table.is_whole) for table in tables] == [(1, 2, False), (6, 4, True)]


def test_markdown_table_equals_the_printed_table() -> None:
    table = read_table(["Before it.", "", *markdown_lines()])
    assert table.rows == WHOLE.rows
    assert (table.device_s, table.cpu_s, table.is_whole) == (32.0, 22.0, True)


def test_stored_table_text_is_parsed_to_equal_rows() -> None:
    for lines in (printed_lines(), printed_lines()[1:], printed_lines()[:5], markdown_lines()):
        table = read_table(lines)
        (again,) = read_tables(table.text)
        assert (again.rows, again.device_s) == (table.rows, table.device_s)


def test_overlapping_communication_is_not_reported_as_lost_time(tmp_path: Path) -> None:
    text = explain_output(tmp_path, *(f"g43: {line}" for line in printed_lines()[1:]))
    assert "**Table in line 1, g43**: 32.00 s in kernels, most of it for attention/KV" in text
    assert "kernel time: attention 61 %, communication 35 %, copy/cast 2.5 %" in text
    assert "communication is 35 % of the kernels' sum; the part of it that runs beside" in text
    assert "32.00 s of kernels in 22.00 s of the host's rows: kernels ran at the same time on several streams" in text
    assert "the host spent 15.48 s on launches that waited for room in the queue" in text


def test_truncated_table_is_reported(tmp_path: Path) -> None:
    text = explain_output(tmp_path, *printed_lines()[:5])
    assert "32.00 s in kernels (worked out from the percentage of a row), most of it for attention/KV" in text
    assert "- the table is cut off at its end" in text


def test_float32_kernels_are_named(tmp_path: Path) -> None:
    rows = (
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_...", "0.000us", "4.000s", "40.00%", "4.000s", "10"),
        ("nvjet_hsh_128x128", "0.000us", "6.000s", "60.00%", "6.000s", "10"),
    )
    text = explain_output(
        tmp_path, *printed_lines(rows, ("Self CPU time total: 9.9s", "Self CUDA time total: 10.000s"))
    )
    assert "40 % of the kernel time is products or attention in 32-bit floats, most of it in `cutlass::Kernel2<" in text


def test_two_tables_of_a_log_are_compared_by_title(tmp_path: Path) -> None:
    before = (
        ("ampere_sgemm_128x128_nn", "0.000us", "2.000s", "40.00%", "2.000s", "100"),
        ("void softmax_warp_forward<float>", "0.000us", "3.000s", "60.00%", "3.000s", "100"),
    )
    after = (("flash_attention_kernel", "0.000us", "500.000ms", "100.00%", "500.000ms", "100"),)
    text = explain_output(
        tmp_path,
        "original:",
        *printed_lines(before, ("Self CPU time total: 5.1s", "Self CUDA time total: 5.000s")),
        "",
        "opt:",
        *printed_lines(after, ("Self CPU time total: 600ms", "Self CUDA time total: 500.000ms")),
    )
    assert "**Table in line 2** (original): 5.0000 s in kernels, most of it for attention/KV" in text
    assert (
        "**Against original**\n\n- opt takes 10.00x less kernel time (500.00 ms for 5.0000 s): -2.5000 s attention, "
        "-2.0000 s matmul\n"
    ) in text
