"""`verify` on unchanged records, on records with one edited number, and on tables with one wrong computation."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarker.cli.app import app
from benchmarker.comparison import ranking, results, speed_up
from benchmarker.core import stats
from benchmarker.core.formatting import decimal
from benchmarker.report import columns
from benchmarker.report.verify import verify
from tests.records import cell, cpu_environment, environment, failed_cell, profile, record, rounds, save

CELL = "000.json: cell prompt 26, 50 new tokens, batch 1"


def mismatches(folder: Path) -> list[str]:
    return [str(mismatch).removeprefix(f"{folder}/") for mismatch in verify([folder]).mismatches]


def edit(path: Path, *keys: str | int, to: object) -> None:
    content = json.loads(path.read_text())
    parent = content
    for key in keys[:-1]:
        parent = parent[key]
    parent[keys[-1]] = to
    path.write_text(json.dumps(content))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save(tmp_path, record("fp16", cell([1.4, 1.5, 1.6]), profile=profile()))


def test_unchanged_records_pass(tmp_path):
    save(
        tmp_path,
        *rounds("fp16", [1.38, 1.39, 1.37, 1.40, 1.38]),
        *rounds("int8", [0.76, 0.77, 0.75, 0.77, 0.76]),
        *rounds("gptq", [1.39, 1.38, 1.37, 1.41]),
        record("bnb4", failed_cell("oom_gpu", "no room"), cell([0.5, 0.6], new_tokens=1, batch_size=4)),
    )
    verification = verify([tmp_path])
    assert verification.is_right
    assert verification.mismatches == ()
    assert (verification.records, verification.numbers > 200) == (15, True)


def test_sweeps_on_two_devices_pass(tmp_path):
    other = environment(device={"name": "NVIDIA L4"})
    save(tmp_path, *rounds("fp16", [1.0, 1.1, 1.05]), *rounds("int8", [2.0, 2.2, 2.1], environment=other))
    assert mismatches(tmp_path) == []


def test_cpu_record_passes(tmp_path):
    samples = tuple(timed.model_copy(update={"peak_allocated_bytes": None}) for timed in cell().samples)
    memory = {"peak_resident_bytes": 3_000_000_000, "resident_growth_bytes": 2_000_000_000}
    on_cpu = cell(samples=samples).model_copy(update={"memory": cell().memory.model_copy(update=memory)})
    on_cpu = on_cpu.model_copy(
        update={"memory": on_cpu.memory.model_copy(update={"peak_allocated_bytes": None, "peak_reserved_bytes": None})}
    )
    save(tmp_path, record("fp16", on_cpu, environment=cpu_environment()))
    assert mismatches(tmp_path) == []


def test_external_engine_with_one_peak_for_all_repeats_passes(tmp_path):
    samples = tuple(timed.model_copy(update={"peak_allocated_bytes": None}) for timed in cell().samples)
    memory = cell().memory.model_copy(update={"peak_allocated_bytes": 5_000_000_000, "peak_reserved_bytes": None})
    save(tmp_path, record("fp16", cell(samples=samples).model_copy(update={"memory": memory})))
    assert mismatches(tmp_path) == []


def test_latency_that_differs_from_its_token_times_is_found(folder):
    edit(folder / "000.json", "cells", 0, "samples", 1, "latency_s", to=1.1)
    [first, *_] = mismatches(folder)
    assert first == f"{CELL}, run 2: latency_s is 1.1, but the samples give 1.5 for first token and steps"


def test_removed_sample_is_found(tmp_path):
    complete = record("fp16", cell([1.4, 1.5, 1.6]))
    dropped = [timed_cell.model_copy(update={"samples": timed_cell.samples[:2]}) for timed_cell in complete.cells]
    save(tmp_path, complete.model_copy(update={"cells": tuple(dropped)}))
    assert any("number of samples is 2, but the samples give 3" in line for line in mismatches(tmp_path))


def test_wrong_token_count_is_found(folder):
    edit(folder / "000.json", "cells", 0, "samples", 0, "new_tokens", to=49)
    assert f"{CELL}, run 1: new_tokens is 49, but the samples give 50" in mismatches(folder)


def test_wrong_memory_peak_is_found_in_record_tables_and_answer(folder):
    edit(folder / "000.json", "cells", 0, "memory", "peak_allocated_bytes", to=4_000_000_000)
    assert mismatches(folder) == [
        f"{CELL}: memory.peak_allocated_bytes is 4000000000, but the samples give 8150000000",
        "table, fp16: prompt 26, 50 new tokens, batch 1: peak_memory_bytes is 4000000000, "
        "but the samples give 8150000000",
        "first table, fp16: prompt 26, 50 new tokens, batch 1: peak GiB as printed is 3.73, "
        "but the samples give 7.59027898311615",
        "answer: prompt 26, 50 new tokens, batch 1: peak GiB as printed is 3.73, but the samples give 7.59027898311615",
    ]


def test_wrong_kernel_sum_is_found(folder):
    edit(folder / "000.json", "profile", "kernel_s", to=0.4)
    assert mismatches(folder) == [
        "000.json: profile: kernel_s is 0.4, but the samples give 0.5",
        "000.json: profile: sum of percentages is 125.0, but the samples give 100.0",
    ]


def test_busy_time_above_the_profiled_span_is_found(folder):
    edit(folder / "000.json", "profile", "busy_s", to=0.8)
    assert mismatches(folder) == [
        "000.json: profile: busy_s is 0.8, but the samples give at most 0.5, the sum of the kernels and their span"
    ]


def test_section_busy_time_below_its_kernels_is_found(folder):
    path = folder / "000.json"
    edit(path, "profile", "sections", to={"decode": {"busy_s": 0.3}})
    edit(path, "profile", "kernels", 0, "sections", to={"decode": {"calls": 1, "total_s": 0.25, "alone_s": 0.25}})
    edit(path, "profile", "kernels", 1, "sections", to={"decode": {"calls": 1, "total_s": 0.1, "alone_s": 0.05}})
    assert mismatches(folder) == []
    edit(path, "profile", "kernels", 1, "sections", "decode", "alone_s", to=0.1)
    assert mismatches(folder) == ["000.json: profile: sections.decode.busy_s is 0.3, but the samples give 0.35"]


def test_wrong_bits_per_weight_are_found(folder):
    edit(folder / "000.json", "load", "bits_per_weight", to=4.0)
    assert "000.json: load: bits_per_weight is 4.0, but the samples give 16.0" in mismatches(folder)


def test_recompilation_in_an_ok_cell_is_found(tmp_path):
    compiled = record("fp16", runtime="compile")
    engine = compiled.engine.model_copy(update={"recompilations": 2})
    save(tmp_path, compiled.model_copy(update={"engine": engine}))
    assert mismatches(tmp_path) == [
        "000.json: engine: recompilations is 2, but the samples give none in a cell that is ok"
    ]


def test_unreadable_file_fails(folder):
    (folder / "001.json").write_text('{"schema_version": 1')
    assert not verify([folder]).is_right


def test_ratio_from_unpaired_statistics_is_found(tmp_path, monkeypatch):
    # `verify` shares no code with the tables: here the tables omit the pairing of rounds.
    save(tmp_path, *rounds("fp16", [1.0, 1.1, 1.2, 1.3]), *rounds("int8", [0.9, 1.0, 1.1, 1.25]))

    def unpaired(baseline, variant):
        return stats.unpaired_ratio(list(baseline.values()), list(variant.values()))

    monkeypatch.setattr(speed_up, "paired_ratio", unpaired)
    fields = {mismatch.field for mismatch in verify([tmp_path]).mismatches}
    assert {"ratio_low", "ratio_high", "verdict"} <= fields


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Save a sweep of fp16 and int8 in two engines and return its folder."""
    return save(
        tmp_path,
        *rounds("fp16", [2.00, 2.02, 1.99], sweep="one"),
        *rounds("int8", [1.50, 1.52, 1.49], sweep="one"),
        *rounds("fp16", [1.00, 1.01, 0.99], name="fp16 compile", runtime="compile", sweep="one"),
        *rounds("int8", [0.50, 0.52, 0.49], name="int8 compile", runtime="compile", sweep="one"),
    )


def scaled(ratio: stats.Ratio, factor: float) -> stats.Ratio:
    ends = {end: factor * value for end in ("low", "high") if (value := getattr(ratio, end)) is not None}
    return replace(ratio, value=factor * ratio.value, **ends)


def verified(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Return the exit code and the output of `benchmarker verify`."""
    with pytest.raises(SystemExit) as caught:
        app(["verify", str(folder)])
    return int(caught.value.code or 0), capsys.readouterr().out


def test_sweep_over_two_engines_passes(sweep, capsys):
    code, output = verified(sweep, capsys)
    assert (code, "all follow from the raw samples" in output) == (0, True)


def test_wrong_ratio_in_the_ranking_is_found(sweep, capsys, monkeypatch):
    correct = ranking.rate_ratio
    monkeypatch.setattr(ranking, "rate_ratio", lambda *rows, **paired: scaled(correct(*rows, **paired), 1.1))
    code, output = verified(sweep, capsys)
    assert (code, "ratio to fp16 compile is " in output) == (1, True)


def test_wrong_speed_up_is_found_in_tables_and_answer(sweep, capsys, monkeypatch):
    correct = speed_up.rate_ratio
    monkeypatch.setattr(speed_up, "rate_ratio", lambda *rows, **paired: scaled(correct(*rows, **paired), 1.1))
    code, output = verified(sweep, capsys)
    assert code == 1
    assert "table, int8 compile: prompt 26, 50 new tokens, batch 1: ratio is 2.1" in output
    assert "first table, int8 compile: prompt 26, 50 new tokens, batch 1: speed-up as printed is " in output
    assert "answer: prompt 26, 50 new tokens, batch 1: ratio as printed is 2.1" in output


def test_wrong_rate_is_found(sweep, capsys, monkeypatch):
    correct = results.estimate
    monkeypatch.setattr(
        results, "estimate", lambda *values: replace(correct(*values), value=1.01 * correct(*values).value)
    )
    code, output = verified(sweep, capsys)
    assert (code, "decode is " in output, "decode tok/s as printed is " in output) == (1, True, True)


def test_wrong_rate_in_the_printed_table_alone_is_found(sweep, capsys, monkeypatch):
    monkeypatch.setattr(columns, "decimal", lambda value: decimal(1.01 * value))
    code, output = verified(sweep, capsys)
    assert (code, "first table, int8: prompt 26, 50 new tokens, batch 1: decode tok/s as printed is " in output) == (
        1,
        True,
    )


def test_swapped_references_are_found(sweep, capsys, monkeypatch):
    swapped = {"fp16": "int8", "int8": "int8", "fp16 compile": "int8 compile", "int8 compile": "int8 compile"}
    monkeypatch.setattr(speed_up, "_references", lambda *_: swapped)
    code, output = verified(sweep, capsys)
    assert (code, "reference is int8 compile, but the samples give fp16 compile" in output) == (1, True)
