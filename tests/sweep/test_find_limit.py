"""The largest value that fits is searched by doubling and bisection; each tried value has a record."""

from __future__ import annotations

import pytest

from benchmarker.cli.sweep_command import split_arguments
from benchmarker.core.console import Terminal
from benchmarker.core.errors import ResultsError, SpecError
from benchmarker.execution.single_run import Run
from benchmarker.schema.record_io import write_json
from benchmarker.sweep import find_limit as module
from benchmarker.sweep.find_limit import Limit, Trial, find_limit, search
from tests.jobs import read_job

ARGUMENTS = (
    "attention", "--variant", "naive", "--heads", "1", "--head-dim", "8", "--dtype", "float32", "--mode", "forward",
    "--device", "cpu", "--seq-len",
)  # fmt: skip


def trials_up_to(maximum):
    """Return a trial function that accepts values up to `maximum`, and the list of tried values."""
    values = []

    def trial(value):
        values.append(value)
        fits = value <= maximum
        return Trial(value, None if fits else "out of memory", value)

    return trial, values


@pytest.mark.parametrize("maximum", [1024, 1100, 5000, 8191, 8192, 100_000])
def test_largest_fitting_value_is_found_to_within_a_step(maximum):
    trial, values = trials_up_to(maximum)
    limit = Limit("seq_len", search(trial, start=1024, step=128))
    assert limit.largest.value <= maximum < limit.refused.value
    assert limit.refused.value - limit.largest.value <= 128
    assert len(values) == len(set(values)), "a value was tried twice"


def test_start_that_does_not_fit_ends_the_search():
    trial, values = trials_up_to(100)
    limit = Limit("seq_len", search(trial, start=1024, step=128))
    assert values == [1024]
    assert limit.words == "no seq_len fits: 1,024: out of memory"


def test_limit_is_described_with_peak_and_reason():
    reason = "CUDA out of memory. Tried to allocate 4.06 GiB. GPU 0 has a total capacity of 139.80 GiB"
    trials = (Trial(1024, None, 3 * 2**30), Trial(2048, reason, None))
    expected = "largest seq_len that fits: 1,024 (peak 3.00 GiB); 2,048 does not: CUDA out of memory"
    assert Limit("seq_len", trials).words == expected


@pytest.mark.parametrize(
    ("axis", "lengths", "expected"),
    [
        ("mode", "64", "--find-limit mode: no size of attention"),
        ("batch_size", "64,128", "--find-limit batch_size: several cells for one --batch-size"),
    ],
)
def test_unsuitable_axis_is_refused(tmp_path, axis, lengths, expected):
    with pytest.raises(SpecError, match=expected):
        find_limit(read_job([*ARGUMENTS, lengths]), axis, Terminal(quiet=True), folder=tmp_path)


def test_each_tried_value_has_a_record_including_out_of_memory(tmp_path, monkeypatch):
    job = read_job([*ARGUMENTS, "64"])

    def measure(job, path):
        (point,) = job.points()
        template = Run(job.model_copy(update={"output": tmp_path}), Terminal(quiet=True)).record
        cell = {"seq_len": point.seq_len, "batch_size": 1, "mode": "forward"}
        fits = point.seq_len <= 100
        status = {"status": "ok"} if fits else {"status": "oom_gpu", "error_kind": "oom_gpu", "reason": "too large"}
        cell_type = type(template).model_fields["cells"].annotation.__args__[0]
        record = template.model_copy(update={"cells": (cell_type(**cell, **status),), "status": "complete"})
        write_json(record, path)
        assert job.procedure.runs == 1
        return record

    monkeypatch.setattr(module, "_measured", measure)
    limit = find_limit(job, "seq_len", Terminal(quiet=True), folder=tmp_path / "limit")
    assert [trial.value for trial in limit.trials] == [64, 128, 96, 112, 104]
    assert limit.largest.value == 96
    assert all((tmp_path / "limit" / f"seq_len-{trial.value}.json").is_file() for trial in limit.trials)


def test_process_without_a_record_raises_with_its_last_output_line(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "RUN", ("sh", "-c", "echo no device >&2; exit 3", "sh"))
    with pytest.raises(ResultsError, match=r"left no record \(exit 3\): no device"):
        find_limit(read_job([*ARGUMENTS, "64"]), "seq_len", Terminal(quiet=True), folder=tmp_path)


def test_find_limit_is_refused_for_a_sweep():
    with pytest.raises(SpecError, match="--find-limit: is an option of `benchmarker run`"):
        split_arguments(["--find-limit", "seq_len"], "attention")


def test_undecided_first_load_is_reported_as_undecided():
    reason = "undecided: 100 % [86, 100] of 24 requests are good"
    limit = Limit("concurrency", (Trial(1, reason, None),), "requests at once within TTFT 40 ms")
    assert limit.words == f"requests at once within TTFT 40 ms: at 1 {reason}; more --requests decide"
