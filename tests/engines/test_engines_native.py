"""The native engine on a CPU, with a capture that runs the step again: what it replaces, and that its tokens stay."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from benchmarker.engines.base import UnsupportedError
from benchmarker.engines.decoders.compile import BESIDE_OUR_PRODUCTS, ON_GPU, known_settings
from benchmarker.engines.decoders.eager import EagerDecoder
from benchmarker.engines.decoders.native import NativeStep, module_kernels
from benchmarker.engines.decoders.prefill_decode import captured_experts
from benchmarker.engines.decoders.static_decoder import StaticCacheDecoder
from benchmarker.hardware.device import CpuDevice
from benchmarker.kernels.fuse_qkv_gate_up import fuse_linears
from benchmarker.schema.model import KernelUse, kinds_words
from tests.architectures import small_model
from tests.engines.test_engines_graph import Rerun, model, prompt
from tests.kernels.test_kernels import unpacked, weights_size
from tests.loading import load, plain_native_decoder, tokens_of

__all__ = ["model"]

pytestmark = pytest.mark.usefixtures("traced_only")


def test_on_a_cpu_native_says_what_to_use_instead(model: PreTrainedModel) -> None:
    with pytest.raises(UnsupportedError, match=r"^native needs a CUDA GPU.*; use --engine compile$"):
        plain_native_decoder(model, CpuDevice()).generate(prompt(), 5)


@pytest.mark.slow
def test_bitsandbytes_products_of_one_input_are_made_as_one_and_no_byte_is_kept_twice(model_folder) -> None:
    model = unpacked(load(model_folder, "bnb4", dtype="float32").model)
    linears: list[Any] = [module for module in model.modules() if type(module).__name__ == "Linear4bit"]
    asked = torch.arange(10, 30)[None]
    expected = tokens_of(EagerDecoder(model, CpuDevice()), asked, 32)
    names, size = set(dict(model.named_modules())), weights_size(model)
    runtime = plain_native_decoder(model, CpuDevice(), capture=Rerun())
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
    monkeypatch.setattr("benchmarker.engines.decoders.native.optimize", lambda given: looked.append(given) or ())
    runtime = plain_native_decoder(model, CpuDevice(), capture=Rerun())
    for new_tokens in (3, 3, 5):
        runtime.generate(prompt(), new_tokens)
    assert len(looked) == 1


@pytest.mark.parametrize(
    ("origin", "settings"),
    [("inductor", ON_GPU), ("library", BESIDE_OUR_PRODUCTS), ("benchmarker", BESIDE_OUR_PRODUCTS)],
)
def test_inductor_tunes_step_by_step_only_where_a_product_is_its_own(
    origin: Any, settings: dict[str, Any], model: PreTrainedModel
) -> None:
    on_gpu: Any = CpuDevice()
    on_gpu.kind = "cuda"
    runtime, given = (plain_native_decoder(model, on_gpu, capture=Rerun()) for _ in range(2))
    given.step.settings = {"max_autotune": True}
    runtime.step._replaced = given.step._replaced = (KernelUse(purpose="linear", origin=origin, name="Linear"),)
    assert runtime.step.inductor_settings() == known_settings(settings)
    assert given.step.inductor_settings() == known_settings(settings) | {"max_autotune": True}
    assert plain_native_decoder(model, CpuDevice(), capture=Rerun()).step.inductor_settings() == {}


def test_inductor_tunes_step_by_step_for_the_products_of_experts() -> None:
    on_gpu: Any = CpuDevice()
    on_gpu.kind = "cuda"
    runtime = plain_native_decoder(small_model("qwen3_moe"), on_gpu, capture=Rerun())
    assert runtime.step.inductor_settings() == known_settings(ON_GPU)


class Watched(NativeStep):
    """Records how deep in `tuning` each compilation happens."""

    depth = 0
    depths: tuple[int, ...] = ()

    @contextmanager
    def tuning(self) -> Iterator[None]:
        self.depth += 1
        yield
        self.depth -= 1

    def backend(self, *arguments: Any) -> Any:
        self.depths = (*self.depths, self.depth)
        return super().backend(*arguments)


@pytest.mark.slow
def test_whatever_is_compiled_is_tuned_without_the_host(model: PreTrainedModel) -> None:
    step = Watched(model, CpuDevice(), is_captured=True)
    runtime = StaticCacheDecoder(step, CpuDevice(), capture=Rerun(), captured_prefill=True)
    for tokens in (40, 70):
        runtime.generate(torch.arange(10, 10 + tokens)[None], 75 - tokens)
    assert runtime.facts().prefill == "captured"
    assert len(step.depths) == runtime.facts().frames_compiled >= 4
    assert set(step.depths) == {1}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "qwen3_moe",
            "attention: 8 gemv_dense (own kernel, 16 bit); experts: 2 batched_mm (library, 16 bit); router: 2 "
            "Qwen3MoeTopKRouter (torch's compiler, 16 bit); output layer: 1 Linear (torch's compiler, 16 bit)",
        ),
        (
            "qwen3_5_text",
            "linear attention: 15 Linear (torch's compiler, 16 bit), the recurrence of the library; MLP: 12 Linear "
            "(torch's compiler, 16 bit); attention: 4 gemv_dense (own kernel, 16 bit); output layer: 1 Linear (torch's "
            "compiler, 16 bit)",
        ),
    ],
)
def test_kernels_are_counted_by_kind_of_module(name: str, words: str) -> None:
    model = small_model(name)
    attention = re.compile(r".*self_attn\.._proj")
    kernels = {id(module): "gemv_dense" for path, module in model.named_modules() if attention.fullmatch(path)}
    modules = module_kernels(model, kernels, captured_experts(model, 1))
    assert kinds_words(modules) == words
    runtime = plain_native_decoder(model, CpuDevice(), capture=Rerun())
    runtime.step.prepare(1, 128)
    assert {use.kind for use in runtime.facts().modules} == {use.kind for use in modules}
