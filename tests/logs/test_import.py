"""Old logs are imported as records that can be compared with new ones."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from benchmarker.comparison.results import to_rows
from benchmarker.core.errors import BenchmarkerError, ResultsError, SpecError
from benchmarker.logs.log_import import import_log, write_imports
from benchmarker.profiling.printed_reader import read_tables
from benchmarker.report.compare import compare
from benchmarker.schema.record import DeviceFacts, Memory
from benchmarker.schema.record_io import read_record
from benchmarker.schema.registry import workload_of
from benchmarker.workloads.generation.record import GenerationRecord, GenerationSample
from tests.records import record, save

REFERENCE = Path(__file__).parents[1] / "data" / "reference-log.md"
GIB = 2**30

ENGLISH = """\
int8 compile: Qwen/Qwen3-4B on NVIDIA H100 80GB HBM3
loaded in 3.10 s: weights 4.21 GiB, 8.99 bits a weight, peak 7.60 GiB
prompt of 26, 50 new tokens, batch of 2
  run 1/2: latency 1.0000 s, 100 tokens, 100.00 tok/s, memory 5.27 GiB
  run 2/2: latency 1.0100 s, 100 tokens, 99.01 tok/s, memory 5.28 GiB
profiling one generation of 32 tokens
"""

SCRIPT_IN_ENGLISH = """\
=== Starting test: Qwen3-4B ===

--- Test config: Qwen3-4B_input_length_3_generate_50 ---
  Run 1/2: latency=1.3832s, generated 50 tokens, throughput=36.15 t/s, memory=7.59GB
  Run 2/2: latency=1.3810s, generated 50 tokens, throughput=36.21 t/s, memory=7.59GB
"""

ONE_TOKEN = """\
int8: Qwen/Qwen3-4B on NVIDIA H100 80GB HBM3
prompt of 26, 1 new token
  run 1/1: latency 0.0100 s, 1 token, 100.00 tok/s, memory 5.27 GiB
"""


def log(folder: Path, text: str | bytes) -> Path:
    path = folder / "old.log"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def mean_latencies(run: GenerationRecord) -> dict[tuple[int, int], float]:
    return {
        (cell.prompt_tokens, cell.new_tokens): round(statistics.fmean(sample.latency_s for sample in cell.samples), 4)
        for cell in run.cells
    }


def test_single_token_is_printed_and_read_in_the_singular(tmp_path: Path) -> None:
    (run,) = import_log(log(tmp_path, ONE_TOKEN))
    (cell,) = run.cells
    words = {axis.name: axis.words for axis in workload_of("generation").axes}
    assert words["new_tokens"](cell.new_tokens) == "1 new token"
    assert workload_of("generation").sample_text(cell, cell.samples[0]) == "1 token, 100.00 tok/s"
    ranks = {axis.name: axis.words for axis in workload_of("context_parallel").axes}["ranks"]
    assert (ranks(1), ranks(2)) == ("1 rank", "2 ranks")


def test_reference_log_gives_four_runs_with_their_mean_latencies() -> None:
    # The log averages unrounded times: two of its sixteen means differ from these in the last digit.
    assert {run.variant.name: mean_latencies(run) for run in import_log(REFERENCE)} == {
        "fp16": {(3, 50): 1.3825, (3, 100): 2.7686, (26, 50): 1.3873, (26, 100): 2.7780},
        "int8": {(3, 50): 2.2752, (3, 100): 4.5582, (26, 50): 2.2819, (26, 100): 4.5659},
        "gptq": {(3, 50): 2.1392, (3, 100): 4.3496, (26, 50): 2.1814, (26, 100): 4.3710},
        "gptq New": {(3, 50): 2.1213, (3, 100): 4.2629, (26, 50): 2.1427, (26, 100): 4.2964},
    }


def test_record_contains_the_evidence_for_its_variant() -> None:
    assert [
        (run.variant.quant, run.imported.line, run.imported.evidence) for run in import_log(REFERENCE) if run.imported
    ] == [
        ("fp16", 9, "line 4: a model is loaded, and no line names a quantization"),
        ("int8", 80, "line 75: '[load_model_and_tokenizer] Model quantized to int8.'"),
        ("gptq", 151, "line 150: 'GPTQ:'"),
        ("gptq", 217, "line 150: 'GPTQ:', then line 216: 'New:'"),
    ]


def test_facts_missing_from_the_log_are_none() -> None:
    first = import_log(REFERENCE)[0]
    assert first.cells[0].samples[0] == GenerationSample(
        latency_s=1.3832, new_tokens=50, peak_allocated_bytes=round(7.59 * GIB), ttft_s=None, tpot_s=None
    )
    assert first.cells[3].memory == Memory(peak_allocated_bytes=round(7.60 * GIB))
    assert first.environment.model_dump() == {
        "device": DeviceFacts(kind="rocm", name="unnamed AMD GPU").model_dump(),
        "cpu": None,
        "cores": None,
        "threads": 24,
        "memory_bytes": None,
        "system": None,
        "python": None,
        "packages": {},
        "variables": {},
        "governor": None,
        "commit": None,
    }
    assert (first.started_at, first.model.id, first.status) == ("2025-10-14", "Qwen3-4B", "complete")
    assert (first.load, first.engine, first.profile) == (None, None, None)


def test_record_contains_the_profiler_table_that_follows_the_run() -> None:
    texts = [run.imported.profiler_tables for run in import_log(REFERENCE) if run.imported]
    assert [[table.device_s for text in texts_of_run for table in read_tables(text)] for texts_of_run in texts] == [
        [2.468], [4.192], [3.223], [3.204],
    ]  # fmt: skip


def test_imported_runs_are_compared_in_the_order_of_the_log(tmp_path: Path) -> None:
    paths = write_imports(import_log(REFERENCE), tmp_path)
    assert [read_record(path).variant.name for path in paths] == ["fp16", "int8", "gptq", "gptq New"]
    rows = [row for row in to_rows(compare([tmp_path])) if (row["prompt_tokens"], row["new_tokens"]) == (26, 100)]
    assert [
        (row["variant"], row["latency_s"], round(row["ratio"], 2), row["ttft_s"], row["flags"]) for row in rows
    ] == [
        ("fp16", 2.7775, 1.0, None, ["imported"]),
        ("int8", 4.5658, 0.61, None, ["imported"]),
        ("gptq", 4.3712, 0.64, None, ["imported"]),
        ("gptq New", 4.2964, 0.65, None, ["imported"]),
    ]


def test_second_import_replaces_the_records_of_the_first(tmp_path: Path) -> None:
    assert write_imports(import_log(REFERENCE), tmp_path) == write_imports(import_log(REFERENCE), tmp_path)
    assert len(list(tmp_path.iterdir())) == 4


def test_comparison_with_new_records_requires_force_and_flags_imports(tmp_path: Path) -> None:
    write_imports(import_log(REFERENCE, model="Qwen/Qwen3-4B", device="AMD Radeon RX 7900 XTX"), tmp_path)
    save(tmp_path, record("bnb4"))
    with pytest.raises(
        ResultsError, match="device is NVIDIA H100 80GB HBM3 in 1 record and AMD Radeon RX 7900 XTX in 4 "
    ):
        compare([tmp_path])
    forced = compare([tmp_path], force=True)
    flags = {row.variant: row.flags for row in forced.rows if row.status == "ok"}
    assert flags == {
        "fp16": ("imported",),
        "int8": ("imported",),
        "gptq": ("imported",),
        "gptq New": ("imported",),
        "bnb4": (),
    }
    assert "imported: read from a log, which contains less than a record" in forced._repr_markdown_()


def test_output_of_benchmarker_run_is_imported(tmp_path: Path) -> None:
    (run,) = import_log(log(tmp_path, ENGLISH))
    assert (run.variant.name, run.variant.quant, run.variant.engine) == ("int8 compile", "int8", "compile")
    assert (run.model.id, run.environment.device.name) == ("Qwen/Qwen3-4B", "NVIDIA H100 80GB HBM3")
    assert (run.environment.device.kind, run.started_at) == ("cuda", "undated")
    (cell,) = run.cells
    assert (cell.prompt_tokens, cell.new_tokens, cell.batch_size) == (26, 50, 2)
    assert cell.samples == (
        GenerationSample(latency_s=1.0, new_tokens=50, peak_allocated_bytes=round(5.27 * GIB)),
        GenerationSample(latency_s=1.01, new_tokens=50, peak_allocated_bytes=round(5.28 * GIB)),
    )


def test_reference_script_log_in_english_is_imported(tmp_path: Path) -> None:
    (run,) = import_log(log(tmp_path, f"GPTQ:\n{SCRIPT_IN_ENGLISH}"), day="2025-10-14")
    assert (run.variant.name, run.started_at, mean_latencies(run)) == ("gptq", "2025-10-14", {(3, 50): 1.3821})


def test_log_without_a_variant_requires_the_quant_option(tmp_path: Path) -> None:
    path = log(tmp_path, SCRIPT_IN_ENGLISH)
    with pytest.raises(SpecError) as caught:
        import_log(path)
    assert str(caught.value) == (
        f"{path}: line 1: the variant of this run is unknown; the log has 1 run (line 1): "
        f"name one for each, in their order, as in --quant fp16"
    )
    (run,) = import_log(path, quants=["bnb4"])
    assert run.imported
    assert (run.variant.name, run.imported.evidence) == ("bnb4", "given: --quant bnb4")
    assert run.reproduce == f"benchmarker import {path} --quant bnb4"


def test_variant_is_unknown_after_a_traceback(tmp_path: Path) -> None:
    text = "[load_model_and_tokenizer] Loading model\nTraceback (most recent call last):\n" + SCRIPT_IN_ENGLISH
    with pytest.raises(SpecError, match="the variant of this run is unknown"):
        import_log(log(tmp_path, text))


def test_unknown_quantization_is_not_imported_as_fp16(tmp_path: Path) -> None:
    text = "[load_model_and_tokenizer] Loading model\nApplying fp8 quantization\n" + SCRIPT_IN_ENGLISH
    with pytest.raises(SpecError, match="the variant of this run is unknown"):
        import_log(log(tmp_path, text))


def test_quantization_in_the_model_name_determines_the_variant(tmp_path: Path) -> None:
    text = "[load_model_and_tokenizer] Loading model\n" + SCRIPT_IN_ENGLISH.replace("Qwen3-4B ===", "Qwen3-4B-GPTQ ===")
    (run,) = import_log(log(tmp_path, text))
    assert (run.variant.quant, run.model.id) == ("gptq", "Qwen3-4B-GPTQ")


def test_two_runs_of_a_variant_are_two_rounds(tmp_path: Path) -> None:
    records = import_log(
        log(tmp_path, f"fp16:\n{SCRIPT_IN_ENGLISH}\nint8:\n{SCRIPT_IN_ENGLISH}\nfp16:\n{SCRIPT_IN_ENGLISH}")
    )
    assert [(run.variant.name, run.round) for run in records] == [("fp16", 0), ("int8", 0), ("fp16", 1)]


def test_generation_that_stopped_early_is_invalid(tmp_path: Path) -> None:
    (run,) = import_log(
        log(
            tmp_path,
            "fp16:\n" + SCRIPT_IN_ENGLISH.replace("50 tokens, throughput=36.21", "20 tokens, throughput=14.48"),
        )
    )
    assert (run.cells[0].status, run.cells[0].reason) == ("invalid", "20 tokens were generated; 50 were requested")


def test_log_truncated_between_runs_gives_an_interrupted_record(tmp_path: Path) -> None:
    (run,) = import_log(log(tmp_path, "fp16:\n" + "\n".join(SCRIPT_IN_ENGLISH.split("\n")[:4])))
    assert (run.status, run.reason) == ("interrupted", "the log has 1 of 2 timed runs at prompt 3, 50 new tokens")
    assert len(run.cells[0].samples) == 1


def test_colours_progress_bars_and_windows_line_ends_are_ignored(tmp_path: Path) -> None:
    text = SCRIPT_IN_ENGLISH.replace("  Run 1/2", "loading  10 %\rloading 100 %\r  \x1b[32mRun 1/2\x1b[0m").replace(
        "\n", "\r\n"
    )
    for saved in (text.encode(), text.encode("utf-8-sig"), text.encode("utf-16")):
        (run,) = import_log(log(tmp_path, saved), quants=["fp16"])
        assert mean_latencies(run) == {(3, 50): 1.3821}


BROKEN = {
    b"": "the file is empty; give the log of a run",
    b" \n\n": "the file is empty; give the log of a run",
    b"1 + 1 = 2\n": (
        "no run found; a log has lines such as `run 1/5: latency 1.3832 s, 50 tokens, 36.15 tok/s, memory 7.59 GiB`; "
        "docs/imports.md lists other files, and `benchmarker explain` reads a profiler's table"
    ),
    "=== 开始测试: Qwen3-4B ===".encode("gb18030"): (
        "line 1: not UTF-8 text; convert it, as with `iconv -f GB18030 -t UTF-8`"
    ),
    b"PK\x03\x04\x00\x00": "not a text file; give the log of a run, as UTF-8 text",
    b"run 1/5: latency 1.3832 s, 50 tokens, 36.15 tok/s\n": (
        "line 1: a timed run without a heading such as `prompt of 26, 50 new tokens`; add it"
    ),
    SCRIPT_IN_ENGLISH[:-30].encode(): (
        "line 5: incomplete line of a timed run; get the whole log, or remove the line: "
        "'Run 2/2: latency=1.3810s, generated 50 tokens, throug'"
    ),
    SCRIPT_IN_ENGLISH.replace("36.21", "72.42").encode(): (
        "line 5: 50 tokens in 1.381 s are not 72.42 tokens/s; remove the line"
    ),
    SCRIPT_IN_ENGLISH.replace("Run 2/2", "Run 1/2").encode(): (
        "line 5: run 1 after run 1; add the heading that is missing between them"
    ),
    "\n".join(REFERENCE.read_text(encoding="utf-8").split("\n")[:58]).encode(): (
        "line 56: the profiler's table that begins here is cut before its first row; "
        "get the whole log, or take these lines out"
    ),
}


@pytest.mark.parametrize("text", BROKEN)
def test_broken_log_is_refused_with_the_line_number(tmp_path: Path, text: bytes) -> None:
    path = log(tmp_path, text)
    with pytest.raises(ResultsError) as caught:
        import_log(path)
    assert str(caught.value) == f"{path}: {BROKEN[text]}"


def test_missing_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match=r"nowhere\.log: cannot be read: No such file or directory$"):
        import_log(tmp_path / "nowhere.log")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quants": ["bnb-4"]}, "--quant bnb-4: no such quantization; did you mean 'bnb4'?"),
        ({"quants": ["fp16"]}, "--quant names 1 and the log has 4 runs (lines 9, 80, 151, 217); name one for each"),
        ({"day": "14.10.2025"}, "--day 14.10.2025: write it as 2025-10-14"),
        ({"kind": "rocn"}, "--kind rocn: no such kind of device; did you mean 'rocm'?"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(BenchmarkerError) as caught:
        import_log(REFERENCE, **options)  # type: ignore[arg-type]
    assert str(caught.value).endswith(message)


def test_long_lines_of_dashes_are_parsed_without_backtracking(tmp_path: Path) -> None:
    text = ("-" * 290 + "\n") * 1000 + "-" * 1_000_000 + "\n"
    with pytest.raises(ResultsError, match="no run found"):
        import_log(log(tmp_path, text))
