"""What a printed profiler table says by itself, and with the latencies above it: on the reference logs."""

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
    """By variant; the log has one table each, and the QLoRA table stands alone."""
    fp16, int8, gptq, _ = read_log_or_trace(ROCM).reports
    return {"fp16": fp16, "int8": int8, "gptq": gptq, "qlora": read_log_or_trace(QLORA).reports[0]}


def with_latencies(name: str) -> Explanation:
    (run,) = [record for record in read_log_or_trace(ROCM).records if record.variant.name == name]
    found = explain(name, [run])
    assert isinstance(found, Explanation)
    return found


def output(*arguments: object) -> str:
    done = CliRunner().invoke(app, ["explain", "--format", "markdown", *map(str, arguments)])
    assert done.exit_code == 0, done.output
    return done.output


def test_from_its_table_alone_fp16_was_busy_for_at_most_60_percent_of_the_profiled_span() -> None:
    report = reports()["fp16"]
    assert report.busy_at_most == pytest.approx(0.599, abs=0.0005)
    assert report.bound != "host"
    printed = output(ROCM)
    assert "busy at most 60 % of the profiled span of 4.1210 s; that is no verdict" in printed


@pytest.mark.parametrize(("name", "share"), [("fp16", 0.89), ("int8", 0.92), ("gptq", 0.74), ("gptq New", 0.75)])
def test_with_the_latencies_above_it_a_table_gives_the_busy_share(name: str, share: float) -> None:
    found = with_latencies(name)
    assert round(found.busy_share, 2) == share
    assert found.verdict.bound != "host"


def test_the_profilers_slow_down_is_named() -> None:
    assert any(
        note == "with the profiler a token took 41.2 ms, 1.48x the 27.8 ms without it: the gaps are 11 % of the time "
        "without, or up to 40 % if it slowed the kernels too"
        for note in with_latencies("fp16").notes
    )


def test_int8_is_bound_by_converting_its_weights_and_the_copy_kernel_is_named() -> None:
    report, found = reports()["int8"], with_latencies("int8")
    assert (report.bound, found.verdict.bound) == ("dequantizing", "dequantizing")
    assert report.conversion is not None
    assert report.conversion.kernel.name.startswith("void at::native::elementwise_kernel_manual_unroll<12")
    assert (report.conversion.kernel.calls, round(report.conversion.share, 2)) == (25300, 0.55)
    assert "`elementwise_kernel_manual_unroll<12...`" in unmarked(found.verdict.reason)


def test_no_copy_of_fp16_is_taken_for_a_conversion() -> None:
    assert reports()["fp16"].conversion is None
    assert reports()["qlora"].conversion is None


def test_gptq_shows_the_triton_dequantize_kernel_at_a_third_of_the_kernel_time() -> None:
    report = reports()["gptq"]
    assert report.bounds == ("matrix products", "dequantizing")
    assert round(report.phase.share("dequantize"), 2) == 0.32
    assert ", unpacking 24 % (1.31x without), " in with_latencies("gptq").verdict.reason


def test_the_qlora_table_separates_matmul_dequantize_and_attention_backward() -> None:
    phase = reports()["qlora"].phase
    assert {name: round(100 * phase.share(name)) for name in ("matmul", "dequantize", "attention")} == {
        "matmul": 60,
        "dequantize": 7,
        "attention": 6,
    }
    assert "| `aten::_efficient_attention_backward` | attention " in output(QLORA)


def test_every_listed_row_with_device_time_has_a_category() -> None:
    tables = [report.table for report in reports().values()]
    rows = [row for table in tables for row in (*table.of_kind("kernel"), *table.of_kind("operator"))]
    assert [row.name for row in rows if category(row.name) == "other"] == []
    assert len(rows) == 29


def test_what_a_cut_table_leaves_out_is_shown_and_never_guessed() -> None:
    left_out = [
        report.phase.not_listed_s / report.phase.kernel_s
        for report in (*read_log_or_trace(ROCM).reports, reports()["qlora"])
    ]
    assert [round(100 * share) for share in left_out] == [25, 12, 24, 24, 15]
    assert "| (not in the table) |             | 609.08 ms | 24.7 |      – |" in output(ROCM)
    assert {part.name: round(1e3 * part.seconds, 1) for part in with_latencies("fp16").waterfall} == {
        "matrix products": 16.2,
        "norms, rotary, elementwise": 2.4,
        "not in the table": 6.1,
        "gaps (launches, host)": 3.1,
    }


def test_rows_that_repeat_others_are_counted_once_and_the_traffic_is_told() -> None:
    facts = str(table_to_blocks(reports()["int8"])[-1])
    assert "the own times of all rows add up to 313 % of the total" in facts
    assert facts.count(" allocated ") == 1
    assert "- `aten::_to_copy` allocated 754.76 GiB in 54,875 calls" in output(ROCM)


def test_the_log_of_three_variants_says_why_each_is_slower() -> None:
    printed = output(ROCM)
    assert (
        "- int8 is 0.61x as fast as fp16: +22.9 ms/token dequantizing (converting each weight before it "
        "is multiplied), -6.56 ms matrix products" in printed
    )
    assert "- gptq is 0.64x as fast as fp16: +10.3 ms/token dequantizing, +8.39 ms gaps" in printed


def test_several_tables_of_one_file_are_set_side_by_side_when_asked() -> None:
    assert "**Each against the first**" not in output(ROCM)
    printed = output(ROCM, "--compare")
    assert "| matmul           |     1.6220 s | 966.04 ms (-655.96 ms) |" in printed
    refused = CliRunner().invoke(app, ["explain", "--format", "markdown", "results/reference/h100", "--compare"])
    assert (refused.exit_code, "and no log is given" in refused.output) == (2, True)


def test_a_table_alone_says_what_it_cannot_tell() -> None:
    assert "- a table alone does not show gaps between kernels, prefill and decode apart, " in output(QLORA)


def test_latencies_that_belong_to_an_unknown_variant_are_not_used_and_it_says_why(tmp_path: Path) -> None:
    text = ROCM.read_text(encoding="utf-8")
    path = tmp_path / "unknown.log"
    # From the third run on, without the line that says what it is.
    path.write_text(text[text.index("GPTQ:") + len("GPTQ:") :], encoding="utf-8")
    printed = output(path)
    assert "Its latencies are not used: " in printed
    assert "the variant of this run is unknown" in printed


def test_a_program_gets_tables_as_plain_values() -> None:
    (row,) = json.loads(output(QLORA, "--format", "json"))
    assert row["bound_by"] == "matrix products"
    assert row["kernel_s"] == pytest.approx(3.904)
    assert row["busy_at_most_of_profiled_span"] is None


def test_a_text_without_a_table_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("nothing here\n")
    with pytest.raises(ResultsError, match=r"no table of torch\.profiler; print one with"):
        read_log_or_trace(path)
    done = CliRunner().invoke(app, ["explain", "--format", "markdown", str(path)])
    assert done.exit_code == 2


def printed(headings: str, *rows: str, total: str = "") -> str:
    """A table of columns and cells that are parted by bars."""
    lines = [
        "".join(f"{cell.strip():>{50 if at == 0 else 12}}  " for at, cell in enumerate(line.split("|")))
        for line in (headings, *rows)
    ]
    rule = f"{'-' * 50}  " + f"{'-' * 12}  " * headings.count("|")
    return "\n".join([rule, lines[0], rule, *lines[1:], rule, total, ""])


def alone(tmp_path: Path, *tables: str) -> Path:
    path = tmp_path / "table.txt"
    path.write_text("\n".join(tables))
    return path


def reference_log(tmp_path: Path, pattern: str, instead: str) -> Path:
    """The reference log with something in it replaced."""
    path = tmp_path / "log.md"
    path.write_text(re.sub(pattern, instead, ROCM.read_text(encoding="utf-8"), flags=re.MULTILINE), encoding="utf-8")
    return path


ON_DEVICE = "Name | Self CPU | Self CUDA | # of Calls"
ON_CPU = "Name | Self CPU | CPU total | # of Calls"
TOTAL = "Self CUDA time total: "


def test_a_log_without_its_totals_is_explained_from_the_percentages(tmp_path: Path) -> None:
    path = reference_log(tmp_path, f"^{TOTAL}.*", "")
    (fp16,) = [record for record in read_log_or_trace(path).records if record.variant.name == "fp16"]
    found = explain("fp16", [fp16])
    assert isinstance(found, Explanation)
    assert round(found.busy_share, 2) == 0.89
    assert any("total is missing: it is worked out from the percentage of a row" in note for note in found.notes)
    head = ": 2.4684 s in kernels (worked out from the percentage of a row), most of it for matrix"
    assert head in output(path)


def test_a_log_without_totals_and_percentages_is_not_explained() -> None:
    (fp16,) = [record for record in read_log_or_trace(ROCM).records if record.variant.name == "fp16"]
    assert fp16.imported is not None
    table = printed(ON_DEVICE, "aten::mm | 1.000s | 1.500s | 10")
    imported = fp16.imported.model_copy(update={"profiler_tables": (table,)})
    found = explain("fp16", [fp16.model_copy(update={"imported": imported})])
    assert isinstance(found, NotExplained)
    assert "no line `Self CUDA time total`, and no percentages to work it out from" in found.why


def test_a_logs_rows_that_are_more_than_its_total_are_summed(tmp_path: Path) -> None:
    path = reference_log(tmp_path, f"^{TOTAL}2.468s", f"{TOTAL}1.000s")
    (fp16,) = [record for record in read_log_or_trace(path).records if record.variant.name == "fp16"]
    found = explain("fp16", [fp16])
    assert isinstance(found, Explanation)
    assert found.phase.busy_s == pytest.approx(0.01621823)
    assert any("rows add up to more than the total below them: their sum is used" in note for note in found.notes)


def test_without_a_total_a_table_gives_no_verdict_and_no_part_that_is_left_out(tmp_path: Path) -> None:
    path = alone(tmp_path, printed(ON_DEVICE, "aten::mm | 1.000s | 1.500s | 10", "aten::mul | 1.000s | 0.500s | 10"))
    text = output(path)
    assert "**Table in line 1**: its total is missing, and without it there is no verdict" in text
    assert "- kernel time of the rows listed: matmul 75 %, elementwise 25 %; the time that the table leaves o" in text
    assert "not in the table" not in text
    (row,) = json.loads(output(path, "--format", "json"))
    assert (row["bound_by"], row["kernel_s"], row["not_listed_s"]) == (None, None, None)


def test_a_table_side_by_side_does_not_claim_to_be_whole(tmp_path: Path) -> None:
    rows = printed(ON_DEVICE, "aten::mm | 1.000s | 1.500s | 10")
    text = output(alone(tmp_path, rows, f"{rows}{TOTAL}2.000s"), "--compare")
    assert "| not in the table |                     – |           500.00 ms |" in text
    assert "| **all kernels**  | **at least 1.5000 s** |        **2.0000 s** |" in text


def test_a_total_smaller_than_its_rows_is_named_and_not_used(tmp_path: Path) -> None:
    path = alone(tmp_path, printed(ON_DEVICE, "void gemm(int) | 0.000us | 1.500s | 10", total=f"{TOTAL}1.000s"))
    text = output(path)
    assert "1.5000 s in kernels" in text
    assert "- its rows add up to 1.5000 s, more than the total of 1.0000 s below them: their sum is used" in text
    assert "not in the table" not in text


def test_a_tables_kernels_without_a_category_are_named(tmp_path: Path) -> None:
    rows = ("void strange(int) | 0.000us | 0.200s | 10", "void gemm(int) | 0.000us | 0.800s | 10")
    text = output(alone(tmp_path, printed(ON_DEVICE, *rows, total=f"{TOTAL}1.000s")))
    assert "- 20 % of the kernel time has no category, such as `strange(int)`" in text
    assert "has no category" not in output(ROCM)


@pytest.mark.parametrize(("total", "has_verdict"), [("1.900s", True), ("2.100s", False)])
def test_a_table_that_lists_less_than_half_gives_no_verdict(tmp_path: Path, total: str, has_verdict: bool) -> None:
    path = alone(tmp_path, printed(ON_DEVICE, "aten::mm | 1.000s | 1.000s | 10", total=f"{TOTAL}{total}"))
    (report,) = read_log_or_trace(path).reports
    assert (report.bound is not None) == has_verdict
    assert ("too little of it listed for a verdict" in output(path)) != has_verdict


def test_a_table_of_a_processor_is_read_by_its_operators(tmp_path: Path) -> None:
    rows = (
        "model_inference | 1.000s | 4.000s | 1",
        "aten::addmm | 1.800s | 1.800s | 990",
        "aten::mul | 0.800s | 0.800s | 990",
        "aten::view | 0.400s | 0.400s | 990",
    )
    path = alone(tmp_path, printed(ON_CPU, *rows, total="Self CPU time total: 4.000s"))
    text = output(path)
    assert "**Table in line 1**: 4.0000 s in operators, most of it for matrix products" in text
    assert "- operator time: matmul 45 %, bookkeeping 35 %, elementwise 20 %, not in the table 0 %" in text
    assert "- a table alone does not show gaps between operators, " in text
    assert "kernel time" not in text
    times = [line.split("|")[3].strip() for line in text.splitlines() if line.startswith("| ")]
    assert times[2:] == ["1.8000 s", "800.00 ms", "400.00 ms", "1.0000 s"]
    (row,) = json.loads(output(path, "--format", "json"))
    assert row["kernel_s"] == sum(row["categories_s"].values()) == pytest.approx(4.0)
    assert (row["by"], row["busy_at_most_of_profiled_span"]) == ("cpu", None)
    path = alone(tmp_path, printed(ON_CPU, *rows[1:], "run | 2.000s | 5.000s | 1", total="Self CPU time total: 5.000s"))
    assert "5.0000 s in operators, most of it for views and allocations, and between operators" in output(path)


@pytest.mark.parametrize(("device", "is_explained"), [("cpu", True), ("cuda", False)])
def test_latencies_of_a_gpu_are_not_held_against_a_processors_time(device: str, is_explained: bool) -> None:
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
    found = explain("fp16", [record])
    assert isinstance(found, Explanation) == is_explained
    assert isinstance(found, Explanation) or "a processor's time alone" in found.why


def test_a_table_of_a_device_without_time_on_it_is_one_line(tmp_path: Path) -> None:
    path = alone(tmp_path, printed(ON_DEVICE, "aten::mm | 1.000ms | 0.000us | 10", total=f"{TOTAL}0.000us"))
    with pytest.raises(ResultsError, match="a profiler table without times"):
        read_log_or_trace(path)
