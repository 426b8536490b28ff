"""Test the replaced kernels and the tokens of the native engine on a CPU, with a capture that reruns the step."""

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


def test_native_on_a_cpu_raises_with_an_alternative(model: PreTrainedModel) -> None:
    with pytest.raises(UnsupportedError, match=r"^native needs a CUDA GPU.*; use --engine compile$"):
        plain_native_decoder(model, CpuDevice()).generate(prompt(), 5)


@pytest.mark.slow
def test_bitsandbytes_linears_of_one_input_are_fused_without_copies(model_folder) -> None:
    model = unpacked(load(model_folder, "bnb4", dtype="float32").model)
    linears: list[Any] = [module for module in model.modules() if type(module).__name__ == "Linear4bit"]
    prompt_ids = torch.arange(10, 30)[None]
    expected = tokens_of(EagerDecoder(model, CpuDevice()), prompt_ids, 32)
    names, size = set(dict(model.named_modules())), weights_size(model)
    runtime = plain_native_decoder(model, CpuDevice(), capture=Rerun())
    assert tokens_of(runtime, prompt_ids, 32) == expected
    assert [use.purpose for use in runtime.facts().kernels_used if use.origin == "benchmarker"] == ["joined_linears"]
    fused = [
        linear.fused_slice.fused.linear
        for linear in linears
        if hasattr(linear, "fused_slice") and linear.fused_slice.start == 0
    ]
    attention, mlp = fused[:2]
    assert len(fused) == 4
    assert (attention.out_features, mlp.out_features) == (128 + 2 * 64, 2 * 256)
    assert len(fuse_linears(model)) == 10
    assert (set(dict(model.named_modules())), weights_size(model)) == (names, size)
    assert linears[1].weight.untyped_storage().data_ptr() == attention.weight.untyped_storage().data_ptr()
    # A prompt of several tokens calls each linear separately with its own weights.
    assert tokens_of(EagerDecoder(model, CpuDevice()), prompt_ids, 32) == expected


@pytest.mark.slow
def test_a_model_is_optimized_once(model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    optimized: list[PreTrainedModel] = []
    monkeypatch.setattr("benchmarker.engines.decoders.native.optimize", lambda model: optimized.append(model) or ())
    runtime = plain_native_decoder(model, CpuDevice(), capture=Rerun())
    for new_tokens in (3, 3, 5):
        runtime.generate(prompt(), new_tokens)
    assert len(optimized) == 1


@pytest.mark.parametrize(
    ("origin", "settings"),
    [("inductor", ON_GPU), ("library", BESIDE_OUR_PRODUCTS), ("benchmarker", BESIDE_OUR_PRODUCTS)],
)
def test_inductor_settings_depend_on_the_origin_of_the_linears(
    origin: Any, settings: dict[str, Any], model: PreTrainedModel
) -> None:
    on_gpu: Any = CpuDevice()
    on_gpu.kind = "cuda"
    runtime = plain_native_decoder(model, on_gpu, capture=Rerun())
    runtime.step._replaced = (KernelUse(purpose="linear", origin=origin, name="Linear"),)
    assert runtime.step.inductor_settings() == known_settings(settings)
    assert plain_native_decoder(model, CpuDevice(), capture=Rerun()).step.inductor_settings() == {}


def test_models_with_experts_use_the_gpu_inductor_settings() -> None:
    on_gpu: Any = CpuDevice()
    on_gpu.kind = "cuda"
    runtime = plain_native_decoder(small_model("qwen3_moe"), on_gpu, capture=Rerun())
    assert runtime.step.inductor_settings() == known_settings(ON_GPU)


class RecordingStep(NativeStep):
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
def test_every_compilation_runs_inside_the_tuning_context(model: PreTrainedModel) -> None:
    step = RecordingStep(model, CpuDevice(), is_captured=True)
    runtime = StaticCacheDecoder(step, CpuDevice(), capture=Rerun(), captured_prefill=True)
    for tokens in (40, 70):
        runtime.generate(torch.arange(10, 10 + tokens)[None], 75 - tokens)
    assert runtime.facts().prefill == "captured"
    assert len(step.depths) == runtime.facts().frames_compiled >= 4
    assert set(step.depths) == {1}


@pytest.mark.parametrize(
    ("name", "line"),
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
def test_kernels_are_counted_by_kind_of_module(name: str, line: str) -> None:
    model = small_model(name)
    attention = re.compile(r".*self_attn\.._proj")
    kernels = {id(module): "gemv_dense" for path, module in model.named_modules() if attention.fullmatch(path)}
    modules = module_kernels(model, kernels, captured_experts(model, 1))
    assert kinds_words(modules) == line
    runtime = plain_native_decoder(model, CpuDevice(), capture=Rerun())
    runtime.step.prepare(1, 128)
    assert {use.kind for use in runtime.facts().modules} == {use.kind for use in modules}
