"""Time, parts and profile sections of one training step."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from benchmarker.hardware.device import CpuDevice
from benchmarker.measure.profile_repeat import profile_step
from benchmarker.profiling.chrome_trace import SECTION_MARK, device_work
from benchmarker.workloads.training_step import TrainingStep
from tests.fakes import FakeDevice


def trained(*, accumulate=1, device=None, checkpointed=False, **options):
    """Return a step of two layers, and the layers."""
    torch.manual_seed(0)
    layers = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()) for _ in range(2))
    batch = torch.randn(4, 8)

    def loss():
        hidden = batch
        for layer in layers:
            hidden = checkpoint(step.recomputing(layer), hidden, use_reentrant=False) if checkpointed else layer(hidden)
        return hidden.square().mean()

    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
    step = TrainingStep(loss, optimizer, device or CpuDevice(), accumulate=accumulate, **options)
    return step, layers


def weights(layers):
    return [parameter.detach().clone() for parameter in layers.parameters()]


def test_step_equals_a_hand_written_loop():
    step, layers = trained()
    by_hand, hand_layers = trained()
    step.profiled()
    loss = by_hand.loss()
    loss.backward()
    with torch.no_grad():
        for parameter in hand_layers.parameters():
            parameter -= 0.1 * parameter.grad
    # Equal to the last three bits: processors round a fused multiply-add once or twice.
    torch.testing.assert_close(weights(layers), weights(hand_layers), rtol=1e-6, atol=1e-7)
    assert step.losses[0].item() == loss.item()


def test_micro_batches_are_averaged_into_one_step():
    once, layers = trained()
    twice, others = trained(accumulate=2)
    once.profiled()
    twice.profiled()
    assert all(torch.allclose(*pair) for pair in zip(weights(layers), weights(others), strict=True))
    assert [loss.item() for loss in twice.losses] == pytest.approx([once.losses[0].item()] * 2)


def test_gradients_are_cleared_after_a_step():
    step, layers = trained()
    step.profiled()
    assert all(parameter.grad is None for parameter in layers.parameters())


def test_timed_step_synchronizes_only_at_start_and_end():
    device = FakeDevice()
    step, _ = trained(device=device, times_parts=False)
    sample = step()
    assert device.calls == ["synchronize", "synchronize"]
    assert sample.drained_parts_s == {}


def test_parts_are_timed_in_a_separate_step_with_synchronization():
    device = FakeDevice()
    step, _ = trained(device=device)
    sample = step()
    assert device.calls == ["synchronize"] * 6
    assert list(sample.drained_parts_s) == ["forward", "backward", "optimizer"]
    assert all(seconds > 0 for seconds in sample.drained_parts_s.values())


@pytest.mark.parametrize("checkpointed", [False, True])
def test_profile_has_sections_for_parts_and_recomputation(checkpointed):
    step, _ = trained(checkpointed=checkpointed)
    step.profiled()
    profile = profile_step(step.profiled, device=CpuDevice(), trace_path=None)
    expected = (
        ["forward", "backward", "recompute", "optimizer"] if checkpointed else ["forward", "backward", "optimizer"]
    )
    assert list(profile.sections) == expected
    products = {"forward": 2, "recompute": 2} if checkpointed else {"forward": 2}
    linear = next(kernel for kernel in profile.kernels if kernel.name == "aten::addmm")
    assert {name: time.calls for name, time in linear.sections.items()} == products


def test_memory_is_not_measured_on_a_cpu():
    step, _ = trained()
    assert step.memory().kept_bytes is None


def kernel(name, start_us, *, launch):
    arguments = {"device": 0, "stream": 7, "correlation": launch}
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": start_us, "dur": 5, "args": arguments}


def launched(start_us, *, launch, thread):
    arguments = {"correlation": launch}
    return {
        "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": thread, "ts": start_us,
        "dur": 1, "args": arguments,
    }  # fmt: skip


def annotation(section, start_us, duration_us, *, thread=1):
    return {
        "ph": "X", "cat": "user_annotation", "name": SECTION_MARK + section, "pid": 1, "tid": thread, "ts": start_us,
        "dur": duration_us,
    }  # fmt: skip


def test_kernel_belongs_to_the_section_that_launched_it():
    events = [
        annotation("forward", 0, 10),
        annotation("backward", 10, 20),
        annotation("recompute", 12, 4, thread=2),
        launched(1, launch=11, thread=1),
        launched(13, launch=12, thread=2),
        launched(18, launch=13, thread=2),
        kernel("gemm", 15, launch=11),
        kernel("gemm", 20, launch=12),
        kernel("gemm", 25, launch=13),
    ]
    (gemm,) = device_work(events).kernels
    assert {name: time.calls for name, time in gemm.sections.items()} == {"forward": 1, "recompute": 1, "backward": 1}


def test_device_annotation_is_not_a_section():
    shadow = {**annotation("forward", 0, 100), "cat": "gpu_user_annotation"}
    work = device_work([shadow, kernel("gemm", 15, launch=11)])
    assert work.sections == {}
