"""Fallback of two workloads to the general advice for a bound."""

from types import SimpleNamespace

from benchmarker.explain.verdict import ADVICE
from benchmarker.workloads.attention import attention_reading
from benchmarker.workloads.finetune import finetune_reading


def timed(**variant):
    return SimpleNamespace(record=SimpleNamespace(variant=SimpleNamespace(**variant)))


def test_bandwidth_bound_flash_attention_gets_the_general_advice():
    assert attention_reading._fewer_bytes(timed(variant="flash")) == ADVICE["bandwidth"]


def test_finetune_bound_by_small_kernels_gets_the_general_advice(monkeypatch):
    monkeypatch.setattr(finetune_reading, "_switch_advice", lambda _: "")
    assert finetune_reading.ADVICE["small kernels"](timed()) == ADVICE["small kernels"]
