"""The advice of a workload that falls back to the general advice is a sentence."""

from types import SimpleNamespace

from benchmarker.explain.verdict import ADVICE
from benchmarker.workloads.attention import attention_reading
from benchmarker.workloads.finetune import finetune_reading


def timed(**variant):
    return SimpleNamespace(record=SimpleNamespace(variant=SimpleNamespace(**variant)))


def test_a_fused_attention_kernel_at_the_bandwidth_has_the_general_advice():
    assert attention_reading._fewer_bytes(timed(variant="flash")) == ADVICE["bandwidth"]


def test_small_kernels_of_fine_tuning_have_the_general_advice(monkeypatch):
    monkeypatch.setattr(finetune_reading, "_switch_advice", lambda _: "")
    assert finetune_reading.ADVICE["small kernels"](timed()) == ADVICE["small kernels"]
