"""Checks of `benchmarker comply` on real engines with and without a planted fault in the measuring code."""

import time
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from benchmarker.comply import run_checks
from benchmarker.comply.folder_checks import check_order
from benchmarker.engines.decoders.eager import EagerDecoder
from benchmarker.measure import clock
from benchmarker.schema.record_io import collect, write_json
from tests import records
from tests.faults.stage import Stage
from tests.jobs import job_of

GRID = {"prompt_tokens": [8], "new_tokens": [24]}
GPU_GRID = {"prompt_tokens": [8], "new_tokens": [200]}
GENERATE = EagerDecoder.generate
NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA or ROCm device")
ON_GPU = pytest.param("cuda", marks=[pytest.mark.gpu, NEEDS_GPU])


@contextmanager
def opened(quant, device="cpu", engine="eager"):
    job = job_of(
        model={"id": "qwen3-small", "dtype": "float32" if device == "cpu" else "float16"},
        form={"quant": quant, "engine": engine},
        grid=GRID if device == "cpu" else GPU_GRID,
        device=device,
    )
    with run_checks.opened(job, ()) as subject:
        subject.generate(subject.own)
        yield subject


@pytest.fixture(scope="module", params=["cpu", ON_GPU])
def subject(request):
    with opened("fp16", request.param) as subject:
        yield subject


@pytest.fixture(scope="module", params=["compile", "native"])
def captured_subject(request):
    with opened("fp16", "cuda", request.param) as subject:
        yield subject


def cached_generate(cache, original=GENERATE):
    def generate(self, prompt_ids, new_tokens, *, context=None):
        start_ns = time.perf_counter_ns()
        key = tuple(prompt_ids), new_tokens
        if key not in cache:
            cache[key] = original(self, prompt_ids, new_tokens).tokens
        end_ns = time.perf_counter_ns()
        return clock.Generation(cache[key], start_ns, end_ns, end_ns, end_ns)

    return generate


def layer_skipped(self, prompt_ids, new_tokens, *, context=None):
    layers, self.model.model.layers = self.model.model.layers, self.model.model.layers[:-1]
    self.model.config.num_hidden_layers -= 1
    try:
        return GENERATE(self, prompt_ids, new_tokens)
    finally:
        self.model.model.layers = layers
        self.model.config.num_hidden_layers += 1


def token_too_few(self, prompt_ids, new_tokens, *, context=None):
    return GENERATE(self, prompt_ids, new_tokens - 1)


@pytest.mark.parametrize(
    ("check", "fault"),
    [
        (run_checks.check_no_caching, cached_generate({})),
        (run_checks.check_timed_output, layer_skipped),
        (run_checks.check_length, token_too_few),
    ],
    ids=["cached answer", "skipped layer", "token too few"],
)
def test_faulty_generation_fails(subject, check, fault):
    assert check(subject).outcome == "passed"
    with mock.patch.object(EagerDecoder, "generate", fault):
        assert check(subject).outcome == "failed"


def test_clock_that_is_3_percent_fast_fails(subject):
    assert run_checks.check_clock(subject).outcome == "passed"
    fast = SimpleNamespace(perf_counter_ns=lambda: round(1.03 * time.perf_counter_ns()))
    with mock.patch.object(clock, "time", fast):
        assert run_checks.check_clock(subject).outcome == "failed"


@pytest.mark.gpu
@NEEDS_GPU
def test_faults_of_compiled_and_native_steps_fail(captured_subject):
    checks = run_checks.check_no_caching, run_checks.check_timed_output, run_checks.check_length
    assert [check(captured_subject).outcome for check in checks] == ["passed"] * 3
    decoder = type(captured_subject.source)
    original = decoder.generate

    def other_token(self, prompt_ids, new_tokens, *, context=None):
        generation = original(self, prompt_ids, new_tokens)
        return replace(generation, tokens=tuple(((row[0] + 1) % 1000, *row[1:]) for row in generation.tokens))

    def token_too_few(self, prompt_ids, new_tokens, *, context=None):
        return original(self, prompt_ids, new_tokens - 1)

    for check, fault in zip(checks, (cached_generate({}, original), other_token, token_too_few), strict=True):
        with mock.patch.object(decoder, "generate", fault):
            assert check(captured_subject).outcome == "failed"


@pytest.mark.parametrize("device", ["cpu", ON_GPU])
def test_weights_unpacked_after_loading_fail(device):
    def unpacking(self, prompt_ids, new_tokens, *, context=None):
        for module in self.model.modules():
            if isinstance(module, torch.nn.Linear) and hasattr(module.weight, "dequantize"):
                weight = module.weight.dequantize().to(module.weight.dtype)
                module.weight = torch.nn.Parameter(weight.clone(), requires_grad=False)
        return GENERATE(self, prompt_ids, new_tokens)

    with opened("int8", device) as subject:
        assert run_checks.check_weights(subject).outcome == "passed"
        with mock.patch.object(EagerDecoder, "generate", unpacking):
            subject.generate(subject.own)
        assert run_checks.check_weights(subject).outcome == "failed"


CARD = {"uuid": "GPU-5e1a7d2c-0000-0000-0000-000000000000"}


def order_of(stage):
    return check_order(stage.results, collect([stage.results]).records)


def test_two_processes_on_one_gpu_fail(tmp_path):
    stage = Stage(tmp_path / "apart", rounds=2, environment=records.environment(device=CARD))
    assert stage.sweep() == []
    finding = order_of(stage)
    assert (finding.outcome, finding.text) == (
        "passed",
        "4 processes of 2 rounds in the planned order, one at a time on a device",
    )
    # Two workers on separate devices report the same GPU.
    stage = Stage(tmp_path / "together", rounds=2, environment=records.environment(device=CARD))
    assert stage.sweep(places="local:0,1") == []
    finding = order_of(stage)
    assert finding.outcome == "failed"
    assert f"ran at the same time on {CARD['uuid']}" in finding.text


def test_shuffled_pairs_fail(tmp_path):
    stage = Stage(tmp_path, rounds=2)
    assert stage.sweep() == []
    assert order_of(stage).outcome == "passed"
    for path, record in collect([stage.results]).files:
        if record.variant.name == "b":
            write_json(record.model_copy(update={"round": 1 - record.round}), path)
    finding = order_of(stage)
    assert finding.outcome == "failed"
    assert finding.text.startswith("no process of round ")
    assert finding.text.endswith(" of b in that round")
