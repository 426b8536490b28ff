"""Complete markdown tables, captions and caveats of `compare` and of the run summary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import benchmarker
from benchmarker.core import tables
from benchmarker.report.compare import compare, to_markdown
from benchmarker.report.run_summary import run_blocks
from benchmarker.schema.model import EngineFacts
from benchmarker.schema.record import Conditions
from benchmarker.schema.record_io import read_record
from benchmarker.workloads.generation.record import GenerationCell, GenerationRecord
from tests.records import (
    cell,
    compare_records,
    cpu_environment,
    environment,
    failed_cell,
    failed_record,
    load,
    record,
    rounds,
    save,
)

FP16 = (1.3832, 1.3810, 1.3819, 1.3827, 1.3837)
INT8 = (2.2790, 2.2805, 2.2781, 2.2799, 2.2812)


def markdown_of(folder: Path, *records: object, **options: object) -> str:
    return to_markdown(compare([save(folder, *records)], **options))


def test_single_runs_show_their_spread_and_no_verdict(tmp_path):
    dummy = {"load_format": "dummy"}
    text = markdown_of(
        tmp_path,
        record("fp16", cell(FP16), model=dummy),
        record("int8", cell(INT8), model=dummy, load=load(load_s=18.75, weight_bytes=4_413_843_456)),
    )
    assert text == (
        """\
- model: Qwen/Qwen3-4B (float16, dummy weights)
- device: NVIDIA H100 80GB HBM3 (CUDA 13.0, driver 580.159.04)
- versions: benchmarker 0.1.0; torch 2.11.0+cu130, transformers 5.17.0
- measured: 1 process a variant, 5 timed runs a cell after at least 3 warm-ups, 2026-03-01

**At prompt 26, 50 new tokens, batch 1**

| variant | latency s |      TTFT ms |      TPOT ms |        tok/s | speed-up | peak GiB | weights GiB | bits/weight | load s |
| :------ | --------: | -----------: | -----------: | -----------: | :------- | -------: | ----------: | ----------: | -----: |
| fp16    |     1.383 | 27.65 ± 0.02 | 27.65 ± 0.02 | 36.16 ± 0.03 | baseline |     7.59 |        7.49 |       16.00 |   12.3 |
| int8    |     2.280 | 45.60 ± 0.02 | 45.60 ± 0.02 | 21.93 ± 0.01 | 0.61x    |     7.59 |        4.11 |        8.78 |   18.8 |

Values are medians over the timed runs of one process, ± their sample standard deviation. Speed-up is """  # noqa: E501
        "relative to fp16, in decode tok/s. A ratio without an interval is not tested: 1 round cannot separate a "
        "difference from chance; 3 rounds or more can (`benchmarker sweep`). Peak "
        "is the live tensors as torch's allocator counts them.\n\n"
        "- Random weights (load_format dummy): the time of a dense model was within 1.3 % of that of real-shaped "
        "weights (docs/values.md); text and quality mean nothing.\n"
    )


def test_five_rounds_show_intervals_and_verdicts(tmp_path):
    text = markdown_of(
        tmp_path,
        *rounds("fp16", [1.380, 1.390, 1.385, 1.379, 1.380], sweep="monday"),
        *rounds("int8", [2.280, 2.290, 2.270, 2.310, 2.280], sweep="monday"),
        *rounds("fp16", [1.381, 1.390, 1.386, 1.380, 1.384], name="again", sweep="monday"),
        *rounds("bnb4", [1.300, 1.450, 1.386, 1.380, 1.384], sweep="monday"),
    )
    assert _tables(text) == [
        """\
| variant | latency s |              TTFT ms |              TPOT ms |                tok/s | speed-up                        | peak GiB | weights GiB | bits/weight | load s |
| :------ | --------: | -------------------: | -------------------: | -------------------: | :------------------------------ | -------: | ----------: | ----------: | -----: |
| fp16    |     1.383 | 27.66 [27.54, 27.77] | 27.66 [27.54, 27.77] | 36.16 [36.01, 36.31] | baseline                        |     7.59 |        7.49 |       16.00 |   12.3 |
| int8    |     2.286 | 45.72 [45.34, 46.10] | 45.72 [45.34, 46.10] | 21.87 [21.69, 22.05] | 0.60x [0.60, 0.61] slower       |     7.59 |        7.49 |       16.00 |   12.3 |
| again   |     1.384 | 27.68 [27.58, 27.78] | 27.68 [27.58, 27.78] | 36.12 [35.99, 36.25] | 1.00x [1.00, 1.00] same         |     7.59 |        7.49 |       16.00 |   12.3 |
| bnb4    |     1.379 | 27.58 [26.28, 28.95] | 27.58 [26.28, 28.95] | 36.25 [34.55, 38.05] | 1.00x [0.96, 1.05] inconclusive |     7.59 |        7.49 |       16.00 |   12.3 |"""  # noqa: E501
    ]
    assert (
        "[low, high] is the 95 % interval over the rounds, one median from a fresh process each. Speed-up is "
        "relative to fp16, in decode tok/s. Faster or slower: a ratio of 1 is excluded, after Holm's correction over "
        "the table, and it is more than 2 % off; same: the whole interval is within ±2 %; inconclusive: more rounds "
        "would decide. A true difference of 0.3 % in the steadiest row and 8.7 % in the least steady would have been "
        "detected at "
        "least 80 % of the time." in text
    )


def test_several_cells_have_two_tables(tmp_path):
    def grid(factor: float) -> list:
        return [cell([new / 40 * factor], prompt_tokens=p, new_tokens=new) for p in (3, 26) for new in (50, 100)]

    text = markdown_of(tmp_path, record("fp16", *grid(1)), record("gptq", *grid(1.25)))
    assert "**At prompt 26, 100 new tokens, batch 1**" in text
    assert _tables(text)[1] == (
        """\
| prompt | new | variant | latency s | TTFT ms | TPOT ms | tok/s | speed-up | peak GiB |
| -----: | --: | :------ | --------: | ------: | ------: | ----: | :------- | -------: |
|      3 |  50 | fp16    |     1.250 |   25.00 |   25.00 | 40.00 | baseline |     7.59 |
|      3 |  50 | gptq    |     1.562 |   31.25 |   31.25 | 32.00 | 0.80x    |     7.59 |
|      3 | 100 | fp16    |     2.500 |   25.00 |   25.00 | 40.00 | baseline |     7.59 |
|      3 | 100 | gptq    |     3.125 |   31.25 |   31.25 | 32.00 | 0.80x    |     7.59 |
|     26 |  50 | fp16    |     1.250 |   25.00 |   25.00 | 40.00 | baseline |     7.59 |
|     26 |  50 | gptq    |     1.562 |   31.25 |   31.25 | 32.00 | 0.80x    |     7.59 |
|     26 | 100 | fp16    |     2.500 |   25.00 |   25.00 | 40.00 | baseline |     7.59 |
|     26 | 100 | gptq    |     3.125 |   31.25 |   31.25 | 32.00 | 0.80x    |     7.59 |"""
    )


def test_run_summary_has_one_row_per_cell(tmp_path):
    run_record = record(
        "gptq",
        cell([0.5, 0.51], new_tokens=1, prompt_tokens=3),
        cell([2.0, 2.1, 2.2], flags=("unstable_warmup",)),
        failed_cell("oom_gpu", "Tried to allocate 60 GiB", prompt_tokens=4096),
        runtime="compile",
        load=load(weight_bytes=2_666_000_000, quantized_fraction=0.903, notes=("the checkpoint's own config won",)),
    )
    assert tables.to_markdown(run_blocks(compare_records([run_record]))) == (
        """\
- variant: gptq, engine compile
- model: Qwen/Qwen3-4B (float16)
- device: NVIDIA H100 80GB HBM3 (CUDA 13.0, driver 580.159.04)
- versions: benchmarker 0.1.0; torch 2.11.0+cu130, transformers 5.17.0
- measured: 1 process a variant, 2 timed runs a cell after at least 3 warm-ups, 2026-03-01
- weights: 2.48 GiB, 5.30 bits a weight, 90 % of the parameters quantized, lm_head float16 tied to the embedding
- load: 12.30 s

| prompt | new | batch |         latency s |      TTFT ms |      TPOT ms |         tok/s | peak GiB |
| -----: | --: | ----: | ----------------: | -----------: | -----------: | ------------: | -------: |
|      3 |   1 |     1 |            0.5050 |  505.0 ± 7.1 |            – | 1.980 ± 0.028 |     7.59 |
|     26 |  50 |     1 |             2.100 | 42.00 ± 2.00 | 42.00 ± 2.00 |  23.81 ± 1.14 |     7.59 |
|   4096 |  50 |     1 | out of GPU memory |            – |            – |             – |        – |

Values are medians over the timed runs of one process, ± their sample standard deviation. Peak is the live tensors """
        "as torch's allocator counts them.\n\n"
        "- gptq at prompt 4096, 50 new tokens, batch 1: out of GPU memory: Tried to allocate 60 GiB\n"
        "- unstable_warmup: the last three warm-ups differed by more than 2 %, or there were fewer than three "
        "(gptq in 1 cell).\n"
        "- gptq: the checkpoint's own config won\n"
    )


def test_summary_of_a_failed_run_has_only_the_reason():
    text = tables.to_markdown(run_blocks(compare_records([failed_record("bnb4", "bitsandbytes is not installed")])))
    assert text.startswith("- variant: bnb4, engine eager\n")
    assert "bitsandbytes is not installed" in text
    assert "|" not in text


def test_failed_variant_has_a_status_and_a_reason(tmp_path):
    text = markdown_of(tmp_path, record("fp16"), failed_record("bnb4", "bitsandbytes is not installed"))
    assert "| bnb4    |    failed |            – |" in text
    assert "- bnb4 at prompt 26, 50 new tokens, batch 1: failed: bitsandbytes is not installed\n" in text


def test_table_of_failed_variants_has_their_status(tmp_path):
    text = markdown_of(tmp_path, failed_record("fp16", "no such folder"), failed_record("int8", "no such folder"))
    assert _tables(text) == [
        """\
| variant | latency s |
| :------ | --------: |
| fp16    |    failed |
| int8    |    failed |"""
    ]


def test_failed_round_is_listed_with_its_reason(tmp_path):
    crash = record("int8", failed_cell("crash", "SIGSEGV (11)"), round_number=3)
    text = markdown_of(tmp_path, *rounds("fp16", [1.0] * 4), *rounds("int8", [1.0] * 3), crash)
    assert "- left out: int8 round 4 at prompt 26, 50 new tokens, batch 1: crashed: SIGSEGV (11)\n" in text


def test_excluded_rounds_of_several_cells_are_one_line(tmp_path):
    crashes = [failed_cell("crash", "SIGSEGV (11)", new_tokens=tokens) for tokens in (50, 100)]
    good = [cell(new_tokens=tokens) for tokens in (100, 50)]
    attempts = [record("int8", good[number], crashes[number], round_number=number) for number in (0, 1)]
    text = markdown_of(tmp_path, *attempts)
    assert text.count("left out") == 1
    assert "- left out: int8 rounds 1 and 2 in 2 cells; the first: crashed: SIGSEGV (11)\n" in text


def test_repeated_round_is_listed_with_its_reason(tmp_path):
    throttled = record("int8", failed_cell("invalid", "throttled by hardware_thermal"), run_id="first try")
    text = markdown_of(tmp_path, *rounds("fp16", [1.0] * 3), throttled, *rounds("int8", [1.0] * 3))
    assert "- measured again: int8 round 1 at prompt 26, 50 new tokens, batch 1: invalid: throttled by " in text


def test_rounds_repeated_for_one_reason_are_one_line(tmp_path):
    def disturbed(name: str, share: int, number: int) -> Any:
        reason = f"the hypervisor took {share} % of our cores' time meanwhile"
        return record(name, failed_cell("invalid", reason), round_number=number, run_id=f"{name} {number}")

    attempts = [disturbed("fp16", 6, 1), disturbed("int8", 3, 0), disturbed("int8", 9, 2)]
    text = markdown_of(tmp_path, *attempts, *rounds("fp16", [1.0] * 3), *rounds("int8", [1.0] * 3))
    assert (
        "- measured again: int8 rounds 1 and 3 at prompt 26, 50 new tokens, batch 1; fp16 round 2 at prompt 26, 50 new "
        "tokens, batch 1; the first: invalid: the hypervisor took 3 % of our cores' time meanwhile\n" in text
    )
    assert text.count("- measured again") == 1


def test_first_table_is_the_largest_cell_of_most_variants(tmp_path):
    def grid(large: GenerationCell) -> list[GenerationCell]:
        return [cell(prompt_tokens=3), cell(prompt_tokens=26), large]

    full = failed_cell("oom_gpu", "no room", prompt_tokens=4096)
    text = markdown_of(tmp_path, record("fp16", *grid(full)), record("int8", *grid(cell(prompt_tokens=4096))))
    assert "**At prompt 26, 50 new tokens, batch 1**" in text


def test_different_clocks_are_listed_by_variant(tmp_path):
    fast, slow = (cell(conditions=Conditions(samples=9, sm_clock_mhz=clock)) for clock in (1980, 1755))
    text = markdown_of(tmp_path, record("fp16", fast), record("int8", slow))
    assert "- clocks differ at prompt 26, 50 new tokens, batch 1: fp16 1980 MHz, int8 1755 MHz.\n" in text
    close = cell(conditions=Conditions(samples=9, sm_clock_mhz=1965))
    assert "clocks differ" not in markdown_of(tmp_path / "close", record("fp16", fast), record("int8", close))


def test_unfinished_runs_are_listed(tmp_path):
    text = markdown_of(
        tmp_path,
        record("fp16", status="running"),
        record("int8", status="interrupted", round_number=2),
        record("gptq"),
        record("bnb4", failed_cell("error", "no room"), status="interrupted"),
    )
    assert "- fp16, round 1: the run has not finished, or its process died: the cells it finished are used.\n" in text
    assert "- int8, round 3: the run was interrupted: the cells it finished are used.\n" in text
    assert "- bnb4, round 1: the run was interrupted: no cell was finished.\n" in text


def test_forced_table_begins_with_the_difference(tmp_path):
    text = markdown_of(tmp_path, record("fp16"), record("int8", environment=environment(cpu="EPYC")), force=True)
    assert text.startswith(
        "- **not comparable, forced:** processor is Intel Xeon Platinum 8480 in 1 record and EPYC in 1 record\n"
    )


def test_variants_with_dummy_weights_are_named(tmp_path):
    text = markdown_of(tmp_path, record("fp16"), record("int8", model={"load_format": "dummy"}), force=True)
    assert "(float16, some dummy weights)" in text
    assert "- Random weights (load_format dummy) in int8: the time of a dense model was within 1.3 % of " in text


def test_variants_of_different_dtypes_are_named(tmp_path):
    text = markdown_of(tmp_path, record("fp16"), record("int4", model={"dtype": "bfloat16"}))
    assert "- Not all variants compute in the same type: float16: fp16; bfloat16: int4.\n" in text


def test_records_of_a_newer_schema_are_listed(tmp_path):
    (tmp_path / "broken.json").write_text('{"schema_version": 9}')
    assert "schema 9 is newer than this benchmarker's 2; upgrade benchmarker\n" in markdown_of(tmp_path, record("fp16"))


def test_small_model_on_cpu_has_resident_growth_in_mib(tmp_path):
    memory = {"peak_allocated_bytes": None, "peak_resident_bytes": 2**30, "resident_growth_bytes": 23 * 2**20}
    small = cell().model_copy(update={"memory": cell().memory.model_copy(update=memory)})
    text = markdown_of(
        tmp_path, record("fp16", small, environment=cpu_environment(), load=load(weight_bytes=5_770_000))
    )
    assert "weights MiB" in text
    assert " 5.5 |" in text
    assert " 23.0 |" in text
    assert "Peak is the growth of the process's resident memory since before model or inputs were loaded." in text
    assert "- device: Intel Xeon (16 threads)\n" in text


def test_setup_column_appears_with_a_setup_time(tmp_path):
    engine = EngineFacts(name="compile", tokens_read="end", kv_cache="static", setup_s=37.25)
    compiled = record("fp16", name="compiled", runtime="compile").model_copy(update={"engine": engine})
    [table] = _tables(markdown_of(tmp_path, record("fp16"), compiled))
    headings, _, plain, with_setup = table.splitlines()
    assert (headings.split("|")[-2].strip(), plain.split("|")[-2].strip(), with_setup.split("|")[-2].strip()) == (
        "setup s",
        "–",
        "37.2",
    )


def test_notebook_representation_is_the_markdown(tmp_path):
    comparison = compare([save(tmp_path, record("fp16"))])
    assert comparison._repr_markdown_() == to_markdown(comparison)
    (path, *_) = sorted(tmp_path.glob("*.json"))
    loaded = benchmarker.read_record(path)
    assert loaded.model_dump() == read_record(path).model_dump()
    assert loaded._repr_markdown_() == tables.to_markdown(run_blocks(compare_records([read_record(path)])))


def _tables(text: str) -> list[str]:
    return [part for part in text.split("\n\n") if part.startswith("| ")]


@pytest.mark.parametrize(
    ("caches", "has_caveat"),
    [(("cold", "warm", "warm"), True), (("cold", "cold", "warm"), False), (("cold", "warm"), False)],
)
def test_rounds_of_one_compilation_have_a_caveat(tmp_path: Path, caches: tuple[str, ...], has_caveat: bool) -> None:
    compiled_rounds = rounds("gptq", [1.4] * len(caches), name="gptq-compile", runtime="compile")
    facts = EngineFacts(name="compile", tokens_read="end", kv_cache="static", compiled="layer")
    save(
        tmp_path,
        *(
            run_record.model_copy(update={"engine": facts.model_copy(update={"setup_cache": cache})})
            for run_record, cache in zip(compiled_rounds, caches, strict=True)
        ),
    )
    caveat = "- gptq-compile: all processes ran the kernels of one compilation."
    assert (caveat in to_markdown(compare([tmp_path]))) == has_caveat


def test_merged_sweeps_and_commits_have_a_caveat(tmp_path: Path) -> None:
    first, second = rounds("int8", [1.0, 1.1], name="int8")
    commits = "ce2f25e0000", "ce2f25e0000+changes"
    for run_record, sweep, commit in zip(
        (first, second), ("2026-11-22T09:00", "2026-11-23T09:00"), commits, strict=True
    ):
        environment = run_record.environment.model_copy(update={"commit": commit})
        save(tmp_path / commit, run_record.model_copy(update={"sweep": sweep, "environment": environment}))
    text = to_markdown(compare([tmp_path]))
    assert "- 2 versions of benchmarker: ce2f25e ran int8; ce2f25e+changes ran int8." in text
    assert "- int8: rows merge 2 sweeps: 2026-11-22T09:00, 2026-11-23T09:00." in text
    alone = to_markdown(compare([tmp_path / commits[0]]))
    assert "versions of benchmarker" not in alone
    assert "taken together" not in alone


def test_caveats_begin_with_disturbed_and_invalid_rows(tmp_path):
    reason = "other programs took {} % of our cores' time meanwhile"
    fp16 = record("fp16", cell(flags=("disturbed",)), model={"load_format": "dummy"})
    text = markdown_of(
        tmp_path, fp16, *(disturbed_record(name, reason.format(share)) for name, share in (("int8", 15), ("gptq", 31)))
    )
    _, _, after_header = text.partition("- measured: ")
    first, second, third = [line for line in after_header.splitlines() if line.startswith("- ")][:3]
    assert first.startswith("- disturbed: other programs used the same cores during the measurement")
    assert second == f"- int8, gptq at prompt 26, 50 new tokens, batch 1: invalid: {reason.format(15)} (the first of 2)"
    assert third.startswith("- Random weights")


def test_cells_that_failed_for_similar_reasons_are_counted(tmp_path):
    reasons = {tokens: f"the board was throttled to {tokens} MHz" for tokens in (50, 100, 200)}
    cells = [failed_cell("invalid", reason, new_tokens=tokens) for tokens, reason in reasons.items()]
    text = markdown_of(tmp_path, record("fp16", cell()), record("int8", *cells))
    assert f"- int8 in 3 cells: invalid: {reasons[50]} (the first of 3)" in text.splitlines()


def disturbed_record(name: str, reason: str) -> GenerationRecord:
    disturbed_cell = failed_cell("invalid", reason).model_copy(update={"error_kind": "disturbed"})
    return record(name, disturbed_cell, model={"load_format": "dummy"})


def test_different_tokenizers_have_a_caveat(tmp_path):
    plain, other = ({"tokenizer_sha256": name, "chat_template_sha256": "c"} for name in ("a", "b"))
    three = [record("fp16", model=plain), record("int8", model=other), record("gptq", model=plain)]
    line = "The checkpoints have different tokenizers: fp16, gptq; int8. Their texts and quality differ by it."
    assert line in markdown_of(tmp_path / "three", *three)
    without = {**plain, "chat_template_sha256": None}
    line = "The checkpoints have different chat templates: fp16; int8."
    assert line in markdown_of(tmp_path / "two", three[0], record("int8", model=without))
    assert "The checkpoints have different" not in markdown_of(tmp_path / "same", three[0], record("int8", model={}))
