"""Printed profiler tables of the reference logs are explained, with and without the latencies above them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarker.cli.app import app
from benchmarker.core.errors import ResultsError
from benchmarker.core.tables import unmarked
from benchmarker.explain.explain import Explanation, explain
from benchmarker.explain.waterfall import NotExplained
from benchmarker.logs.explain_log import read_log_or_trace
from benchmarker.logs.table_report import TableReport, table_to_blocks
from benchmarker.profiling.kernel_categories import category

DATA = Path(__file__).parents[1] / "data"
ROCM = DATA / "reference-log.md"
QLORA = DATA / "qlora-table.txt"


def reports() -> dict[str, TableReport]:
    """Return the report of each variant's table in the ROCm log, and of the QLoRA table."""
    fp16, int8, gptq, _ = read_log_or_trace(ROCM).reports
    return {"fp16": fp16, "int8": int8, "gptq": gptq, "qlora": read_log_or_trace(QLORA).reports[0]}


def explain_with_latencies(name: str) -> Explanation:
    (run,) = [record for record in read_log_or_trace(ROCM).records if record.variant.name == name]
    explanation = explain(name, [run])
    assert isinstance(explanation, Explanation)
    return explanation


def explain_output(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["explain", "--format", "markdown", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.output


def test_table_without_latencies_bounds_the_busy_share() -> None:
    report = reports()["fp16"]
    assert report.busy_at_most == pytest.approx(0.599, abs=0.0005)
    assert report.bound != "host"
    text = explain_output(ROCM)
    assert "busy at most 60 % of the profiled span of 4.1210 s; that is no verdict" in text


@pytest.mark.parametrize(("name", "share"), [("fp16", 0.89), ("int8", 0.92), ("gptq", 0.74), ("gptq New", 0.75)])
def test_busy_share_is_computed_from_table_and_latencies(name: str, share: float) -> None:
    explanation = explain_with_latencies(name)
    assert round(explanation.busy_share, 2) == share
    assert explanation.verdict.bound != "host"


def test_profiler_overhead_is_reported() -> None:
    assert any(
        note == "with the profiler a token took 41.2 ms, 1.48x the 27.8 ms without it: the gaps are 11 % of the time "
        "without, or up to 40 % if it slowed the kernels too"
        for note in explain_with_latencies("fp16").notes
    )


def test_int8_is_bound_by_dequantization_in_the_named_copy_kernel() -> None:
    report, explanation = reports()["int8"], explain_with_latencies("int8")
    assert (report.bound, explanation.verdict.bound) == ("dequantizing", "dequantizing")
    assert report.conversion is not None
    assert report.conversion.kernel.name.startswith("void at::native::elementwise_kernel_manual_unroll<12")
    assert (report.conversion.kernel.calls, round(report.conversion.share, 2)) == (25300, 0.55)
    assert "`elementwise_kernel_manual_unroll<12...`" in unmarked(explanation.verdict.reason)


def test_copies_in_fp16_and_qlora_are_not_conversions() -> None:
    assert reports()["fp16"].conversion is None
    assert reports()["qlora"].conversion is None


def test_gptq_spends_a_third_of_the_kernel_time_dequantizing() -> None:
    report = reports()["gptq"]
    assert report.bounds == ("matrix products", "dequantizing")
    assert round(report.phase.share("dequantize"), 2) == 0.32
    assert ", dequantizing 24 % (1.31x without), " in explain_with_latencies("gptq").verdict.reason


def test_qlora_table_separates_matmul_dequantize_and_attention() -> None:
    phase = reports()["qlora"].phase
    assert {name: round(100 * phase.share(name)) for name in ("matmul", "dequantize", "attention")} == {
        "matmul": 60,
        "dequantize": 7,
        "attention": 6,
    }
    assert "| `aten::_efficient_attention_backward` | attention " in explain_output(QLORA)


def test_all_kernels_and_operators_have_a_category() -> None:
    tables = [report.table for report in reports().values()]
    rows = [row for table in tables for row in (*table.of_kind("kernel"), *table.of_kind("operator"))]
    assert [row.name for row in rows if category(row.name) == "other"] == []
    assert len(rows) == 29


def test_kernel_time_missing_from_the_table_is_shown_separately() -> None:
    left_out = [
        report.phase.not_listed_s / report.phase.kernel_s
        for report in (*read_log_or_trace(ROCM).reports, reports()["qlora"])
    ]
    assert [round(100 * share) for share in left_out] == [25, 12, 24, 24, 15]
    assert "| (not in the table) |             | 609.08 ms | 24.7 |      – |" in explain_output(ROCM)
    assert {part.name: round(1e3 * part.seconds, 1) for part in explain_with_latencies("fp16").waterfall} == {
        "matrix products": 16.2,
        "norms, rotary, elementwise": 2.4,
        "not in the table": 6.1,
        "gaps (launches, host)": 3.1,
    }


def test_duplicate_rows_are_counted_once_and_allocations_are_reported() -> None:
    facts = str(table_to_blocks(reports()["int8"])[-1])
    assert "the own times of all rows add up to 313 % of the total" in facts
    assert facts.count(" allocated ") == 1
    assert "- `aten::_to_copy` allocated 754.76 GiB in 54,875 calls" in explain_output(ROCM)


def test_slower_variants_of_a_log_are_explained() -> None:
    text = explain_output(ROCM)
    assert (
        "- int8 is 0.61x as fast as fp16: +22.9 ms/token dequantizing (converting each weight before it "
        "is multiplied), -6.56 ms matrix products" in text
    )
    assert "- gptq is 0.64x as fast as fp16: +10.3 ms/token dequantizing, +8.39 ms gaps" in text


def test_compare_option_shows_tables_of_a_file_side_by_side() -> None:
    assert "**Each against the first**" not in explain_output(ROCM)
    text = explain_output(ROCM, "--compare")
    assert "| matmul           |     1.6220 s | 966.04 ms (-655.96 ms) |" in text
    refused = CliRunner().invoke(app, ["explain", "--format", "markdown", "results/reference/h100", "--compare"])
    assert (refused.exit_code, "and no log is given" in refused.output) == (2, True)


def test_limits_of_a_table_without_latencies_are_stated() -> None:
    assert "- a table alone does not show gaps between kernels, prefill and decode apart, " in explain_output(QLORA)


def test_latencies_of_an_unknown_variant_are_ignored_with_a_reason(tmp_path: Path) -> None:
    log = ROCM.read_text(encoding="utf-8")
    path = tmp_path / "unknown.log"
    # Start at the third run, without the line that names its variant.
    path.write_text(log[log.index("GPTQ:") + len("GPTQ:") :], encoding="utf-8")
    text = explain_output(path)
    assert "Its latencies are not used: " in text
    assert "the variant of this run is unknown" in text


def test_json_output_contains_plain_values() -> None:
    (row,) = json.loads(explain_output(QLORA, "--format", "json"))
    assert row["bound_by"] == "matrix products"
    assert row["kernel_s"] == pytest.approx(3.904)
    assert row["busy_at_most_of_profiled_span"] is None


def test_text_without_a_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("nothing here\n")
    with pytest.raises(ResultsError, match=r"no table of torch\.profiler; print one with"):
        read_log_or_trace(path)
    result = CliRunner().invoke(app, ["explain", "--format", "markdown", str(path)])
    assert result.exit_code == 2


def printed(headings: str, *rows: str, total: str = "") -> str:
    """Return a printed table; each argument is a line of cells separated by bars."""
    lines = [
        "".join(f"{cell.strip():>{50 if at == 0 else 12}}  " for at, cell in enumerate(line.split("|")))
        for line in (headings, *rows)
    ]
    rule = f"{'-' * 50}  " + f"{'-' * 12}  " * headings.count("|")
    return "\n".join([rule, lines[0], rule, *lines[1:], rule, total, ""])


def save_tables(tmp_path: Path, *tables: str) -> Path:
    path = tmp_path / "table.txt"
    path.write_text("\n".join(tables))
    return path


def reference_log(tmp_path: Path, pattern: str, replacement: str) -> Path:
    """Return the path of a copy of the reference log with a pattern replaced."""
    path = tmp_path / "log.md"
    path.write_text(
        re.sub(pattern, replacement, ROCM.read_text(encoding="utf-8"), flags=re.MULTILINE), encoding="utf-8"
    )
    return path


ON_DEVICE = "Name | Self CPU | Self CUDA | # of Calls"
ON_CPU = "Name | Self CPU | CPU total | # of Calls"
TOTAL = "Self CUDA time total: "


def test_missing_totals_are_derived_from_percentages(tmp_path: Path) -> None:
    path = reference_log(tmp_path, f"^{TOTAL}.*", "")
    (fp16,) = [record for record in read_log_or_trace(path).records if record.variant.name == "fp16"]
    explanation = explain("fp16", [fp16])
    assert isinstance(explanation, Explanation)
    assert round(explanation.busy_share, 2) == 0.89
    assert any("total is missing: it is worked out from the percentage of a row" in note for note in explanation.notes)
    head = ": 2.4684 s in kernels (worked out from the percentage of a row), most of it for matrix"
    assert head in explain_output(path)


def test_log_without_totals_and_percentages_is_not_explained() -> None:
    (fp16,) = [record for record in read_log_or_trace(ROCM).records if record.variant.name == "fp16"]
    assert fp16.imported is not None
    table = printed(ON_DEVICE, "aten::mm | 1.000s | 1.500s | 10")
    imported = fp16.imported.model_copy(update={"profiler_tables": (table,)})
    explanation = explain("fp16", [fp16.model_copy(update={"imported": imported})])
    assert isinstance(explanation, NotExplained)
    assert "no line `Self CUDA time total`, and no percentages to work it out from" in explanation.why


def test_rows_exceeding_the_total_of_a_log_are_summed(tmp_path: Path) -> None:
    path = reference_log(tmp_path, f"^{TOTAL}2.468s", f"{TOTAL}1.000s")
    (fp16,) = [record for record in read_log_or_trace(path).records if record.variant.name == "fp16"]
    explanation = explain("fp16", [fp16])
    assert isinstance(explanation, Explanation)
    assert explanation.phase.busy_s == pytest.approx(0.01621823)
    assert any("rows add up to more than the total below them: their sum is used" in note for note in explanation.notes)


def test_table_without_a_total_has_no_verdict_and_no_remainder(tmp_path: Path) -> None:
    path = save_tables(
        tmp_path, printed(ON_DEVICE, "aten::mm | 1.000s | 1.500s | 10", "aten::mul | 1.000s | 0.500s | 10")
    )
    text = explain_output(path)
    assert "**Table in line 1**: its total is missing, and without it there is no verdict" in text
    assert "- kernel time of the rows listed: matmul 75 %, elementwise 25 %; the time that the table leaves o" in text
    assert "not in the table" not in text
    (row,) = json.loads(explain_output(path, "--format", "json"))
    assert (row["bound_by"], row["kernel_s"], row["not_listed_s"]) == (None, None, None)


def test_side_by_side_table_without_a_total_shows_a_lower_bound(tmp_path: Path) -> None:
    rows = printed(ON_DEVICE, "aten::mm | 1.000s | 1.500s | 10")
    text = explain_output(save_tables(tmp_path, rows, f"{rows}{TOTAL}2.000s"), "--compare")
    assert "| not in the table |                     – |           500.00 ms |" in text
    assert "| **all kernels**  | **at least 1.5000 s** |        **2.0000 s** |" in text


def test_total_smaller_than_its_rows_is_reported_and_replaced(tmp_path: Path) -> None:
    path = save_tables(tmp_path, printed(ON_DEVICE, "void gemm(int) | 0.000us | 1.500s | 10", total=f"{TOTAL}1.000s"))
    text = explain_output(path)
    assert "1.5000 s in kernels" in text
    assert "- its rows add up to 1.5000 s, more than the total of 1.0000 s below them: their sum is used" in text
    assert "not in the table" not in text


def test_kernels_without_a_category_are_named(tmp_path: Path) -> None:
    rows = ("void strange(int) | 0.000us | 0.200s | 10", "void gemm(int) | 0.000us | 0.800s | 10")
    text = explain_output(save_tables(tmp_path, printed(ON_DEVICE, *rows, total=f"{TOTAL}1.000s")))
    assert "- 20 % of the kernel time has no category, such as `strange(int)`" in text
    assert "has no category" not in explain_output(ROCM)


@pytest.mark.parametrize(("total", "has_verdict"), [("1.900s", True), ("2.100s", False)])
def test_table_listing_less_than_half_of_the_time_has_no_verdict(tmp_path: Path, total: str, has_verdict: bool) -> None:
    path = save_tables(tmp_path, printed(ON_DEVICE, "aten::mm | 1.000s | 1.000s | 10", total=f"{TOTAL}{total}"))
    (report,) = read_log_or_trace(path).reports
    assert (report.bound is not None) == has_verdict
    assert ("too little of it listed for a verdict" in explain_output(path)) != has_verdict


def test_cpu_table_is_explained_by_its_operators(tmp_path: Path) -> None:
    rows = (
        "model_inference | 1.000s | 4.000s | 1",
        "aten::addmm | 1.800s | 1.800s | 990",
        "aten::mul | 0.800s | 0.800s | 990",
        "aten::view | 0.400s | 0.400s | 990",
    )
    path = save_tables(tmp_path, printed(ON_CPU, *rows, total="Self CPU time total: 4.000s"))
    text = explain_output(path)
    assert "**Table in line 1**: 4.0000 s in operators, most of it for matrix products" in text
    assert "- operator time: matmul 45 %, bookkeeping 35 %, elementwise 20 %, not in the table 0 %" in text
    assert "- a table alone does not show gaps between operators, " in text
    assert "kernel time" not in text
    times = [line.split("|")[3].strip() for line in text.splitlines() if line.startswith("| ")]
    assert times[2:] == ["1.8000 s", "800.00 ms", "400.00 ms", "1.0000 s"]
    (row,) = json.loads(explain_output(path, "--format", "json"))
    assert row["kernel_s"] == sum(row["categories_s"].values()) == pytest.approx(4.0)
    assert (row["by"], row["busy_at_most_of_profiled_span"]) == ("cpu", None)
    path = save_tables(
        tmp_path, printed(ON_CPU, *rows[1:], "run | 2.000s | 5.000s | 1", total="Self CPU time total: 5.000s")
    )
    assert "5.0000 s in operators, most of it for views and allocations, and between operators" in explain_output(path)


@pytest.mark.parametrize(("device", "is_explained"), [("cpu", True), ("cuda", False)])
def test_gpu_latencies_are_not_compared_with_cpu_operator_times(device: str, is_explained: bool) -> None:
    (fp16,) = [record for record in read_log_or_trace(ROCM).records if record.variant.name == "fp16"]
    assert fp16.imported is not None
    table = printed(ON_CPU, "aten::addmm | 1.800s | 1.800s | 990", total="Self CPU time total: 2.000s")
    facts = fp16.environment.device.model_copy(update={"kind": device})
    record = fp16.model_copy(
        update={
            "imported": fp16.imported.model_copy(update={"profiler_tables": (table,)}),
            "environment": fp16.environment.model_copy(update={"device": facts}),
        }
    )
    explanation = explain("fp16", [record])
    assert isinstance(explanation, Explanation) == is_explained
    assert isinstance(explanation, Explanation) or "a processor's time alone" in explanation.why


def test_device_table_without_device_time_is_refused(tmp_path: Path) -> None:
    path = save_tables(tmp_path, printed(ON_DEVICE, "aten::mm | 1.000ms | 0.000us | 10", total=f"{TOTAL}0.000us"))
    with pytest.raises(ResultsError, match="a profiler table without times"):
        read_log_or_trace(path)
