"""Attention on a GPU: each kernel is the one that was asked for, the clocks agree, and orders hold."""

from itertools import cycle, islice

import pytest
import torch

from benchmarker.core.errors import UnsupportedError
from benchmarker.hardware.device import find_device
from benchmarker.measure.peaks import measure_limits
from benchmarker.workloads.attention.bench import open_attention
from benchmarker.workloads.attention.proof import implementations_of
from benchmarker.workloads.attention.spec import AttentionPoint, AttentionSubject, AttentionVariant

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]

POINT = AttentionPoint(1024, 2, "forward_backward")
LONG = AttentionPoint(4096, 4, "forward")


def measured(variant, point=POINT, dtype="bfloat16", **subject):
    spec = AttentionSubject(**{"heads": 16, "head_dim": 128, "dtype": dtype, **subject})
    with open_attention(spec, AttentionVariant(variant=variant), find_device("cuda")) as bench:
        return bench.cell(point).model_copy(update=bench.correct(point))


@pytest.mark.parametrize("variant", ["naive", "math", "flash", "efficient", "cudnn", "flex"])
def test_every_kernel_is_the_one_that_was_asked_for_and_right(variant):
    if variant in ("cudnn", "efficient") and torch.version.hip:
        pytest.skip("AMD's kernels are AOTriton's")
    cell = measured(variant)
    assert variant in {*implementations_of(cell.kernels, find_device("cuda").kind), "naive", "math"}
    assert cell.checked.error < 1e-2


@pytest.mark.parametrize("variant", ["flash", "cudnn", "math"])
def test_shared_heads_are_right(variant):
    assert measured(variant, kv_heads=4).checked.error < 1e-2


@pytest.mark.parametrize("variant", ["naive", "math", "efficient", "flex"])
def test_windows_are_right(variant):
    assert measured(variant, window=256).checked.error < 1e-2


def test_a_fused_kernel_keeps_less_than_one_matrix_of_scores():
    naive, flash = measured("naive"), measured("flash")
    assert flash.passes.kept_bytes < naive.demand.scores_bytes <= naive.passes.kept_bytes


def test_flash_has_no_float32_and_says_why():
    with pytest.raises(UnsupportedError, match="dtype"):
        measured("flash", dtype="float32")


def test_tf32_is_less_exact_than_ieee():
    ieee, tf32 = measured("naive", dtype="float32"), measured("naive", dtype="tf32")
    assert 10 * ieee.checked.error < tf32.checked.error < 2e-3


def test_the_hosts_clock_the_devices_and_a_loop_by_hand_agree():
    device = find_device("cuda")
    with open_attention(AttentionSubject(), AttentionVariant(variant="flash"), device) as bench:
        ready = bench.ready(LONG)
        step = bench.step(LONG)
        step()
        sample = min((step() for _ in range(5)), key=lambda one: one.latency_s)
        by_hand_s = min(_by_hand(ready.attention, ready.copies, sample.calls) for _ in range(5))
    assert sample.event_s == pytest.approx(sample.latency_s, rel=0.02)
    assert by_hand_s == pytest.approx(sample.latency_s, rel=0.02)


def _by_hand(attention, copies, calls):
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with attention.around():
        torch.cuda.synchronize()
        first.record()
        for inputs in islice(cycle(copies), calls):
            attention.call(inputs.query, inputs.key, inputs.value)
        last.record()
        torch.cuda.synchronize()
    return first.elapsed_time(last) / 1e3 / calls


def test_no_kernel_is_faster_than_the_measured_products():
    device = find_device("cuda")
    limits = measure_limits(device, "bfloat16")
    for variant in ("flash", "auto"):
        with open_attention(AttentionSubject(), AttentionVariant(variant=variant), device) as bench:
            cell, step = bench.cell(LONG), bench.step(LONG)
            step()
            assert cell.demand.flops / step().latency_s < limits.matmul_flops_per_s
