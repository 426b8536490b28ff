"""Totals, row kinds, processes and sort orders are read from printed tables and from Chrome traces."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarker.cli.app import app
from benchmarker.profiling.kernel_categories import category
from benchmarker.profiling.printed_reader import read_tables
from benchmarker.profiling.printed_table import ProfilerTable

ON_DEVICE = ("Self CPU", "CPU total", "Self CUDA", "Self CUDA %", "CUDA total", "# of Calls")
Row = tuple[str, str, str, str, str, int]
"""Name, self CPU time, total CPU time, self device time, total device time, calls."""


def printed(*rows: Row, cpu: str = "10.000ms", total: str = "10.000ms") -> str:
    lines = [f"{'Name':>60}  " + "".join(f"{heading:>12}  " for heading in ON_DEVICE)]
    for name, self_cpu, cpu_total, self_device, device_total, calls in rows:
        cells = (self_cpu, cpu_total, self_device, "1.00%", device_total, str(calls))
        lines.append(f"{name:>60}  " + "".join(f"{cell:>12}  " for cell in cells))
    rule = f"{'-' * 60}  " + f"{'-' * 12}  " * len(ON_DEVICE)
    totals = (f"Self CPU time total: {cpu}", f"Self CUDA time total: {total}")
    return "\n".join([rule, lines[0], rule, *lines[1:], rule, *totals, ""])


def kernel(name: str, self_device: str, calls: int = 10) -> Row:
    return name, "0.000us", "0.000us", self_device, self_device, calls


def read_table(text: str) -> ProfilerTable:
    (table,) = read_tables(text)
    return table


def explain_output(path: Path, *options: str) -> str:
    result = CliRunner().invoke(app, ["explain", "--format", "markdown", str(path), *options])
    assert result.exit_code == 0, result.output
    return result.output


def save_table(folder: Path, text: str) -> Path:
    path = folder / "table.txt"
    path.write_text(text)
    return path


ANNOTATED = printed(
    ("Layer", "0.000us", "0.000us", "22.000ms", "22.000ms", 1),
    ("Layer", "0.300ms", "9.000ms", "0.000us", "11.000ms", 1),
    ("LayerFunction", "0.050ms", "0.060ms", "10.500ms", "10.500ms", 1),
    kernel("void sparse_conv2d_forward_kernel<float>(float const...", "10.500ms", 1),
    ("Other", "0.000us", "0.000us", "3.000ms", "3.000ms", 1),
    ("Other", "0.200ms", "1.000ms", "0.000us", "1.500ms", 1),
    kernel("Memcpy HtoD (Pageable -> Device)", "2.000ms", 2),
    total="37.500ms",
)


def test_annotations_are_subtracted_from_a_printed_total(tmp_path: Path) -> None:
    table = read_table(ANNOTATED)
    assert (table.device_s, table.annotations_s) == (pytest.approx(0.0125), pytest.approx(0.025))
    assert [row.name for row in table.of_kind("span")] == ["Layer", "Other"]
    text = explain_output(save_table(tmp_path, ANNOTATED))
    assert "12.50 ms in kernels, most of it for convolution" in text
    assert "- the printed total of 37.50 ms contains 25.00 ms of annotations, as before torch 2.5: kernels took" in text


def test_annotations_outside_the_total_are_not_subtracted() -> None:
    rows = (
        ("ProfilerStep*", "0.000us", "0.000us", "15.000ms", "15.000ms", 2),
        ("ProfilerStep*", "5.000ms", "9.000ms", "0.000us", "6.000ms", 2),
        kernel("void gemm_kernel<float>(int)", "6.000ms"),
        ("Optimizer.step#AdamW.step", "0.000us", "0.000us", "1.000ms", "1.000ms", 2),
    )
    table = read_table(printed(*rows))
    assert (table.device_s, table.annotations_s, len(table.of_kind("span"))) == (0.01, 0.0, 2)


def test_profiled_step_shorter_than_the_total_is_subtracted() -> None:
    rows = (
        ("ProfilerStep*", "0.000us", "0.000us", "8.000ms", "8.000ms", 2),
        kernel("void gemm_kernel<float>(int)", "6.000ms"),
    )
    table = read_table(printed(*rows, total="15.000ms"))
    assert (table.device_s, table.annotations_s) == (pytest.approx(0.007), 0.008)


def test_unclear_rows_that_sum_to_the_total_are_kernels() -> None:
    rows = (kernel("forward_inner", "6.000ms"), kernel("my_gate", "3.900ms"))
    assert read_table(printed(*rows)).listed_s == pytest.approx(0.0099)
    assert read_table(printed(*rows, total="30.000ms")).listed_s == 0


def test_row_as_long_as_an_operator_is_its_kernel() -> None:
    rows = (("fancy::op", "1.000ms", "1.000ms", "2.000ms", "2.000ms", 10), kernel("fancy_inner", "2.000ms"))
    assert [row.kind for row in read_table(printed(*rows)).rows] == ["operator", "kernel"]


@pytest.mark.parametrize("name", ["aiter::fmha_fwd_hd128_bf16_causal_rtna_group", "_attn_fwd", "dequant_kernel"])
def test_row_without_cpu_time_is_a_kernel(name: str) -> None:
    assert [row.kind for row in read_table(printed(kernel(name, "2.000ms"))).rows] == ["kernel"]


def test_operator_without_a_category_is_listed_as_its_kernel() -> None:
    rows = (
        ("CustomFunction", "1.000ms", "1.000ms", "4.000ms", "4.000ms", 7),
        kernel("dequant_kernel", "4.000ms", 7),
        ("aten::mm", "1.000ms", "1.000ms", "5.000ms", "5.000ms", 7),
        kernel("void gemm_part<float>(int)", "2.000ms", 3),
    )
    assert [row.name for row in read_table(printed(*rows)).listed] == ["dequant_kernel", "aten::mm"]


def test_row_with_negative_self_time_is_skipped_and_named(tmp_path: Path) -> None:
    headings = f"{'Name':>40}  {'Self CPU %':>12}  {'Self CPU':>12}  {'CPU total':>12}  {'# of Calls':>12}"
    rows = (("aten::nll_loss_backward", "-1.00%", "-16028.000us", "741.826ms", "64"),)
    rows += (("aten::fill_", "50.00%", "800.000ms", "800.000ms", "2000"),)
    lines = [
        f"{name:>40}  {share:>12}  {self_cpu:>12}  {total:>12}  {calls:>12}"
        for name, share, self_cpu, total, calls in rows
    ]
    rule = f"{'-' * 40}  " + f"{'-' * 12}  " * 4
    text = explain_output(save_table(tmp_path, "\n".join([rule, headings, rule, *lines, rule])))
    assert "- 1 row of negative own time, which torch prints, left out: `aten::nll_loss_backward`" in text
    assert "1.6000 s in operators" in text


def test_profile_printed_in_three_sort_orders_is_one_table(tmp_path: Path) -> None:
    rows = [
        ("aten::mm", "1.000ms", "1.000ms", "5.000ms", "5.000ms", 7),
        ("aten::mul", "1.000ms", "1.000ms", "2.000ms", "2.000ms", 7),
        ("aten::copy_", "1.000ms", "1.000ms", "1.000ms", "1.000ms", 7),
        ("aten::empty", "1.000ms", "1.000ms", "0.000us", "0.000us", 7),
    ]
    orders = (
        "By time:\n" + printed(*rows[:3]),
        "By memory:\n" + printed(*rows[1:]),
        printed(rows[2], rows[0], rows[3]),
    )
    table = read_table("\n\n".join(orders))
    assert ([row.name for row in table.rows], table.listed_s) == ([row[0] for row in rows], 0.008)
    assert read_tables(table.text)[0].rows == table.rows
    assert "Against" not in explain_output(save_table(tmp_path, "\n\n".join(orders)))


def test_profiles_with_equal_totals_and_different_rows_are_separate() -> None:
    first = printed(kernel("void gemm<float>(int)", "5.000ms"))
    assert len(read_tables(first + "\n" + printed(kernel("void gemm<float>(int)", "6.000ms")))) == 2


def test_tables_with_equal_kernel_time_are_compared_by_host_time(tmp_path: Path) -> None:
    rows = (kernel("void gemm<float>(int)", "5.000ms"), kernel("void softmax<float>(int)", "5.000ms"))
    other = (kernel("void gemm<float>(int)", "6.000ms"), kernel("void softmax<float>(int)", "4.000ms"))
    text = explain_output(
        save_table(tmp_path, f"eager:\n{printed(*rows)}\n\ncompiled:\n{printed(*other, cpu='20.000ms')}")
    )
    assert "compiled takes the same kernel time (10.00 ms for 10.00 ms): +1.00 ms matmul, -1.00 ms attention" in text
    assert "; the host's rows take 20.00 ms for 10.00 ms" in text
    assert "1.00x" not in text


@pytest.mark.parametrize("above", ["```shell", "<details>", "~~~", "<details><summary></summary>"])
def test_code_fence_or_tag_is_not_a_title(above: str) -> None:
    assert read_table(f"{above}\n{printed(kernel('void gemm<float>(int)', '5.000ms'))}").title is None
    titled = f"<summary>before</summary>\n{above}\n{printed(kernel('void gemm<float>(int)', '5.000ms'))}"
    assert read_table(titled).title == "before"


def test_processes_of_a_run_are_compared_by_category(tmp_path: Path) -> None:
    def lines(process: str, self_device: str) -> list[str]:
        rows = (
            kernel("ncclDevKernel_AllGather_RING_LL(ncclDev...", self_device),
            kernel("nvjet_tst_448x112", "1.000ms"),
        )
        return [f"({process} pid=10000) {line}" for line in printed(*rows).split("\n")]

    both = [
        line for pair in zip(lines("Engine_7", "5.000ms"), lines("Engine_6", "8.000ms"), strict=True) for line in pair
    ]
    text = explain_output(save_table(tmp_path, "\n".join(both)))
    assert "**Table in line 1, Engine_7**: 10.00 ms in kernels" in text
    assert (
        "**Processes of one run**: Engine_7, Engine_6\n\n- communication: 5.00 ms in Engine_7 to 8.00 ms in Engine_6"
        in text
    )
    assert "Against" not in text


def test_columns_of_torch_1_are_read(tmp_path: Path) -> None:
    rows = [
        ("Name", "Self CPU total %", "Self CPU total", "CPU total %", "CPU total", "CPU time avg", "Number of Calls"),
        ("mkldnn_convolution", "50.00%", "200.000ms", "50.00%", "200.000ms", "200.000us", "1000"),
        ("native_batch_norm", "20.00%", "80.000ms", "20.00%", "80.000ms", "80.000us", "1000"),
        ("sigmoid", "10.00%", "40.000ms", "10.00%", "40.000ms", "40.000us", "1000"),
    ]
    headings, *lines = ["".join(f"{cell:<20}" for cell in row) for row in rows]
    rule = ("-" * 16 + "  ") * 7
    text = explain_output(save_table(tmp_path, "\n".join(["Before quantization:", rule, headings, rule, *lines])))
    assert "(Before quantization): 400.00 ms in operators" in text
    assert "convolution 50 %, norm 20 %, elementwise 10 %" in text


def event(name: str, start: float, length: float, kind: str = "kernel", device: int = 0) -> dict[str, object]:
    arguments = {"device": device, "stream": 7, "correlation": int(start)}
    return {"ph": "X", "cat": kind, "name": name, "pid": 0, "tid": 7, "ts": start, "dur": length, "args": arguments}


TRACE = {
    "schemaVersion": 1,
    "deviceProperties": [{"id": 0, "name": "a GPU"}],
    "traceEvents": [
        event("aten::mm", 0, 5, "cpu_op"),
        event("execute_model", 10, 60, "gpu_user_annotation"),
        event("nvjet_tst_128x8", 10, 30),
        event("void flash::flash_fwd_kernel<128>", 45, 12),
        event("Memcpy DtoD (Device -> Device)", 60, 8, "gpu_memcpy"),
    ],
}


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz", "trace.bin", "trace.txt"])
@pytest.mark.parametrize("is_packed", [False, True])
def test_chrome_trace_is_explained_regardless_of_its_file_name(tmp_path: Path, name: str, is_packed: bool) -> None:
    raw = json.dumps(TRACE).encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(raw) if is_packed else raw)
    text = explain_output(path)
    assert f"**Trace** ({name}): 50.00 us in kernels, most of it for matrix products" in text
    assert "- kernel time: matmul 60 %, attention 24 %, copy/cast 16 %\n" in text
    assert "busy 86 % of the profiled span of 58.00 us" in text
    (row,) = json.loads(explain_output(path, "--format", "json"))
    assert row["kernel_s"] == pytest.approx(50e-6)


def test_trace_of_two_devices_gives_one_table_per_device(tmp_path: Path) -> None:
    events = [event("nvjet_tst_128x8", 0, 30), event("nvjet_tst_128x8", 0, 40, device=1)]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    text = explain_output(path)
    assert "**Trace, device 0** (trace.json): 30.00 us" in text
    assert "**Trace, device 1** (trace.json): 40.00 us" in text


def test_cpu_trace_is_explained_by_its_operators(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [event("aten::mm", 0, 30, "cpu_op")]}))
    assert "30.00 us in operators, most of it for matrix products" in explain_output(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"traceEvents": []}', "no kernel and no operator in this trace"),
        (b'{"traceEvents": [', "not a whole trace"),
        (gzip.compress(b'{"traceEvents": []}', mtime=0)[:-9], "not a whole trace"),
    ],
    ids=("empty", "cut", "cut and packed"),
)
def test_empty_or_truncated_trace_is_refused_in_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(content)
    result = CliRunner().invoke(app, ["explain", "--format", "markdown", str(path)])
    assert (result.exit_code, result.output.count("\n")) == (2, 1)
    assert message in result.output
    assert str(path) in result.output.replace("\n", "")


def test_serving_results_are_refused_with_a_hint_to_import(tmp_path: Path) -> None:
    path = tmp_path / "serve.log"
    path.write_text("===== Serving Benchmark Result =====\nSuccessful requests:  1\nTotal input tokens:  5\n"
                    "Total generated tokens:  5\nOutput token throughput (tok/s):  5.0\n")  # fmt: skip
    result = CliRunner().invoke(app, ["explain", "--format", "markdown", str(path)])
    assert result.exit_code == 2
    assert "give it to `benchmarker import`" in result.output


def test_profiler_step_has_the_category_other() -> None:
    assert category("ProfilerStep*") == "other"
