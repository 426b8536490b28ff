"""Attention on a GPU: each variant runs its kernel, clocks agree, and known orders of speed hold."""

import math
from itertools import cycle, islice
from statistics import median

import pytest
import torch

from benchmarker.core.errors import UnsupportedError, WrongResultError
from benchmarker.hardware.device import find_device
from benchmarker.measure.device_limits import measure_limits
from benchmarker.workloads.attention.attention_variants import variants_with_kernel
from benchmarker.workloads.attention.spec import AttentionSubject, AttentionVariant
from benchmarker.workloads.operation.spec import LengthPoint
from tests.workloads.attention.opened import open_attention

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]

POINT = LengthPoint(1024, 2, "forward_backward")
LONG = LengthPoint(4096, 4, "forward")
PLANTED = "tests.planted_attention:"


def measured(variant, point=POINT, dtype="bfloat16", **subject):
    spec = AttentionSubject(**{"heads": 16, "head_dim": 128, "dtype": dtype, **subject})
    with open_attention(spec, AttentionVariant(variant=variant), find_device("cuda")) as bench:
        return bench.cell(point).model_copy(update=bench.correct(point))


@pytest.mark.parametrize("variant", ["naive", "math", "flash", "efficient", "cudnn", "flex"])
def test_each_variant_runs_its_kernel_and_is_accurate(variant):
    if variant in ("cudnn", "efficient") and torch.version.hip:
        pytest.skip("AMD's kernels are AOTriton's")
    cell = measured(variant)
    assert variant in {*variants_with_kernel(cell.kernels, find_device("cuda").kind), "naive", "math"}
    assert cell.checked.error < 1e-2


def test_backend_selected_by_torch_is_named():
    assert variants_with_kernel(measured("auto").kernels, find_device("cuda").kind)


@pytest.mark.parametrize("variant", ["flash", "cudnn", "math"])
def test_shared_heads_are_accurate(variant):
    assert measured(variant, kv_heads=4).checked.error < 1e-2


@pytest.mark.parametrize("variant", ["naive", "math", "efficient", "flex"])
def test_windows_are_accurate(variant):
    assert measured(variant, window=256).checked.error < 1e-2


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("one_percent_off", "wrong result: "),
        ("scale_one_percent_off", "wrong result: "),
        ("without_its_mask", "o is off by"),
        ("gradient_lost", "dq is off by 1"),
    ],
)
def test_planted_fault_is_refused(function, message):
    with pytest.raises(WrongResultError, match=message):
        measured(PLANTED + function)


@pytest.mark.parametrize(
    ("function", "message"),
    [("kept_by_address", "two calls return o in the same memory"), ("kept_and_copied", "o is off by")],
)
def test_cached_output_is_refused(function, message):
    with pytest.raises(WrongResultError, match=message):
        measured(PLANTED + function, LengthPoint(1024, 2, "forward"))


def test_correct_user_function_passes():
    assert measured(PLANTED + "right").checked.error < 1e-2


def test_fused_kernel_stores_less_than_a_matrix_of_scores():
    naive, flash = measured("naive"), measured("flash")
    assert flash.passes.kept_bytes < naive.demand.scores_bytes <= naive.passes.kept_bytes


def test_flash_is_unsupported_for_float32():
    with pytest.raises(UnsupportedError, match="dtype"):
        measured("flash", dtype="float32")


def test_tf32_is_less_accurate_than_ieee():
    ieee, tf32 = measured("naive", dtype="float32"), measured("naive", dtype="tf32")
    assert 10 * ieee.checked.error < tf32.checked.error < 2e-3


@pytest.mark.parametrize("mode", ["forward", "forward_backward"])
@pytest.mark.parametrize("variant", ["naive", "flash", "cudnn"])
def test_host_clock_device_clock_and_hand_written_loop_agree(variant, mode):
    device, point = find_device("cuda"), LONG._replace(mode=mode)
    with open_attention(AttentionSubject(), AttentionVariant(variant=variant), device) as bench:
        flops, ready, step = bench.cell(point).demand.flops, bench.prepare(point), bench.step(point)
        calls = step().calls
        # Measurements alternate, because a GPU at its power limit slows down during the measurement.
        pairs = [(step(), _by_hand(ready.operation, ready.copies, calls)) for _ in range(15)]
    tool_s, event_s, hand_s = (
        median(times)
        for times in zip(*((sample.latency_s, sample.event_s, by_hand_s) for sample, by_hand_s in pairs), strict=True)
    )
    print(f"TFLOP/s of {variant} {mode}: {flops / tool_s / 1e12:.1f} by the tool, {flops / hand_s / 1e12:.1f} by hand")
    assert event_s == pytest.approx(tool_s, rel=0.02)
    assert hand_s == pytest.approx(tool_s, rel=0.02)


def _by_hand(operation, copies, calls):
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with operation.around():
        torch.cuda.synchronize()
        first.record()
        for inputs in islice(cycle(copies), calls):
            output = operation.call(*inputs.tensors)
            if inputs.gradient is not None:
                torch.autograd.grad(output, inputs.tensors, inputs.gradient)
        last.record()
        torch.cuda.synchronize()
    return first.elapsed_time(last) / 1e3 / calls


@pytest.mark.parametrize("variant", ["flash", "cudnn"])
def test_time_grows_quadratically_for_long_sequences(variant):
    times = {}
    for length in (4096, 16384):
        # Four sequences, because one of 4,096 positions does not fill the GPU.
        point = LengthPoint(length, 4, "forward")
        with open_attention(AttentionSubject(), AttentionVariant(variant=variant), find_device("cuda")) as bench:
            step = bench.step(point)
            step()
            times[length] = median(step().latency_s for _ in range(9))
    exponent = math.log(times[16384] / times[4096], 4)
    print(f"{variant}: S^{exponent:.3f} from 4,096 to 16,384")
    assert 1.8 < exponent < 2.1


def test_no_kernel_exceeds_the_measured_matmul_rate():
    device = find_device("cuda")
    limits = measure_limits(device, "bfloat16")
    for variant in ("flash", "auto"):
        with open_attention(AttentionSubject(), AttentionVariant(variant=variant), device) as bench:
            cell, step = bench.cell(LONG), bench.step(LONG)
            step()
            assert cell.demand.flops / step().latency_s < limits.matmul_flops_per_s
