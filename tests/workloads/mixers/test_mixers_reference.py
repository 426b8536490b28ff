"""Implementations of each mixer equal the recurrence of its paper, and planted faults are refused."""

import math

import pytest
import torch

from benchmarker.core.errors import UnsupportedError, WrongResultError
from benchmarker.hardware.device import CpuDevice
from benchmarker.workloads.mixers.mixer import (
    GATED_DELTA,
    LINEAR,
    RETENTION,
    VARIANTS,
    MixerImplementation,
    chunked,
    head_decay,
    open_chunked,
)
from benchmarker.workloads.mixers.mixers_bench import MixersBench, recurrence
from benchmarker.workloads.mixers.spec import MixersSubject
from benchmarker.workloads.operation.operation_call import Operation, relative_error
from benchmarker.workloads.operation.spec import LengthPoint

ANYWHERE = {"cpu": ""}
POINT = LengthPoint(96, 2, "forward_backward")


def subject(**values):
    return MixersSubject(**{"heads": 3, "head_dim": 8, "dtype": "float32", **values})


def checked(variant, point=POINT, **values):
    """Return the checked cell before timing."""
    bench = MixersBench(subject(**values), variant, CpuDevice(), cache_bytes=1)
    return bench.cell(point).model_copy(update=bench.correct(point))


def rows(length, heads=2, width=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    parts = [torch.randn(heads, length, width, generator=generator, dtype=torch.float64) for _ in range(3)]
    gate, strength = (torch.randn(heads, length, generator=generator, dtype=torch.float64) for _ in range(2))
    query, key = (torch.nn.functional.normalize(part, dim=-1) for part in parts[:2])
    return query, key, parts[2], torch.nn.functional.logsigmoid(gate), strength.sigmoid()


def test_recurrence_of_two_tokens_has_known_values():
    query, key = torch.tensor([[[2.0], [3.0]]]), torch.tensor([[[0.5], [1.0]]])
    value, log_decay, strength = (
        torch.tensor([[[4.0], [6.0]]]),
        torch.tensor([[0.0, math.log(0.5)]]),
        torch.full((1, 2), 0.5),
    )
    # Plain: the state is 0.5 * 4 = 2, then 2 + 6 = 8. Delta: 0.5 * 0.5 * 4 = 1, halved 0.5, then 0.5 + 0.5 * (6 - 0.5).
    plain = recurrence(query, key, value, None, None, is_normalized=False)
    delta = recurrence(query, key, value, log_decay, strength, is_normalized=False)
    assert plain.flatten().tolist() == [4.0, 24.0]
    assert delta.flatten().tolist() == pytest.approx([2.0, 3 * 3.25])


@pytest.mark.parametrize("length", [1, 63, 64, 65, 127, 200])
@pytest.mark.parametrize("is_delta", [False, True])
def test_chunked_form_equals_the_recurrence_at_any_length(length, is_delta):
    *parts, strength = rows(length)
    parts.append(strength if is_delta else None)
    expected = recurrence(*parts, is_normalized=False)
    assert relative_error(chunked(*parts, is_normalized=False), expected) < 1e-12


def test_normalization_gives_a_weighted_mean():
    query, key, value, _, _ = rows(100)
    positive = (query.abs() + 0.1, key.abs() + 0.1, torch.ones_like(value))
    for form in (chunked, recurrence):
        assert torch.allclose(form(*positive, None, None, is_normalized=True), torch.ones_like(value))


def test_retention_has_a_fixed_decay_per_head():
    assert head_decay(RETENTION, 3, "cpu").exp().tolist() == pytest.approx([31 / 32, 63 / 64, 127 / 128])
    assert head_decay(LINEAR, 3, "cpu") is None


@pytest.mark.parametrize("variant", ["softmax-naive", "softmax-sdpa", "linear-torch", "retention-torch", "gdn-torch"])
@pytest.mark.parametrize("mode", ["forward", "forward_backward"])
def test_cpu_variants_are_accurate_to_rounding(variant, mode):
    cell = checked(variant, LengthPoint(96, 2, mode))
    assert cell.checked.error < 1e-5
    assert cell.checked.causal_error < 1e-6
    gates = ["dg", "dbeta"] if variant.startswith("gdn") else []
    expected = ["o"] if mode == "forward" else ["o", "dq", "dk", "dv", *gates]
    assert [tensor.tensor for tensor in cell.checked.tensors] == expected


@pytest.mark.parametrize(
    "values", [{"value_dim": 12}, {"feature_map": "elu"}, {"feature_map": "elu", "normalize": True}]
)
def test_wide_values_feature_maps_and_means_are_accurate(values):
    assert checked("linear-torch", **values).checked.error < 1e-5


def test_softmax_with_values_wider_than_keys_is_accurate():
    assert checked("softmax-naive", value_dim=12).checked.error < 1e-5


def test_long_sequence_is_compared_at_every_position():
    cell = checked("gdn-torch", LengthPoint(600, 1, "forward"), heads=1)
    assert (cell.checked.rows, cell.checked.heads) == (600, 1)
    assert cell.checked.lengths == (63, 64, 65, 127)


def planted(monkeypatch, mixer, call):
    """Register a mixer whose implementation is `call` around the correct one."""

    def open_wrong(shape, where):
        correct = open_chunked(mixer, shape, where).call
        return Operation(lambda *tensors: call(correct, *tensors))

    monkeypatch.setitem(
        VARIANTS,
        "planted",
        MixerImplementation(mixer=mixer, source="test", open=open_wrong, kernels=ANYWHERE),
    )


FAULTS = {
    "ignores the gate": lambda correct, q, k, v, g, beta: correct(q, k, v, 0 * g, beta),
    "ignores beta": lambda correct, q, k, v, g, beta: correct(q, k, v, g, torch.ones_like(beta) + 0 * beta),
    "is one percent off": lambda correct, *tensors: 1.01 * correct(*tensors),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gated_delta_rule_with_a_planted_fault_is_refused(monkeypatch, fault, dtype):
    planted(monkeypatch, GATED_DELTA, FAULTS[fault])
    with pytest.raises(WrongResultError, match="wrong result: o is off by"):
        checked("planted", dtype=dtype)


def test_state_lost_at_the_end_of_a_chunk_is_refused(monkeypatch):
    def without_the_tail(correct, q, k, v):
        output = correct(q, k, v)
        return torch.cat([output[:, :, :64], 0 * output[:, :, 64:]], dim=2) if q.shape[2] == 65 else output

    planted(monkeypatch, LINEAR, without_the_tail)
    with pytest.raises(WrongResultError, match="wrong result at 65 positions: o is off by"):
        checked("planted")


def test_output_cached_from_an_earlier_call_is_refused(monkeypatch):
    outputs = {}

    def cached(correct, q, k, v):
        return outputs.setdefault(q.shape, correct(q, k, v).detach()).clone()

    planted(monkeypatch, LINEAR, cached)
    with pytest.raises(WrongResultError, match="o is off by"):
        checked("planted", LengthPoint(96, 2, "forward"))


@pytest.mark.parametrize("variant", [name for name in VARIANTS if "-fla-" in name])
def test_gpu_library_is_unsupported_on_a_cpu(variant):
    with pytest.raises(UnsupportedError, match=r"^not on CPUs; it runs on"):
        checked(variant)
