"""A run of attention in this process, from the command line to a record that is read again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarker.comparison.results import to_rows
from benchmarker.core.console import Terminal
from benchmarker.core.errors import SpecError
from benchmarker.execution.jobs import result_key
from benchmarker.execution.single_run import Run
from benchmarker.report.compare import compare
from benchmarker.report.verify import verify
from benchmarker.schema.config_io import read_experiment
from benchmarker.schema.record_io import collect
from benchmarker.workloads.attention.record import AttentionRecord
from tests.jobs import read_job

CONFIGS = Path(__file__).parents[3] / "configs"
SHAPE = ("--seq-len", "128", "--heads", "2", "--head-dim", "16", "--dtype", "float32", "--device", "cpu")
SHORT = ("--runs", "2", "--warmup", "1", "--warmup-limit", "1", "--no-limits")
SOURCE = """
from torch.nn.functional import scaled_dot_product_attention

def correct(query, key, value, is_causal):
    return scaled_dot_product_attention(query, key, value, is_causal=is_causal)

def without_a_mask(query, key, value):
    return scaled_dot_product_attention(query, key, value)
"""


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    """Write a user's module to the current folder and yield its path."""
    (tmp_path / "own_attention.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "own_attention.py"
    sys.modules.pop("own_attention", None)


def job(*options):
    return read_job(["attention", *SHAPE, *SHORT, *options])


def record_of(folder, *options) -> AttentionRecord:
    Run(job("--mode", "forward", "--output", str(folder), *options), Terminal(quiet=True)).execute()
    (record,) = collect([folder]).records
    return record


def test_run_writes_a_record_that_is_compared_and_verified(tmp_path):
    record = record_of(tmp_path, "--variant", "naive")
    (cell,) = record.cells
    assert (record.workload, record.status, cell.status) == ("attention", "complete", "ok")
    assert (record.subject.heads, record.subject.head_dim, record.variant.dtype) == (2, 16, "float32")
    assert cell.checked.error < cell.checked.tolerance
    assert [kernel.name for kernel in cell.kernels if "softmax" in kernel.name]
    (row,) = to_rows(compare([tmp_path]))
    times = sorted(sample.latency_s for sample in cell.samples)
    flops = 4 * 2 * 16 * 128 * 129 / 2
    assert row["tflops_flop_per_s"] == pytest.approx(flops / (sum(times) / 2))
    assert row["forward_s"] == pytest.approx(sum(times) / 2)
    assert row["backward_s"] is None
    assert row["peak_memory_bytes"] == cell.memory.resident_growth_bytes is not None
    assert not verify([tmp_path]).problems


def test_unsupported_variant_is_recorded_without_samples(tmp_path):
    (cell,) = record_of(tmp_path, "--variant", "cudnn").cells
    assert (cell.status, cell.samples) == ("unsupported", ())
    assert cell.reason == "not on CPUs; it runs on NVIDIA GPUs"


def test_user_code_requires_trust_code_on_the_command_line(tmp_path, user_module):
    with pytest.raises(
        SpecError, match="variant own_attention:correct: is code of your own, which is run; add --trust"
    ):
        job("--variant", "own_attention:correct")
    record = record_of(tmp_path / "correct", "--variant", "own_attention:correct", "--trust-code")
    assert record.cells[0].status == "ok"
    assert record.built.source_sha256
    config = tmp_path / "config.yaml"
    config.write_text(
        "workload: attention\nsubject: {trust_code: true}\nvariants: [{variant: 'own_attention:correct'}]\n"
    )
    with pytest.raises(SpecError, match="subject: no key 'trust_code'"):
        read_experiment(config)


def test_wrong_result_is_invalid_and_has_no_samples(tmp_path, user_module):
    (cell,) = record_of(tmp_path / "wrong", "--variant", "own_attention:without_a_mask", "--trust-code").cells
    assert (cell.status, cell.error_kind, cell.samples) == ("invalid", "wrong_result", ())
    assert cell.reason.startswith("wrong result: o is off by")


def test_changed_user_function_changes_the_key(tmp_path, user_module):
    record = record_of(tmp_path / "r", "--variant", "own_attention:correct", "--trust-code")
    same_job = job("--mode", "forward", "--variant", "own_attention:correct", "--trust-code")
    (point,) = same_job.points()
    assert result_key(same_job, point, record.environment) == record.cells[0].key
    user_module.write_text(SOURCE + "\n# faster\n")
    assert result_key(same_job, point, record.environment) != record.cells[0].key


def test_batch_size_option_replaces_the_tokens_of_a_config():
    config = ("attention", "--config", str(CONFIGS / "attention.yaml"), "--variant", "flash", "--seq-len", "1024")
    assert [point.batch_size for point in read_job([*config]).points()] == [16, 16]
    assert [point.batch_size for point in read_job([*config, "--batch-size", "2"]).points()] == [2, 2]


@pytest.mark.parametrize("options", [("--energy",), ("--profile-tokens", "8")])
def test_options_without_effect_are_refused(options):
    with pytest.raises(SpecError, match=f"{options[0]}: "):
        job("--variant", "naive", *options)
