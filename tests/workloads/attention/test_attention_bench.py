"""Attention variants are checked before timing; variants with planted faults are refused."""

import math
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from benchmarker.core.errors import SpecError, UnsupportedError, WrongResultError
from benchmarker.hardware.device import CpuDevice
from benchmarker.workloads.attention.attention_bench import (
    check,
    input_bytes,
    inputs_sha256,
    make_inputs,
    refuse_inaccurate,
    rows_of,
)
from benchmarker.workloads.attention.attention_variants import VARIANTS, open_flash_library
from benchmarker.workloads.attention.spec import AttentionSubject, AttentionVariant, shape_of
from benchmarker.workloads.operation import operation_bench, operation_call
from benchmarker.workloads.operation.operation_bench import CallStep
from benchmarker.workloads.operation.operation_call import Operation, copies_needed, relative_error, results_of
from benchmarker.workloads.operation.spec import LengthPoint
from tests.fakes import FakeDevice
from tests.workloads.attention.opened import open_attention

POINT = LengthPoint(128, 2, "forward_backward")
SHAPE = shape_of(AttentionSubject(), AttentionVariant(variant="fa4"), POINT)


def subject(**values):
    return AttentionSubject(**{"heads": 4, "kv_heads": 2, "head_dim": 16, "dtype": "float32", **values})


def measured(variant, point=POINT, **values):
    """Return the checked cell before timing."""
    with open_attention(subject(**values), AttentionVariant(variant=variant), CpuDevice(), cache_bytes=1) as bench:
        return bench.cell(point).model_copy(update=bench.correct(point))


PATH = "tests.planted_attention:"


@pytest.mark.parametrize("variant", ["naive", "math", "flash", "auto"])
@pytest.mark.parametrize("mode", ["forward", "forward_backward"])
def test_torch_backends_on_a_cpu_are_accurate_to_rounding(variant, mode):
    cell = measured(variant, LengthPoint(128, 2, mode))
    assert cell.checked.error < 1e-6
    assert [tensor.tensor for tensor in cell.checked.tensors] == (
        ["o", "dq", "dk", "dv"] if mode != "forward" else ["o"]
    )
    assert cell.checked.rows == 128


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("function", ["one_percent_off", "scale_one_percent_off"])
def test_kernel_with_one_percent_error_is_refused(function, dtype):
    with pytest.raises(WrongResultError, match="wrong result: "):
        measured(PATH + function, dtype=dtype)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("without_its_mask", "o is off by"),
        ("gradient_lost", "dq is off by 1"),
        ("transposed", r"o has the shape \[2, 128, 4, 16\], not \[2, 4, 128, 16\]"),
        ("not_a_number", "o holds a number that is not finite"),
    ],
)
def test_kernel_with_a_planted_fault_is_refused_with_the_tensor(function, message):
    with pytest.raises(WrongResultError, match=message):
        measured(PATH + function)


def test_kernel_that_returns_a_cached_output_is_refused():
    with pytest.raises(WrongResultError, match="two calls return o in the same memory"):
        measured(PATH + "kept_by_address", LengthPoint(128, 2, "forward"))


def test_kernel_that_copies_a_cached_output_is_refused():
    with pytest.raises(WrongResultError, match="o is off by"):
        measured(PATH + "kept_and_copied", LengthPoint(128, 2, "forward"))


def test_kernel_without_a_backward_pass_is_unsupported_with_gradients():
    assert measured(PATH + "forward_alone", LengthPoint(128, 2, "forward")).checked.error < 1e-6
    with pytest.raises(UnsupportedError, match="does not require grad"):
        measured(PATH + "forward_alone")


def test_error_in_a_user_function_contains_file_and_line():
    with pytest.raises(SpecError, match=r"with_a_bug: ValueError: no such tile \(planted_attention.py, line \d+\)"):
        measured(PATH + "with_a_bug")


@pytest.mark.parametrize("variant", ["fa3", "fa4"])
def test_gpu_library_is_unsupported_on_a_cpu_even_if_not_installed(variant):
    with pytest.raises(UnsupportedError, match="not on CPUs; it runs on NVIDIA GPUs"):
        measured(variant)


def test_correct_user_function_passes():
    assert measured(PATH + "right").checked.error < 1e-6


@pytest.mark.parametrize("values", [{"causal": False}, {"window": 16}, {"kv_heads": 4}, {"dtype": "bfloat16"}])
def test_masks_windows_shared_heads_and_dtypes_are_accurate(values):
    refuse_inaccurate(measured("naive", **values).checked)
    refuse_inaccurate(measured("math", **values).checked)


def test_sampled_rows_include_the_last_and_every_segment():
    rows = rows_of(4096)
    assert len(rows) == 64
    assert rows[-1] == 4095
    assert max(later - earlier for earlier, later in pairwise(rows)) <= 96
    assert rows_of(2048) == list(range(2048))


def test_long_sequence_is_checked_at_sampled_rows():
    shape = shape_of(subject(heads=1, kv_heads=1), AttentionVariant(variant="flash"), LengthPoint(2304, 1, "forward"))
    inputs = make_inputs(shape, "cpu", seed=0)
    output = results_of(VARIANTS["flash"].open(shape, "cpu"), inputs)
    refuse_inaccurate(check(output, inputs, shape))
    output["o"][:, :, -1] *= 1.5
    with pytest.raises(WrongResultError, match="o is off by"):
        refuse_inaccurate(check(output, inputs, shape))


def test_error_is_relative_to_the_norm_of_the_expected_tensor(monkeypatch):
    expected = torch.tensor([3.0, 4.0])
    assert relative_error(expected * 1.01, expected) == pytest.approx(0.01)
    assert relative_error(torch.tensor([math.nan, 4.0]), expected) == math.inf
    monkeypatch.setattr(operation_call, "PART_NUMBERS", 1)
    assert relative_error(expected * 1.01, expected) == pytest.approx(0.01)


def test_backend_that_ran_instead_is_named(monkeypatch):
    monkeypatch.setitem(VARIANTS, "flash", replace(VARIANTS["flash"], open=VARIANTS["math"].open))
    with pytest.raises(UnsupportedError, match="math ran instead"):
        measured("flash")


def test_missing_torch_backend_is_unsupported_with_torchs_reason(monkeypatch):
    efficient = VARIANTS["efficient"]
    monkeypatch.setitem(VARIANTS, "efficient", replace(efficient, kernels={**efficient.kernels, "cpu": "efficient"}))
    with pytest.raises(UnsupportedError, match="torch: No viable backend"):
        measured("efficient")


def test_unknown_flash_library_is_unsupported():
    with pytest.raises(UnsupportedError, match="torch: Unknown flash attention impl 'FA9'"):
        open_flash_library("FA9")(SHAPE, "cpu").around().__enter__()


def test_auto_records_the_kernel_that_ran():
    assert "aten::_scaled_dot_product_flash_attention_for_cpu" in [kernel.name for kernel in measured("auto").kernels]


def test_inputs_are_equal_for_all_dtypes_and_differ_by_seed():
    def digest(seed=0, **values):
        return inputs_sha256(shape_of(subject(**values), AttentionVariant(variant="naive"), POINT), "cpu", seed=seed)

    assert digest() == digest(dtype="bfloat16")
    assert digest() != digest(seed=1)
    assert digest() != digest(head_dim=32)


def test_copies_of_inputs_are_permuted_in_separate_memory():
    shape = shape_of(subject(), AttentionVariant(variant="naive"), POINT)
    first = make_inputs(shape, "cpu", seed=0)
    copy = first.copies(2)[1]
    for before, after in zip((*first.tensors, first.gradient), (*copy.tensors, copy.gradient), strict=True):
        assert not torch.equal(before, after)
        assert torch.equal(before.detach().flatten().sort().values, after.detach().flatten().sort().values)
        assert before.data_ptr() != after.data_ptr()
        assert before.requires_grad == after.requires_grad


def test_number_of_copies_fills_the_cache():
    shape = shape_of(subject(), AttentionVariant(variant="naive"), POINT)
    each = input_bytes(shape)
    assert each == sum(part.nbytes for part in (*make_inputs(shape, "cpu", seed=0).tensors, torch.empty(2, 4, 128, 16)))
    assert copies_needed(each, 10 * each, kind="cpu") == 11
    assert copies_needed(each, 2**40, kind="cpu") == 2**28 // each


def test_short_calls_are_repeated_over_all_copies(monkeypatch):
    now = SimpleNamespace(ns=0)
    monkeypatch.setattr(operation_bench.time, "perf_counter_ns", lambda: now.ns)
    shape = shape_of(subject(), AttentionVariant(variant="naive"), LengthPoint(128, 1, "forward"))
    copies = [make_inputs(shape, "cpu", seed=seed) for seed in range(3)]
    calls: list[int] = []

    def attend(query, key, value):
        calls.append(query.data_ptr())
        now.ns += 1_000_000
        return query

    device = FakeDevice()
    device.kind = "cpu"
    step = CallStep(Operation(attend), copies, device)
    step()
    calls.clear()
    device.calls.clear()
    sample = step()
    assert sample.calls == len(calls) == 22
    assert sample.latency_s == pytest.approx(0.001)
    assert device.calls == ["synchronize"] * 2
    assert set(calls) == {copy.named["q"].data_ptr() for copy in copies}
    assert all(earlier != later for earlier, later in pairwise(calls))


@pytest.mark.parametrize(("backward_ns", "parts_s"), [(2_000_000, {"forward": 0.001, "backward": 0.002}), (0, {})])
def test_backward_time_is_the_difference_of_both_passes_and_forward(monkeypatch, backward_ns, parts_s):
    now = SimpleNamespace(ns=0)
    monkeypatch.setattr(operation_bench.time, "perf_counter_ns", lambda: now.ns)

    class Step(CallStep):
        def forward(self, inputs):
            now.ns += 1_000_000

        def forward_backward(self, inputs):
            now.ns += 1_000_000 + backward_ns

    shape = shape_of(subject(), AttentionVariant(variant="naive"), POINT)
    sample = Step(Operation(None), [make_inputs(shape, "cpu", seed=0)], CpuDevice())()
    assert sample.parts_s == pytest.approx(parts_s)
    assert sample.latency_s == pytest.approx((1_000_000 + backward_ns) / 1e9)


def test_float32_precision_is_ieee_and_the_setting_is_restored():
    before = torch.get_float32_matmul_precision()
    with open_attention(subject(dtype="tf32"), AttentionVariant(variant="naive"), CpuDevice()):
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    with open_attention(subject(), AttentionVariant(variant="naive"), CpuDevice()):
        assert torch.backends.cuda.matmul.fp32_precision == "ieee"
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.slow
@pytest.mark.by_hand
def test_flex_runs_forward_on_a_cpu():
    cell = measured("flex", LengthPoint(256, 1, "forward"), kv_heads=4, head_dim=64)
    refuse_inaccurate(cell.checked)


@pytest.mark.slow
def test_flex_has_no_backward_pass_on_a_cpu():
    with pytest.raises(UnsupportedError, match="does not support backward on CPU"):
        measured("flex", LengthPoint(256, 1, "forward_backward"), kv_heads=4, head_dim=64)
