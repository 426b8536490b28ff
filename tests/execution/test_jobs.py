"""Test the job files of a sweep and the detection of inputs that change during a sweep."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarker.checkpoints.files import changed_inputs
from benchmarker.cli.sweep_command import sweep_config
from benchmarker.core.console import Terminal
from benchmarker.core.errors import ChangedError, ResultsError, SpecError
from benchmarker.core.process import Streams
from benchmarker.execution.jobs import (
    check_unchanged,
    job_path,
    read_job_file,
    with_origin,
    write_job,
)
from benchmarker.report.compare import compare
from benchmarker.schema.job import Job, Part
from benchmarker.schema.model import ModelSpec
from benchmarker.schema.quality import QualitySpec
from benchmarker.schema.record_io import collect
from benchmarker.sweep.request import Settings
from benchmarker.sweep.workers import Tools
from benchmarker.workloads.generation.generation_job import inputs
from benchmarker.workloads.generation.spec import GenerationSubject, VariantSpec
from benchmarker.workloads.session import refuse_other_commit
from tests.cli.test_cli import typed
from tests.faults.stage import Stage
from tests.jobs import job_with, known_host, read_job
from tests.records import cell, environment, record, save


def planned(*arguments: str, **origin: Any) -> Job:
    """Return the job of one process of a sweep."""
    job = read_job(["--quant", "fp16", *arguments])
    assert job is not None
    fields: dict[str, Any] = {"config": Path("config.yaml"), "config_sha256": "", "commit": None, **origin}
    part = Part(record=Path("a.json"), sweep="2026-03-01T10:00:00Z", cells=(0,), only="timing")
    return with_origin(job, environment(), **fields).in_part(part)


def test_job_file_round_trips(tmp_path: Path) -> None:
    job = read_job(["--quant", "gptq", "--option", "group_size=64", "--prompt", "Why?", "--energy", "--device", "cpu"])
    assert job is not None
    job = with_origin(job, environment(), config=Path("c.yaml"), config_sha256="ab", commit="cd")
    assert read_job_file(write_job(job, tmp_path)) == job


def test_invalid_job_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "job-a.json"
    with pytest.raises(SpecError, match=r"job-a.json: cannot be read: No such file .*; a sweep writes job-VARIANT"):
        read_job_file(path)
    path.write_text('{"job_version": 3}')
    with pytest.raises(SpecError, match=r"job_version: input should be 2, not 3; a sweep writes job-VARIANT.json"):
        read_job_file(path)


def test_options_that_change_a_saved_job_are_refused(tmp_path: Path) -> None:
    path = write_job(planned("--runs", "2"), tmp_path)
    with pytest.raises(SpecError, match=r"job-fp16.json: contains all options of the measurement; leave --runs out"):
        read_job(["--job", str(path), "--runs", "3"])
    job = read_job(["--job", str(path), "--output", str(tmp_path), "--device", "cpu", "--quiet"])
    assert job is not None
    assert (job.procedure.runs, job.output, job.device, job.part) == (2, tmp_path, "cpu", None)
    assert job.reproduce.startswith(f"python -m benchmarker.run --job {path}")


@pytest.mark.parametrize(
    "words", [("quant: fp16", "quant: bnb4"), ("- 50", "- 60"), ("Qwen/Qwen3-4B", "Qwen/Qwen3-8B")]
)
def test_config_edited_during_a_sweep_does_not_change_the_sweep(tmp_path: Path, words: tuple[str, str]) -> None:
    config = tmp_path / "config.yaml"
    edit = {"variant": "a", "round": 0, "at": "cell 0", "do": "edit", "file": str(config), "words": words, "times": 1}
    stage = Stage(tmp_path, variants=["a"], rounds=2, faults=[edit])
    assert stage.sweep() == []
    assert words[1] in config.read_text()
    assert {saved.variant.quant for saved in stage.records()} == {"fp16"}
    assert {saved.model.id for saved in stage.records()} == {"Qwen/Qwen3-4B"}
    assert stage.cells() == [(0, "a", 50, "ok"), (0, "a", 100, "ok"), (1, "a", 50, "ok"), (1, "a", 100, "ok")]


def test_resumed_sweep_measures_its_saved_jobs_and_reports_changes(tmp_path: Path) -> None:
    stage = Stage(tmp_path, variants=["a"])
    stage.sweep("--warmup", "4")
    stage.new_tokens = [50, 200]
    stage.sweep(resume=True, rounds=2)
    assert (
        f"--resume: {stage.config} has changed since this sweep began; the jobs saved in the folder are measured; a "
        "new sweep measures its present content"
    ) in " ".join(stage.printed.split())
    assert {saved.procedure["warmup"] for saved in stage.records()} == {4}
    assert [new_tokens for _, _, new_tokens, _ in stage.cells()] == [50, 100, 50, 100]
    stage.sweep("a", "--warmup", "4", str(stage.results), resume=True, output=None, rounds=1)
    assert "its present content is measured, because variants or options are given" in " ".join(stage.printed.split())
    assert (0, "a", 200, "ok") in stage.cells()
    stage.sweep(resume=True)
    assert "has changed" not in stage.printed


def test_sweep_with_a_deleted_job_file_resumes_from_its_config(tmp_path: Path) -> None:
    stage = Stage(tmp_path, variants=["a", "b"])
    stage.sweep("b", "--warmup", "4")
    job_path(stage.results, "b").unlink()
    stage.sweep(resume=True)
    assert "--resume: 'a b' replaces the earlier 'b --warmup 4'" in stage.printed
    assert stage.cells()[-2:] == [(0, "b", 50, "ok"), (0, "b", 100, "ok")]


def test_job_files_are_not_read_as_records(tmp_path: Path) -> None:
    stage = Stage(tmp_path, variants=["job-a"])
    assert stage.sweep() == []
    assert job_path(stage.results, "job-a").exists()
    stage.sweep(resume=True)
    assert "2 of 2 cells are there already" in stage.printed
    assert "not a benchmarker record" not in stage.printed
    assert compare([stage.results]).problems == ()


def test_sweep_of_a_replaced_model_is_not_resumed(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"some weights")
    stage = Stage(tmp_path, variants=["a"], model=str(model))
    stage.sweep()
    (model / "model.safetensors").write_bytes(b"more weights")
    with pytest.raises(ResultsError, match=rf"--resume: model {model} changed since this sweep began; put it back, or"):
        stage.sweep(resume=True)


def test_inputs_are_identified_by_content_and_large_files_by_their_ends(tmp_path: Path, monkeypatch: Any) -> None:
    shard, text = tmp_path / "model.safetensors", tmp_path / "text.txt"
    shard.write_bytes(b"abc" * 1000)
    text.write_text("to calibrate on")
    model = ModelSpec(id=str(tmp_path))
    variant = VariantSpec(name="gptq", quant="gptq", options={"calibration": str(text)})
    quality = QualitySpec(size="quick", text=str(text), baseline=str(tmp_path))

    def fingerprints() -> dict[str, str]:
        return inputs(job_with(model=model, variant=variant, quality=quality), judged=True)

    before = fingerprints()
    os.utime(shard, ns=(1, 1))
    assert fingerprints() == before
    text.unlink()
    assert changed_inputs(before, fingerprints())[:2] == [f"model {tmp_path}", f"calibration text {text}"]
    monkeypatch.setattr("benchmarker.checkpoints.files.WHOLE_BYTES", 100)
    monkeypatch.setattr("benchmarker.checkpoints.files.END_BYTES", 50)
    before = fingerprints()
    shard.write_bytes(b"abc" * 999 + b"abd")
    os.utime(shard, ns=(1, 1))
    assert changed_inputs(before, fingerprints()) == [f"model {tmp_path}", f"quality baseline {tmp_path}"]


def test_hub_model_is_identified_by_its_commit() -> None:
    job = planned("--model", "Qwen/Qwen3-4B", commit="a" * 40)
    assert job.origin is not None
    assert job.origin.inputs == {} or "model Qwen/Qwen3-4B" in job.origin.inputs
    refuse_other_commit(job, job.model.id, "a" * 40)
    with pytest.raises(ChangedError, match=r"changed on the hub since the sweep began: commit aaa.*, then bbb.*"):
        refuse_other_commit(job, job.model.id, "b" * 40)
    # A job outside a sweep may use the current commit.
    refuse_other_commit(job.model_copy(update={"part": None}), job.model.id, "b" * 40)


def test_process_with_changed_keys_raises_with_the_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    job = planned()
    check_unchanged(job, environment())
    with pytest.raises(
        ChangedError,
        match=r"^packages.torch: 2.11.0\+cu130, then 2.12.0; packages.transformers: 5.17.0, then nothing changed since "
        "the sweep began: the keys of these cells differ from the planned ones; begin a new sweep$",
    ):
        check_unchanged(job, environment(packages={"torch": "2.12.0"}))
    with pytest.raises(ChangedError, match="the files of the model or the job file changed since"):
        check_unchanged(
            job.model_copy(update={"subject": GenerationSubject(model=ModelSpec(id="another"))}), environment()
        )
    monkeypatch.setattr("benchmarker.execution.jobs.__version__", "9.9")
    with pytest.raises(ChangedError, match=r"^benchmarker: [0-9.]+, then 9.9 changed since"):
        check_unchanged(job, environment())


def test_different_keys_in_one_cell_of_a_sweep_are_never_averaged(tmp_path: Path) -> None:
    sweep = {"sweep": "2026-03-01T10:00:00Z"}
    slower = environment(variables={"TOKENIZERS_PARALLELISM": "1"})
    save(
        tmp_path,
        record("int8", cell(key="a" * 64), **sweep),
        record("int8", cell(key="b" * 64), round_number=1, environment=slower, **sweep),
    )
    for force in (False, True):
        with pytest.raises(ResultsError) as caught:
            compare([tmp_path], force=force)
        assert str(caught.value) == (
            "variant 'int8' is two things in one sweep: the keys of its cells differ between record int8-eager-0 of "
            "round 1 and record int8-eager-1 of round 2 (variables.TOKENIZERS_PARALLELISM: nothing, then 1); leave one "
            "of them out"
        )


def test_cells_of_different_sweeps_may_have_different_keys(tmp_path: Path) -> None:
    save(
        tmp_path,
        record("int8", cell(key="a" * 64), sweep="2026-03-01T10:00:00Z"),
        record("int8", cell(key="b" * 64), sweep="2026-03-02T10:00:00Z", round_number=1),
    )
    assert [row.rounds for row in compare([tmp_path]).rows] == [2]


def test_round_with_a_different_text_is_reported(tmp_path: Path) -> None:
    sweep = {"sweep": "2026-03-01T10:00:00Z"}
    token_lists = [(5, 6, 7), (5, 6, 7), (5, 9, 7)]
    cells = [cell(first_tokens=tokens) for tokens in token_lists]
    save(tmp_path, *(record("int8", result, round_number=number, **sweep) for number, result in enumerate(cells)))
    text = compare([tmp_path])._repr_markdown_()
    assert "batch 1: the text of round 3 is not that of the first round, from token 2 on." in text


BEFORE_EACH = """
import os, shutil, sys
marker, source, target = sys.argv[1:4]
if os.path.exists(marker):
    shutil.copyfile(source, target)
open(marker, "a").close()
os.execv(sys.executable, [sys.executable, "-m", "benchmarker.run", *sys.argv[4:]])
"""
"""Program that starts a process of a sweep; from its second start on, it first copies one file over another."""


def real_sweep(
    home: Path, model: Path, quant: str, *, source: Path, target: Path, rounds: int = 2
) -> tuple[list[str], str]:
    """Run a sweep in real processes on a two-layer model; return the failures and the printed text."""
    run = (sys.executable, "-c", BEFORE_EACH, str(home / "marker"), str(source), str(target))
    out = io.StringIO()
    config = home / "config.yaml"
    config.write_text(config_text(model, quant, 4))
    failed = sweep_config(
        config, ["--device", "cpu"], Terminal(streams=Streams(out, out)),
        Settings(output=home / "results", seed=1, rounds=rounds),
        tools=Tools(run=run, prepare_host=known_host(home), watch_host=None), report=("true",),
    )  # fmt: skip
    return failed, out.getvalue()


def config_text(model: Path, quant: str, new_tokens: int) -> str:
    return yaml.safe_dump(
        {
            "model": {"id": str(model), "dtype": "bfloat16"},
            "grid": {"prompt_tokens": [3], "new_tokens": [new_tokens]},
            "procedure": {
                "rounds": 2, "runs": 1, "warmup": 1, "warmup_limit": 1, "profile": False, "limits": False,
            },
            "variants": [{"name": "measured", "quant": quant}],
        }
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.by_hand
def test_edited_config_does_not_change_a_real_sweep_or_its_job(model_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "marker").touch()
    (tmp_path / "edited.yaml").write_text(config_text(model_folder, "bnb4", 16))
    failed, printed = real_sweep(
        tmp_path, model_folder, "int8", source=tmp_path / "edited.yaml", target=tmp_path / "config.yaml"
    )
    assert failed == [], printed
    assert "bnb4" in (tmp_path / "config.yaml").read_text()
    records = compare([tmp_path / "results"]).records
    assert [(one.variant.quant, [cell.new_tokens for cell in one.cells]) for one in records] == [("int8", [4])] * 2
    (tmp_path / "config.yaml").unlink()
    code, printed = typed("run", "--job", tmp_path / "results" / "job-measured.json", "--output", tmp_path / "again")
    assert code == 0, printed
    (repeated,) = compare([tmp_path / "again"]).records
    assert (repeated.variant.quant, repeated.sweep, repeated.cells[0].key) == ("int8", None, records[0].cells[0].key)


@pytest.mark.slow
def test_weights_replaced_during_a_sweep_are_not_measured(model_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "marker").touch()
    weights = model_folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1000:] = bytes(1000)
    (tmp_path / "other").write_bytes(content)
    failed, printed = real_sweep(tmp_path, model_folder, "fp16", source=tmp_path / "other", target=weights, rounds=1)
    assert failed == ["measured, round 1"]
    reason = f"failed: measured, round 1: error: model {model_folder} changed since the sweep began; put it back, or "
    assert reason in " ".join(printed.split()) + " "
    (failed_record,) = collect([tmp_path / "results"]).records
    assert [cell.status for cell in failed_record.cells] == ["error"]
    assert json.loads(job_path(tmp_path / "results", "measured").read_text())["origin"]["inputs"].keys() == {
        f"model {model_folder}"
    }
