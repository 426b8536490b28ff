"""What a printed profiler table says by itself, and with the latencies above it: on the reference logs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarker.cli import app
from benchmarker.errors import ResultsError
from benchmarker.explaining.explain import explain
from benchmarker.explaining.logs import read_text
from benchmarker.explaining.tables import TableReport
from benchmarker.explaining.values import Explanation
from benchmarker.profiling.kernels import category

DATA = Path(__file__).parent / "data"
ROCM = DATA / "reference-log.md"
QLORA = DATA / "qlora-table.txt"


def reports() -> dict[str, TableReport]:
    """By variant; the log has one table each, and the QLoRA table stands alone."""
    fp16, int8, gptq, _ = read_text(ROCM).reports
    return {"fp16": fp16, "int8": int8, "gptq": gptq, "qlora": read_text(QLORA).reports[0]}


def with_latencies(name: str) -> Explanation:
    (run,) = [record for record in read_text(ROCM).records if record.variant.name == name]
    found = explain(name, [run])
    assert isinstance(found, Explanation)
    return found


def output(*arguments: object) -> str:
    done = CliRunner().invoke(app, ["explain", *map(str, arguments)])
    assert done.exit_code == 0, done.output
    return done.output


def test_from_its_table_alone_fp16_was_busy_for_at_most_60_percent_of_the_profiled_span() -> None:
    report = reports()["fp16"]
    assert report.busy_at_most == pytest.approx(0.599, abs=0.0005)
    assert report.bound != "host"
    printed = output(ROCM)
    assert "busy at most 60 % of the *profiled* span of 4.1210 s; that is no verdict" in printed


@pytest.mark.parametrize(("name", "share"), [("fp16", 0.89), ("int8", 0.92), ("gptq", 0.74), ("gptq New", 0.75)])
def test_with_the_latencies_above_it_a_table_gives_the_busy_share(name: str, share: float) -> None:
    found = with_latencies(name)
    assert round(found.waterfall.busy_share, 2) == share
    assert found.verdict.bound != "host"


def test_the_profilers_slow_down_is_named() -> None:
    assert any(
        note == "with the profiler a token took 41.2 ms, 1.48x the 27.8 ms without it: the gaps are of the time without"
        for note in with_latencies("fp16").notes
    )


def test_int8_is_bound_by_converting_its_weights_and_the_copy_kernel_is_named() -> None:
    report, found = reports()["int8"], with_latencies("int8")
    assert (report.bound, found.verdict.bound) == ("dequantizing", "dequantizing")
    assert report.conversion is not None
    assert report.conversion.kernel.name.startswith("void at::native::elementwise_kernel_manual_unroll<12")
    assert (report.conversion.kernel.calls, round(report.conversion.share, 2)) == (25300, 0.55)
    assert "`elementwise_kernel_manual_unroll<12...`" in found.verdict.reason


def test_no_copy_of_fp16_is_taken_for_a_conversion() -> None:
    assert reports()["fp16"].conversion is None
    assert reports()["qlora"].conversion is None


def test_gptq_shows_the_triton_dequantize_kernel_at_a_third_of_the_kernel_time() -> None:
    report = reports()["gptq"]
    assert report.bound == "dequantizing"
    assert round(report.phase.share("dequantize"), 2) == 0.32
    assert "most of it in `triton_poi_fused_index_mul_sub_0`" in with_latencies("gptq").verdict.reason


def test_the_qlora_table_separates_matmul_dequantize_and_attention_backward() -> None:
    phase = reports()["qlora"].phase
    assert {name: round(100 * phase.share(name)) for name in ("matmul", "dequantize", "attention")} == {
        "matmul": 60,
        "dequantize": 7,
        "attention": 6,
    }
    assert "| `aten::_efficient_attention_backward` | attention " in output(QLORA)


def test_every_listed_row_with_device_time_has_a_category() -> None:
    rows = [row for report in reports().values() for row in report.rows]
    assert [row.name for row in rows if category(row.name) == "other"] == []
    assert len(rows) == 29


def test_what_a_cut_table_leaves_out_is_shown_and_never_guessed() -> None:
    left_out = [
        report.phase.not_listed_s / report.phase.kernel_s for report in (*read_text(ROCM).reports, reports()["qlora"])
    ]
    assert [round(100 * share) for share in left_out] == [25, 12, 24, 24, 15]
    assert "| (not in the table) |             | 609.08 ms | 24.7 |      – |" in output(ROCM)
    assert {part.name: round(1e3 * part.seconds, 1) for part in with_latencies("fp16").waterfall.parts} == {
        "matrix products": 16.2,
        "norms, rotary, elementwise": 2.4,
        "not in the table": 6.1,
        "gaps (launches, host)": 3.1,
    }


def test_rows_that_repeat_others_are_counted_once_and_the_traffic_is_told() -> None:
    report = reports()["int8"]
    assert report.repeated == pytest.approx(3.13, abs=0.005)
    assert [(row.name, row.calls) for row in report.allocations] == [("aten::_to_copy", 54875)]
    assert "- `aten::_to_copy` allocated 754.76 GiB in 54,875 calls" in output(ROCM)


def test_the_log_of_three_variants_says_why_each_is_slower() -> None:
    printed = output(ROCM)
    assert (
        "- int8 is 1.64x slower than fp16 (not tested): +24.1 ms/token copies and casts (converting each weight before "
        "it is multiplied), -6.56 ms matrix products" in printed
    )
    assert "- gptq is 1.57x slower than fp16 (not tested): +10.3 ms/token dequantizing, +8.39 ms gaps" in printed


def test_several_tables_of_one_file_are_set_side_by_side_when_asked() -> None:
    assert "**Each against the first**" not in output(ROCM)
    printed = output(ROCM, "--compare")
    assert "| matmul           |     1.6220 s | 966.04 ms (-655.96 ms) |" in printed


def test_a_table_alone_says_what_it_cannot_tell() -> None:
    assert "- a table alone does not tell: gaps between kernels, prefill from decode, " in output(QLORA)


def test_latencies_that_belong_to_an_unknown_variant_are_not_used_and_it_says_why(tmp_path: Path) -> None:
    text = ROCM.read_text(encoding="utf-8")
    path = tmp_path / "unknown.log"
    # From the third run on, without the line that says what it is.
    path.write_text(text[text.index("GPTQ:") + len("GPTQ:") :], encoding="utf-8")
    printed = output(path)
    assert "Its latencies are not used: " in printed
    assert "does not say which variant" in printed


def test_a_program_gets_tables_as_plain_values() -> None:
    (row,) = json.loads(output(QLORA, "--format", "json"))
    assert row["bound_by"] == "bandwidth or compute"
    assert row["kernel_s"] == pytest.approx(3.904)
    assert row["busy_at_most_of_profiled_span"] is None


def test_a_text_without_a_table_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("nothing here\n")
    with pytest.raises(ResultsError, match=r"no table of torch\.profiler; print one with"):
        read_text(path)
    done = CliRunner().invoke(app, ["explain", str(path)])
    assert done.exit_code == 2


def test_a_table_of_the_cpu_alone_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "cpu.txt"
    rule = "----------  ----------  ----------  ----------  \n"
    path.write_text(
        f"{rule}      Name    Self CPU   CPU total  # of Calls  \n{rule}"
        f"  aten::mm     1.000ms     1.000ms          10  \n{rule}Self CPU time total: 1.000ms\n"
    )
    with pytest.raises(ResultsError, match="a table, but no time on a device in it"):
        read_text(path)
