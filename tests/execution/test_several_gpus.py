"""Test models over several GPUs, with two gloo processes on the CPU, and the refused combinations."""

from __future__ import annotations

import psutil
import pytest

from benchmarker.core.console import Terminal
from benchmarker.core.errors import BenchmarkerError, DeviceError, SpecError, UnsupportedError
from benchmarker.execution.jobs import make_job, result_key
from benchmarker.execution.single_run import Run
from benchmarker.hardware.device import CpuDevice, one_of_several
from benchmarker.workloads.generation.generation_job import key_parts
from benchmarker.workloads.generation.spec import VariantSpec
from benchmarker.workloads.generation.workload import WORKLOAD
from benchmarker.workloads.measure_cell import measure_cell
from tests.jobs import job_of

TINY = "qwen3-tiny"
"""Model with two key and value heads; that of `session_model` has one."""


def job_on(model, gpus, folder, **form):
    return job_of(
        model={"id": str(model), "load_format": "dummy" if model == TINY else "auto", "dtype": "float32"},
        form={"quant": "fp16", "gpus": gpus, **form},
        grid={"prompt_tokens": [7], "new_tokens": [6], "batch_size": [2]},
        procedure={"runs": 2, "warmup": 1, "warmup_limit": 1, "limits": False, "profile": False},
        device="cpu",
        output=folder,
    )


def cell_of(run, bench):
    point = run.job.grid.points()[0]
    return measure_cell(bench, bench.cell(point), point, run.job.procedure, run.device)


def measure(*arguments):
    """Return the record of a run with one timed cell, without the steps after timing."""
    job = job_on(*arguments)
    run = Run(job, Terminal(quiet=True))
    with WORKLOAD.open(job, run.device, run) as bench:
        run.keep(cells=(cell_of(run, bench),), **bench.facts())
    return run.record


@pytest.fixture(scope="module")
def divided_bench(tmp_path_factory):
    """Yield a run over two processes and its open bench; the last test with this fixture kills one process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BENCHMARKER_CACHE", str(tmp_path_factory.mktemp("cache")))
        job = job_on(TINY, 2, tmp_path_factory.mktemp("divided"))
        run = Run(job, Terminal(quiet=True))
        with WORKLOAD.open(job, run.device, run) as bench:
            yield run, bench
    assert not psutil.Process().children()


@pytest.mark.by_hand
# Runs before the tests with `divided_bench`, which holds this process's only process group until the last of them.
def test_tensor_parallel_step_matches_its_forward(tmp_path):
    record = Run(job_on(TINY, 2, tmp_path), Terminal(quiet=True)).execute()
    assert record.step_divergence.verdict == "equal"


def test_two_processes_match_one_and_share_its_weights(divided_bench, tmp_path):
    run, bench = divided_bench
    run.keep(cells=(cell_of(run, bench),), **bench.facts())
    single, divided = measure(TINY, 1, tmp_path), run.record
    (single_cell,), (cell,) = single.cells, divided.cells
    assert cell.status == "ok", cell.reason
    assert cell.first_tokens == single_cell.first_tokens
    assert cell.inputs_sha256 == single_cell.inputs_sha256
    assert cell.distinct_prompts == single_cell.distinct_prompts == 2
    assert len(cell.memory.per_gpu_bytes) == 2
    # Each process holds half of the linear weights and all norms.
    assert sum(divided.load.per_gpu_bytes) == divided.load.weight_bytes
    assert single.load.weight_bytes < divided.load.weight_bytes < 1.02 * single.load.weight_bytes
    assert divided.load.parameters == single.load.parameters
    assert divided.load.quantized_fraction == 0
    assert 0.49 < cell.demand.weight_bytes / single_cell.demand.weight_bytes < 0.52
    assert cell.demand.decode_flops / single_cell.demand.decode_flops == pytest.approx(0.5, abs=0.01)
    assert (divided.variant.gpus, divided.variant.split, divided.variant.name) == (2, "tensors", "fp16 2 GPUs")


def test_killed_rank_fails_its_cell_and_the_next(divided_bench):
    run, bench = divided_bench
    psutil.Process().children()[0].kill()
    cells = [cell_of(run, bench) for _ in range(2)]
    assert [(cell.status, cell.reason) for cell in cells] == 2 * [("crash", "rank 1: killed by SIGKILL")]


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        ({"quant": "int8"}, "divides 16-bit weights, not int8; use --quant fp16 of an unquantized model"),
        ({"quant": "fp16", "options": ["lm_head=int8"]}, "not lm_head=int8"),
        (
            {"quant": "gptq", "split": "layers"},
            "gptq by layers over several GPUs was never tried; it is there for fp",
        ),
        ({"quant": "fp16", "engine": "compile"}, "compile: its static KV cache holds every head on one GPU"),
        ({"quant": "fp16", "engine": "llama-cpp"}, "llama-cpp: it is given one GPU here; use --engine eager or vllm"),
        ({"quant": "fp16", "engine": "vllm", "split": "layers"}, "vLLM divides tensors; leave --split layers out"),
    ],
)
def test_unsupported_forms_on_several_gpus_are_refused_before_loading(form, reason):
    options = form.pop("options", None)
    with pytest.raises(UnsupportedError, match=reason):
        job_of(form={**form, "gpus": 2}, options=options)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"variant.split": "layers"}, "split: layers says how several GPUs share the model; give gpus too"),
        ({"variant.gpus": 2, "procedure.energy": True}, "--energy: counts one GPU"),
        ({"variant.gpus": 2, "subject.quality.size": "quick"}, "judge the form on one GPU"),
    ],
)
def test_unsuitable_options_for_several_gpus_are_refused(options, reason):
    with pytest.raises(SpecError, match=reason):
        make_job({"variant.quant": "fp16", **options})


def test_indivisible_heads_are_refused_before_a_process_starts(session_model, tmp_path):
    with pytest.raises(BenchmarkerError, match=r"has 1 key and value heads, which 2 GPUs cannot share"):
        measure(session_model, 2, tmp_path)


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        ({}, r"eager: .* has 1 key and value heads, which 2 GPUs cannot share"),
        ({"split": "layers"}, "--split layers: a CPU has no second memory"),
        ({"gpus": 1, "engine": "sglang"}, "sglang: runs on cuda alone"),
        ({"gpus": 1, "engine": "cuda_graph"}, "a CPU has no graphs to capture; use --engine eager or compile there"),
    ],
)
def test_form_is_refused_before_the_limits_are_measured(session_model, tmp_path, monkeypatch, form, reason):
    job = job_on(session_model, form.pop("gpus", 2), tmp_path, **form)
    run = Run(job, Terminal(quiet=True))
    monkeypatch.setattr(Run, "ready", lambda run: pytest.fail("the limits were measured"))
    with pytest.raises(BenchmarkerError, match=reason), WORKLOAD.open(job, run.device, run):
        pass


def test_split_by_layers_on_a_cpu_is_refused():
    with pytest.raises(DeviceError, match="--split layers: a CPU has no second memory"):
        one_of_several(CpuDevice(), 2)


def test_result_key_includes_the_number_of_gpus_above_one(tmp_path):
    single, divided = job_on(TINY, 1, tmp_path), job_on(TINY, 2, tmp_path)
    assert "gpus" not in key_parts(single)
    assert key_parts(divided) == {**key_parts(single), "gpus": 2, "split": "tensors"}
    environment = Run(single, Terminal(quiet=True)).record.environment
    point = single.grid.points()[0]
    assert result_key(single, point, environment) != result_key(divided, point, environment)


def test_variant_name_includes_several_gpus():
    assert VariantSpec.model_validate({"quant": "fp16", "gpus": 2}).name == "fp16 2 GPUs"
    assert VariantSpec.model_validate({"quant": "bnb4", "gpus": 4, "split": "layers"}).name == "bnb4 4 GPUs by layers"
