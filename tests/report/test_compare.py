"""Grouping of records into rows and cells, choice of the baseline, and JSON rows."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarker.comparison.ranking import ranking_of
from benchmarker.comparison.recommend import recommend
from benchmarker.comparison.results import to_rows
from benchmarker.core import stats
from benchmarker.core.errors import SpecError
from benchmarker.core.tables import unmarked
from benchmarker.report.answer import answer
from benchmarker.report.columns import first_table, memory
from benchmarker.report.compare import caveats_of, chosen_sheet, compare, remarks_of
from benchmarker.report.verify import verify
from benchmarker.schema.model import EngineFacts, KernelUse
from benchmarker.schema.quality import TaskResult
from benchmarker.schema.record import Memory
from benchmarker.workloads.generation.reading.quality_tables import task_answers
from script.house import ROOT
from tests.records import (
    cell,
    failed_cell,
    failed_record,
    load,
    record,
    refusal,
    rounds,
    rows_of,
    save,
)


def test_json_row_has_every_key_in_base_units(tmp_path):
    save(
        tmp_path,
        record("fp16", cell([2.0, 2.0, 2.0])),
        record("int8", cell([1.0, 1.25, 1.3], flags=("unstable_warmup",)), load=load(weight_bytes=4_000_000_000)),
    )
    [_, row] = to_rows(compare([tmp_path]))
    assert row == {
        "variant": "int8",
        "quant": "int8",
        "engine": "eager",
        "model": "Qwen/Qwen3-4B",
        "device": "NVIDIA H100 80GB HBM3",
        "prompt_tokens": 26,
        "new_tokens": 50,
        "batch_size": 1,
        "depth": 0,
        "status": "ok",
        "latency_s": pytest.approx(1.25),
        "ttft_s": pytest.approx(0.025),
        "tpot_s": pytest.approx(0.025),
        "tokens_per_s": pytest.approx(40.0),
        "decode_tokens_per_s": pytest.approx(40.0),
        "tokens_per_step": None,
        "peak_memory_bytes": 8_150_000_000,
        "weight_bytes": 4_000_000_000,
        "working_bytes": 4_150_000_000,
        "reserved_kv_bytes": None,
        "bits_per_weight": pytest.approx(7.955, abs=1e-3),
        "load_s": 12.3,
        "setup_s": None,
        "setup_cold_s": None,
        "setup_warm_s": None,
        "mbu": None,
        "floor_s": None,
        "best_ratio": None,
        "best_ratio_reached": None,
        "prefill_mfu": None,
        "kernels_per_token": None,
        "same_tokens": None,
        "ratio": pytest.approx(1.6),
        "ratio_low": None,
        "ratio_high": None,
        "reference": "fp16",
        "call_ratio": pytest.approx(1.6),
        "call_ratio_low": None,
        "call_ratio_high": None,
        "verdict": "not tested",
        "bound_by": None,
        "perplexity": None,
        "kl_divergence": None,
        "top1_agreement": None,
        "tokens_in_common": 3,
        "energy_per_token_j": None,
        "energy_net_per_token_j": None,
        "energy_decode_per_token_j": None,
        "energy_prefill_j": None,
        "rounds": 1,
        "runs": 3,
        "dummy_weights": False,
        "flags": ["unstable_warmup"],
    }


def test_five_rounds_give_an_interval_and_a_verdict(tmp_path):
    save(tmp_path, *rounds("fp16", [1.38, 1.39, 1.37, 1.40, 1.38]), *rounds("int8", [0.76, 0.77, 0.75, 0.77, 0.76]))
    row = rows_of(tmp_path)["int8"]
    assert row["verdict"] == "faster"
    assert row["ratio_low"] < row["ratio"] < row["ratio_high"]
    assert row["ratio"] == pytest.approx(1.816, abs=0.001)
    assert (row["rounds"], row["runs"]) == (5, 15)


def test_tokens_per_second_count_the_whole_batch(tmp_path):
    save(tmp_path, record("fp16", cell([2.0], new_tokens=50, batch_size=4)))
    assert rows_of(tmp_path)["fp16"]["tokens_per_s"] == pytest.approx(100.0)


def test_repeated_processes_of_one_round_are_not_tested(tmp_path):
    # Without rounds the runs were not interleaved with the baseline's.
    save(
        tmp_path,
        *(
            record(quant, cell([latency_s]), run_id=f"{quant}{number}")
            for quant, latency_s in (("fp16", 2.0), ("int8", 1.0))
            for number in range(5)
        ),
    )
    row = rows_of(tmp_path)["int8"]
    assert (row["verdict"], row["rounds"], row["runs"]) == ("not tested", 1, 5)


def numbers(ratio: stats.Ratio) -> object:
    """Return the fields of a ratio of all rounds to 11 digits. Decode times differ from latencies in the last one."""
    *values, common = dataclasses.astuple(ratio)
    return [*(f"{value:.11g}" for value in values), common]


def test_rounds_of_different_sweeps_are_not_paired(tmp_path):
    base, other = [1.0, 1.1, 1.2], [0.5, 0.56, 0.59]
    paired_records = [*rounds("fp16", base, sweep="monday"), *rounds("int8", other, sweep="monday")]
    (paired,) = [row for row in compare([save(tmp_path / "one", *paired_records)]).rows if row.variant == "int8"]
    unpaired_records = [*rounds("fp16", base, sweep="monday"), *rounds("int8", other, sweep="tuesday")]
    (unpaired,) = [row for row in compare([save(tmp_path / "two", *unpaired_records)]).rows if row.variant == "int8"]
    assert numbers(paired.ratio) == numbers(stats.paired_ratio(dict(enumerate(base)), dict(enumerate(other))))
    assert numbers(unpaired.ratio) == numbers(stats.unpaired_ratio(base, other))
    later = {"sweep": "tuesday", "started_at": "2026-03-02T10:00:00Z"}
    repeated = [*paired_records, *rounds("fp16", base, **later), *rounds("int8", other, **later)]
    (both,) = [row for row in compare([save(tmp_path / "three", *repeated)]).rows if row.variant == "int8"]
    assert (both.rounds, both.ratio.rounds) == (6, 6)
    assert verify([tmp_path / "two"]).is_right
    assert verify([tmp_path / "three"]).is_right


def test_single_new_token_has_no_tpot(tmp_path):
    save(tmp_path, record("fp16", cell([0.5], new_tokens=1)))
    row = rows_of(tmp_path)["fp16"]
    assert (row["tpot_s"], row["decode_tokens_per_s"]) == (None, None)


def test_baseline_is_eager_fp16_in_any_order(tmp_path):
    save(tmp_path, record("int8"), record("fp16", name="compiled", runtime="compile"), record("fp16", name="plain"))
    assert compare([tmp_path]).baseline == "plain"


def test_single_runs_are_sorted_by_quantization_and_engine(tmp_path):
    variants = [("gptq", "compile"), ("fp16", "compile"), ("gptq", "eager"), ("fp16", "cuda_graph"), ("fp16", "eager")]
    save(
        tmp_path,
        *(
            record(quant, name=f"{quant} {runtime}", runtime=runtime, started_at=f"2026-03-01T1{at}:00:00Z")
            for at, (quant, runtime) in enumerate(variants)
        ),
    )
    assert [row["variant"] for row in to_rows(compare([tmp_path]))] == [
        "gptq eager", "gptq compile", "fp16 eager", "fp16 cuda_graph", "fp16 compile",
    ]  # fmt: skip


def test_baseline_is_fp16_of_another_engine_without_eager(tmp_path):
    save(tmp_path, record("int8"), record("fp16", cell(), name="captured", runtime="cuda_graph"), record("gptq"))
    assert compare([tmp_path]).baseline == "captured"
    compiled = record("fp16", cell(), name="compiled", runtime="compile")
    refused = record("fp16", failed_cell("unsupported", "no graph"), name="captured", runtime="cuda_graph")
    save(tmp_path / "refused", refused, compiled)
    assert compare([tmp_path / "refused"]).baseline == "compiled"


def test_baseline_without_fp16_is_the_first_variant_that_ran(tmp_path):
    late = record("int8", started_at="2026-03-01T12:00:00Z")
    save(tmp_path, late, record("gptq", started_at="2026-03-01T11:00:00Z"))
    assert compare([tmp_path]).baseline == "gptq"


def test_saved_baseline_of_a_sweep_is_used(tmp_path):
    save(tmp_path, record("int8"), record("fp16"), record("bnb4"))
    sweep = tmp_path / "sweep.json"
    sweep.write_text('{"sweep_version": 1, "baseline": "int8"}')
    assert compare([tmp_path]).baseline == "int8"
    assert compare([tmp_path], baseline="bnb4").baseline == "bnb4"
    for content in ('{"baseline": "gone"}', '{"baseline": 3}', "[]", "no JSON"):
        sweep.write_text(content)
        assert compare([tmp_path]).baseline == "fp16"


def test_misspelt_baseline_raises_with_the_closest_name(tmp_path):
    save(tmp_path, record("fp16"), record("int8"))
    assert rows_of(tmp_path, baseline="int8")["int8"]["verdict"] == "baseline"
    assert refusal(tmp_path, baseline="int9") == (
        "--baseline int9: no such variant in the records; did you mean 'int8'?"
    )


def test_failed_cell_has_a_status_and_no_numbers(tmp_path):
    save(tmp_path, record("fp16"), record("int8", failed_cell("oom_gpu", "no room")))
    row = rows_of(tmp_path)["int8"]
    assert (row["status"], row["latency_s"], row["ratio"], row["verdict"]) == ("oom_gpu", None, None, None)


def test_failed_variant_has_a_row_in_every_cell(tmp_path):
    cells = [cell(prompt_tokens=length) for length in (3, 26)]
    save(tmp_path, record("fp16", *cells), failed_record("bnb4", "bitsandbytes is not installed"))
    statuses = [(row["prompt_tokens"], row["status"]) for row in to_rows(compare([tmp_path])) if row["quant"] == "bnb4"]
    assert statuses == [(3, "failed"), (26, "failed")]


def test_failed_records_alone_have_a_table(tmp_path):
    save(tmp_path, failed_record("fp16", "no such model"))
    assert rows_of(tmp_path)["fp16"]["status"] == "failed"


def test_crashed_round_is_excluded(tmp_path):
    good = rounds("int8", [1.0, 1.0, 1.0, 1.0])
    bad = record("int8", failed_cell("crash", "SIGSEGV"), round_number=4)
    save(tmp_path, *rounds("fp16", [2.0, 2.0, 2.0, 2.0, 2.0]), *good, bad)
    row = rows_of(tmp_path)["int8"]
    assert (row["status"], row["rounds"], row["ratio"]) == ("ok", 4, pytest.approx(2.0))


def test_prompts_of_equal_length_are_two_cells(tmp_path):
    texts = [cell([1.0], inputs_sha256="a" * 64), cell([2.0], inputs_sha256="b" * 64)]
    save(tmp_path, record("fp16", *texts))
    assert [row["latency_s"] for row in to_rows(compare([tmp_path]))] == [1.0, 2.0]


def test_nested_and_copied_records_count_once(tmp_path):
    save(tmp_path / "a" / "b", record("fp16"))
    save(tmp_path / "copy", record("fp16"))
    assert compare([tmp_path, tmp_path / "a" / "b" / "000.json"]).rows[0].runs == 5


def test_traces_are_ignored_and_broken_records_are_listed(tmp_path):
    save(tmp_path, record("fp16"), record("int8"))
    (tmp_path / "trace.json").write_text('{"traceEvents": []}')
    (tmp_path / "list.json").write_text("[1]")
    text = (tmp_path / "001.json").read_text()
    (tmp_path / "002.json").write_text(text[: len(text) // 2])
    comparison = compare([tmp_path])
    assert [row.variant for row in comparison.rows] == ["fp16", "int8"]
    [problem] = comparison.problems
    assert problem.startswith(f"{tmp_path}/002.json: not valid JSON (")


def test_given_file_without_record_raises(tmp_path):
    (tmp_path / "trace.json").write_text("{}")
    assert refusal(tmp_path / "trace.json") == (
        f"no record can be used; {tmp_path}/trace.json: not a benchmarker record (no schema_version)"
    )


def test_empty_or_missing_folder_raises(tmp_path):
    assert refusal(tmp_path) == f"{tmp_path}: no records there; `benchmarker run` writes them"
    assert refusal(tmp_path / "gone") == (
        f"{tmp_path}/gone: no such file or folder; give a record or a folder of records"
    )


def test_compare_and_verify_do_not_import_torch(tmp_path):
    save(tmp_path, record("fp16"), record("int8"))
    program = (
        "import sys\n"
        "class Blocked:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        assert name.partition('.')[0] not in ('torch', 'transformers'), name + ' is imported'\n"
        "sys.meta_path.insert(0, Blocked())\n"
        "import json; from benchmarker.report.compare import compare, to_markdown\n"
        "from benchmarker.comparison.results import to_rows\n"
        "import benchmarker.comparison.gate\n"
        "from benchmarker.report.verify import verify\n"
        f"comparison = compare([{str(tmp_path)!r}]); assert '| int8' in to_markdown(comparison)\n"
        f"assert verify([{str(tmp_path)!r}]).is_right\n"
        "print(json.dumps(to_rows(comparison), allow_nan=False))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert [row["variant"] for row in json.loads(done.stdout)] == ["fp16", "int8"]


def before_and_after(tmp_path: Path) -> list[Path]:
    for name, int8 in (("before", 1.0), ("after", 0.8)):
        times = {"fp16": [1.4, 1.41, 1.39], "int8": [int8, 1.01 * int8, 0.99 * int8]}
        save(
            tmp_path / name,
            *(run_record for quant, values in times.items() for run_record in rounds(quant, values, sweep=name)),
        )
    return [tmp_path / "before", tmp_path / "after"]


def test_two_sweeps_have_a_column_of_changes(tmp_path):
    comparison = compare(before_and_after(tmp_path))
    ranking = ranking_of(comparison)
    sheet = first_table(ranking)
    texts = [[column.text(row) for column in sheet.columns] for row in sheet.rows]
    assert [column.heading for column in sheet.columns][:6] == [
        "variant",
        "sweep",
        "TTFT ms",
        "decode tok/s",
        "speed-up",
        "vs before",
    ]
    assert [cells[:2] for cells in texts] == [
        ["int8", "before"],
        ["int8", "after"],
        ["fp16", "before"],
        ["fp16", "after"],
    ]
    assert texts[1][4].startswith("1.75x [")
    assert texts[1][5].startswith("1.25x [")
    assert texts[0][5] == "–"
    assert "Speed-up is relative to fp16 of the same sweep." in sheet.notes
    lines = [unmarked(line) for line in answer(comparison, ranking)]
    assert lines[0].startswith("before: int8 is fastest: 50.00 decode tok/s")
    assert lines[2].startswith("From before to after: int8 1.25x [")


def test_change_between_sweeps_of_several_cells_names_its_cell(tmp_path):
    for name, factor in (("before", 1.0), ("after", 0.8)):
        cells = [cell([factor] * 3), cell([2 * factor] * 3, new_tokens=60)]
        save(tmp_path / name, *(record("int8", *cells, round_number=number, sweep=name) for number in range(3)))
    comparison = compare([tmp_path / "before", tmp_path / "after"])
    lines = [unmarked(line) for line in answer(comparison, ranking_of(comparison))]
    assert lines[2].startswith("From before to after, at prompt 26, 60 new tokens, batch 1: int8 1.25x [")


def test_two_sweeps_without_common_variants_have_no_changes(tmp_path):
    for name, quant in (("before", "int8"), ("after", "gptq")):
        save(tmp_path / name, *rounds(quant, [1.0, 1.01, 0.99], sweep=name))
    comparison = compare([tmp_path / "before", tmp_path / "after"])
    lines = [unmarked(line) for line in answer(comparison, ranking_of(comparison))]
    assert lines[2].startswith("From before to after: no variant has a number in both; ")


def test_column_of_changes_is_named_after_the_first_folder(tmp_path):
    folders = before_and_after(tmp_path)
    save(folders[1] / "gptq", *rounds("gptq", [0.5, 0.51, 0.49], sweep="after"))
    for ordered in (folders, folders[::-1]):
        sheet = first_table(ranking_of(compare(ordered)))
        assert sheet.rows[0].variant == "gptq (after)"
        assert f"vs {ordered[0].name}" in [column.heading for column in sheet.columns]


def test_asterisk_of_two_sweeps_is_on_the_row_and_explained(tmp_path):
    folders = before_and_after(tmp_path)
    gemv = KernelUse(purpose="linear", origin="benchmarker", name="gemv_gptq")
    facts = EngineFacts(name="native", tokens_read="end", kv_cache="static", kernels_used=(gemv,))
    gemv_record = record("fp16", name="own", runtime="native", sweep="after").model_copy(update={"engine": facts})
    save(folders[1] / "native", gemv_record)
    compared = compare(folders)
    for sheet in (first_table(ranking_of(compared)), chosen_sheet(compared, "peak", None)):
        assert [sheet.columns[0].text(row) for row in sheet.rows if row.mark] == ["own*"]
        assert sheet.notes[-1].startswith("* benchmarker's own kernels")


def test_caption_names_the_reference_of_each_sweep(tmp_path):
    folders = before_and_after(tmp_path)
    compiled = {"runtime": "compile", "sweep": "before"}
    save(folders[0] / "compile", *(record(quant, name=f"{quant}-compile", **compiled) for quant in ("fp16", "int8")))
    note = first_table(ranking_of(compare(folders))).notes[0]
    assert note == "Speed-up is relative to the unquantized variant in the same engine in before and fp16 in after."


def test_caption_counts_a_reference_whose_variant_failed(tmp_path):
    failed = failed_record("int8", "no package", name="int8-compile", runtime="compile")
    save(tmp_path, record("fp16"), record("int8"), record("fp16", name="fp16-compile", runtime="compile"), failed)
    sheet = first_table(ranking_of(compare([tmp_path])))
    by_variant = {row.variant: {column.heading: column.text(row) for column in sheet.columns} for row in sheet.rows}
    assert [by_variant[name]["speed-up"] for name in ("fp16", "fp16-compile")] == ["baseline", "baseline"]
    assert sheet.notes[0] == "Speed-up is relative to the unquantized variant in the same engine."


def test_json_rows_of_two_sweeps_have_sweep_and_change(tmp_path):
    folders = before_and_after(tmp_path)
    rows = to_rows(compare(folders))
    assert [(row["sweep"], row["variant"], row["change_verdict"]) for row in rows] == [
        ("before", "fp16", None),
        ("before", "int8", None),
        ("after", "fp16", "same"),
        ("after", "int8", "faster"),
    ]
    assert rows[3]["change"] == pytest.approx(1.25)
    assert verify(folders).is_right
    with pytest.raises(SpecError, match="--budget recommends within one sweep"):
        recommend(compare(folders), "memory<9GiB")


def test_remarks_use_the_baseline_of_each_sweep(tmp_path):
    for name, large_s in (("before", 8.0), ("after", 0.5)):
        int8 = cell([0.5]), cell([large_s], batch_size=64)
        save(tmp_path / name, record("fp16", cell([1.0]), cell([1.0], batch_size=64)), record("int8", *int8))
    remarks = " ".join(remarks_of(compare([tmp_path / "before", tmp_path / "after"])))
    assert "before: int8 wins against fp16 in the whole request until batch 2 (no interval: " in remarks
    assert (
        "after: int8 wins against fp16 in the whole request at every batch, from batch 1 (2.00x) to batch 64" in remarks
    )


def test_tasks_are_paired_with_the_baseline_of_their_sweep(tmp_path):
    def result(correct: str) -> TaskResult:
        answers = tuple(letter == "1" for letter in correct)
        return TaskResult(
            task="arc_easy", version="1.0", harness="0.4.11", metric="acc_norm", few_shots=0, right=answers
        )

    for name, fp16 in (("before", "1111"), ("after", "1100")):
        tasks = {"fp16": (result(fp16),), "int8": (result("1100"),)}
        save(tmp_path / name, *(record(quant, sweep=name, tasks=results) for quant, results in tasks.items()))
    answers = task_answers(compare([tmp_path / "before", tmp_path / "after"]).rows)
    changes = {answer.variant: answer.paired.change for answer in answers if answer.paired}
    assert changes == {"int8 (before)": -0.5, "int8 (after)": 0.0}


def test_pooled_or_repeated_folders_have_one_table(tmp_path):
    folders = before_and_after(tmp_path)
    assert [row.variant for row in compare(folders, pool=True).rows] == ["fp16", "int8"]
    assert compare([folders[0], folders[0]]).sides == {}


def test_small_peak_next_to_a_large_one_is_not_zero(tmp_path):
    sizes = {"gptq": 4_902_912, "gptq-compile": 64_765_952}
    save(tmp_path, *(record(name, cell([1.0] * 3, memory=Memory(peak_allocated_bytes=sizes[name]))) for name in sizes))
    table = compare([tmp_path]).rows
    [peak] = memory(table)
    assert peak.heading == "peak MiB"
    assert sorted(peak.text(row) for row in table) == ["4.7", "61.8"]


def test_small_peak_in_a_column_of_gib_has_four_digits(tmp_path):
    sizes = {"fp16": 1_449_551_462, "int8": 12_058_624}
    save(tmp_path, *(record(name, cell([1.0] * 3, memory=Memory(peak_allocated_bytes=sizes[name]))) for name in sizes))
    rows = compare([tmp_path]).rows
    [peak] = memory(rows)
    assert [peak.heading, *map(peak.text, rows)] == ["peak GiB", "1.35", "0.01123"]


def test_equal_caveats_of_several_rounds_are_printed_once() -> None:
    lines = caveats_of(compare([ROOT / "results" / "reference" / "h200-qwen3-30b-a3b"]))
    assert [line for line in lines if "no floor" in line] == [
        "vllm fp16: no floor or memory-bandwidth utilization: the engine runs in a process of its own, which does not "
        "count the experts of a step"
    ]
