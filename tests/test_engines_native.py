"""The native engine on a CPU, with a capture that runs the step again: what it replaces, and that its tokens stay."""

from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from benchmarker.engines.base import UnsupportedError
from benchmarker.engines.eager import EagerDecoder
from benchmarker.engines.native import NativeDecoder
from benchmarker.hardware.device import CpuDevice
from benchmarker.kernels.fuse_qkv_gate_up import fuse_linears
from tests.loading import load, tokens_of
from tests.test_engines_graph import Rerun, model, prompt
from tests.test_kernels import unpacked, weights_size

__all__ = ["model"]


def test_on_a_cpu_native_says_what_to_use_instead(model: PreTrainedModel) -> None:
    with pytest.raises(UnsupportedError, match=r"^native needs a CUDA GPU.*; use --engine compile$"):
        NativeDecoder(model, CpuDevice()).generate(prompt(), 5)


@pytest.mark.slow
def test_bitsandbytes_products_of_one_input_are_made_as_one_and_no_byte_is_kept_twice(model_folder) -> None:
    model = unpacked(load(model_folder, "bnb4", dtype="float32").model)
    linears: list[Any] = [module for module in model.modules() if type(module).__name__ == "Linear4bit"]
    asked = torch.arange(10, 30)[None]
    expected = tokens_of(EagerDecoder(model, CpuDevice()), asked, 32)
    names, size = set(dict(model.named_modules())), weights_size(model)
    runtime = NativeDecoder(model, CpuDevice(), capture=Rerun())
    assert tokens_of(runtime, asked, 32) == expected
    assert [use.purpose for use in runtime.facts().kernels_used if use.origin == "benchmarker"] == ["joined_linears"]
    products = [
        linear.fused_slice.fused.linear
        for linear in linears
        if hasattr(linear, "fused_slice") and linear.fused_slice.start == 0
    ]
    attention, mlp = products[:2]
    assert len(products) == 4
    assert (attention.out_features, mlp.out_features) == (128 + 2 * 64, 2 * 256)
    assert len(fuse_linears(model)) == 10
    assert (set(dict(model.named_modules())), weights_size(model)) == (names, size)
    assert linears[1].weight.untyped_storage().data_ptr() == attention.weight.untyped_storage().data_ptr()
    # Several queries go to each linear by itself, and find their own weights there.
    assert tokens_of(EagerDecoder(model, CpuDevice()), asked, 32) == expected


@pytest.mark.slow
def test_a_model_is_looked_at_for_joining_once(model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[PreTrainedModel] = []
    monkeypatch.setattr("benchmarker.engines.native.optimize", lambda given: looked.append(given) or ())
    runtime = NativeDecoder(model, CpuDevice(), capture=Rerun())
    for new_tokens in (3, 3, 5):
        runtime.generate(prompt(), new_tokens)
    assert len(looked) == 1
