"""Test profiles of one generation by the real profiler, on the CPU and on a GPU."""

import time

import pytest
import torch

from benchmarker.core.errors import ResultsError
from benchmarker.hardware.device import CpuDevice
from benchmarker.measure.profile_repeat import profile_step
from benchmarker.profiling.chrome_trace import Cut, cpu_work, read_trace
from benchmarker.workloads.generation.record import GenerationSample


@pytest.fixture(scope="module")
def generate():
    """Return a step in which a random two-layer Qwen3 generates 8 tokens after a prompt of 5."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        vocab_size=200,
    )
    model = Qwen3ForCausalLM(config).eval()
    prompt = torch.arange(5)[None]

    def step():
        started = time.perf_counter()
        model.generate(prompt, max_new_tokens=8, eos_token_id=None, pad_token_id=0, do_sample=False)
        return GenerationSample(latency_s=time.perf_counter() - started, new_tokens=8)

    step()
    return step


def profile_on_cpu(step, trace_path):
    return profile_step(step, device=CpuDevice(), trace_path=trace_path)


def test_cpu_profile_counts_operators_and_saves_the_trace(generate, tmp_path):
    profile = profile_on_cpu(generate, tmp_path / "results" / "run.trace.json.gz")

    calls = {kernel.name: kernel.calls for kernel in profile.kernels}
    # Seven linears per layer, two layers and the output layer, for each of eight tokens.
    assert calls["aten::mm"] == (7 * 2 + 1) * 8
    assert calls["aten::argmax"] == 8
    assert not [name for name in calls if "profiler" in name.lower()]
    assert profile.by == "cpu"
    assert sum(kernel.total_s for kernel in profile.kernels) == pytest.approx(profile.kernel_s)
    assert 0 < profile.kernel_s == profile.busy_s <= profile.span_s <= profile.latency_s
    totals = [kernel.total_s for kernel in profile.kernels]
    assert totals == sorted(totals, reverse=True)

    assert profile.trace == "run.trace.json.gz"
    trace_path = tmp_path / "results" / "run.trace.json.gz"
    assert [path.name for path in trace_path.parent.iterdir()] == [trace_path.name]
    assert {kernel.name: kernel.calls for kernel in cpu_work(read_trace(trace_path)).kernels} == calls


def test_cpu_profile_is_split_at_the_first_token(tmp_path):
    """Profile sixteen matrix products before the cut and four after it."""
    matrix = torch.ones(64, 64)
    moments = []

    def step():
        for _ in range(16):
            matrix @ matrix
        # The clocks are aligned to some microseconds, and a product takes no longer than that.
        time.sleep(0.002)
        moments.append(time.perf_counter_ns())
        time.sleep(0.002)
        for _ in range(4):
            matrix @ matrix
        return GenerationSample(latency_s=1.0, new_tokens=5)

    step()
    profile = profile_step(
        step,
        device=CpuDevice(),
        trace_path=None,
        cuts=lambda: (Cut("prefill", None), Cut("decode", moments[-1])),
    )
    (product,) = [kernel for kernel in profile.kernels if kernel.name == "aten::mm"]
    assert {name: time.calls for name, time in product.sections.items()} == {"prefill": 16, "decode": 4}
    for name, section in profile.sections.items():
        times = [kernel.sections[name].total_s for kernel in profile.kernels if name in kernel.sections]
        assert section.busy_s == pytest.approx(sum(times))
        assert section.launches is None


def test_profiler_warm_up_is_not_in_the_profile(generate):
    names = {kernel.name for kernel in profile_on_cpu(generate, None).kernels}
    assert "aten::ones" not in names or "aten::add_" not in names


def test_no_trace_is_saved_without_a_path(generate, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert profile_on_cpu(generate, None).trace is None
    assert list(tmp_path.iterdir()) == []


def test_trace_that_cannot_be_saved_raises(generate, tmp_path):
    (tmp_path / "results").write_text("a file, not a folder")
    with pytest.raises(ResultsError, match="trace not saved: "):
        profile_on_cpu(generate, tmp_path / "results" / "run.trace.json.gz")


def test_profiler_works_after_an_error_in_the_step(generate):
    def broken():
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        profile_on_cpu(broken, None)
    assert profile_on_cpu(generate, None).kernels


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA or ROCm device")
def test_gpu_profile_contains_kernels_and_copies(tmp_path):
    from benchmarker.hardware.device import CudaDevice

    matrix = torch.randn(512, 512, device="cuda:0", dtype=torch.float16)

    def step():
        (matrix @ matrix).cpu()
        return GenerationSample(latency_s=1.0, new_tokens=1)

    step()
    profile = profile_step(step, device=CudaDevice(0), trace_path=None)
    assert profile.by == "device"
    assert any("Memcpy" in kernel.name or "Copy" in kernel.name for kernel in profile.kernels)
    assert 0 < profile.busy_s <= profile.span_s
    assert profile.peak_allocated_bytes


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA or ROCm device")
def test_gpu_profile_is_split_at_the_first_token():
    """Profile sixteen matrix products before the cut and four after it, with a synchronization at the cut."""
    from benchmarker.hardware.device import CudaDevice

    matrix = torch.randn(512, 512, device="cuda:0", dtype=torch.float16)
    moments = []

    def step():
        for _ in range(16):
            matrix @ matrix
        torch.cuda.synchronize()
        time.sleep(0.002)
        moments.append(time.perf_counter_ns())
        time.sleep(0.002)
        for _ in range(4):
            matrix @ matrix
        torch.cuda.synchronize()
        return GenerationSample(latency_s=1.0, new_tokens=5)

    step()
    profile = profile_step(
        step,
        device=CudaDevice(0),
        trace_path=None,
        cuts=lambda: (Cut("prefill", None), Cut("decode", moments[-1])),
    )
    before, after = (
        sum(kernel.sections[name].calls for kernel in profile.kernels if name in kernel.sections)
        for name in ("prefill", "decode")
    )
    # A product may launch several kernels, but the same number each time.
    assert before == 4 * after
    assert profile.sections["decode"].launches == after
    assert 0 < profile.sections["decode"].busy_s < profile.busy_s
