"""Test static caches of models with sliding windows, attention sinks, recurrent states and experts."""

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel
from transformers.cache_utils import LinearAttentionLayer

from benchmarker.core.errors import ModelError
from benchmarker.engines.base import UnsupportedError
from benchmarker.engines.decoders.compile import compile_decoder
from benchmarker.engines.decoders.eager import EagerDecoder
from benchmarker.engines.decoders.prefill_decode import KEEPS_PADDING, captured_experts
from benchmarker.engines.decoders.static_cache_layers import StateView
from benchmarker.engines.decoders.static_decoder import cuda_graph_decoder
from benchmarker.engines.decoders.static_kv_cache import StaticKVCache
from benchmarker.engines.decoders.torch_engine import expert_modules
from benchmarker.hardware.device import CpuDevice
from tests.architectures import small_model
from tests.engines.test_engines_graph import Rerun
from tests.loading import plain_native_decoder, with_uneven_norms

KINDS = ("gemma3_text", "gpt_oss", "qwen3_moe", "qwen3_5_text", "gemma4_text", "qwen3_next", "phi3", "llama", "gpt2")
MORE_KINDS = ("gemma2", "gemma4_text MoE", "mistral", "granitemoehybrid", "lfm2", "nemotron_h", "deepseek_v2", "olmo3")


def random_model(name: str) -> PreTrainedModel:
    model = with_uneven_norms(small_model(name, initializer_range=0.2, tie_word_embeddings=False).float())
    if any(module.endswith("experts") for module, _ in model.named_modules()):
        model.set_experts_implementation("grouped_mm")
    return model


def prompt() -> torch.Tensor:
    return torch.stack([torch.arange(2, 13), torch.arange(42, 53)])


def library_tokens(model: PreTrainedModel, ids: torch.Tensor, new_tokens: int) -> tuple[tuple[int, ...], ...]:
    generate: Any = model.generate
    output = generate(ids, max_new_tokens=new_tokens, do_sample=False, eos_token_id=None, pad_token_id=0)
    return tuple(map(tuple, output[:, ids.shape[1] :].tolist()))


@pytest.mark.parametrize(
    "kind", [*KINDS[:1], *(pytest.param(kind, marks=pytest.mark.slow) for kind in (*KINDS[1:], *MORE_KINDS))]
)
def test_captured_step_matches_generate_past_the_window_and_at_depth(kind: str) -> None:
    model, depth = random_model(kind), torch.arange(300, 320).repeat(2, 1)
    decoder = cuda_graph_decoder(model, CpuDevice(), capture=Rerun())
    expected = library_tokens(model, prompt(), 12)
    assert len(set(expected[0])) > 1
    for _ in range(2):
        assert tuple(decoder.generate(prompt(), 12).tokens) == expected
    expected_at_depth = library_tokens(model, torch.cat((depth, prompt()), dim=1), 4)
    for _ in range(2):
        assert tuple(decoder.generate(prompt(), 4, context=depth).tokens) == expected_at_depth


def test_recurrent_layers_share_one_index_while_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model("qwen3_5_text")
    original = [indices_of(layer) for layer in model.model.layers]
    indices: list[set[int]] = []

    def run(self: Any, function: Callable[..., Any], *arguments: Any) -> Any:
        if function.__name__ == "decode_layer":
            indices.append(indices_of(arguments[0]))
        return function(*arguments)

    monkeypatch.setattr("benchmarker.engines.decoders.compile.CompiledStep.run_compiled", run)
    monkeypatch.setattr("benchmarker.engines.decoders.compile.CompiledStep.check", lambda self: None)
    tokens = compile_decoder(model, CpuDevice(), capture=Rerun()).generate(prompt(), 4).tokens
    assert tokens == library_tokens(model, prompt(), 4)
    kinds = model.config.layer_types
    assert indices[: len(original)] == [{0} if kind == "linear_attention" else {n} for n, kind in enumerate(kinds)]
    assert [indices_of(layer) for layer in model.model.layers] == original


def indices_of(layer: torch.nn.Module) -> set[int]:
    return {module.layer_idx for module in layer.modules() if hasattr(module, "layer_idx")}


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    # gpt_oss has windows, as gemma3_text, and experts, as qwen3_moe.
    [
        "gpt_oss",
        "qwen3_5_text",
        *(pytest.param(kind, marks=pytest.mark.by_hand) for kind in ("gemma3_text", "qwen3_moe")),
    ],
)
@pytest.mark.usefixtures("traced_only")
def test_traced_layers_match_generate(kind: str) -> None:
    check_compiled_layers(kind, Rerun())


@pytest.mark.slow
@pytest.mark.by_hand
@pytest.mark.usefixtures("traced_only")
def test_traced_step_without_a_graph_matches_generate() -> None:
    check_compiled_layers("gpt_oss", None)


@pytest.mark.slow
@pytest.mark.by_hand
@pytest.mark.parametrize("capture", [Rerun(), None])
@pytest.mark.parametrize("kind", KINDS)
def test_compiled_layers_match_generate(kind: str, capture: Rerun | None) -> None:
    check_compiled_layers(kind, capture)


def check_compiled_layers(kind: str, capture: Rerun | None) -> None:
    model = random_model(kind)
    expected = library_tokens(model, prompt(), 12)
    decoder = compile_decoder(model, CpuDevice(), capture=capture)
    decoder.generate(prompt(), 12)
    with decoder.timed():
        assert tuple(decoder.generate(prompt(), 12).tokens) == expected


@pytest.mark.parametrize(
    ("dtype", "rows", "product"),
    [
        (torch.bfloat16, 1, "batched_mm"),
        (torch.bfloat16, 4, "batched_mm"),
        (torch.bfloat16, 5, "grouped_mm"),
        (torch.float16, 5, "batched_mm"),
    ],
)
def test_captured_experts_use_grouped_mm_for_large_batches(dtype: torch.dtype, rows: int, product: str) -> None:
    # Each row is routed to two of eight experts.
    assert captured_experts(small_model("qwen3_moe").to(dtype), rows) == product


@pytest.mark.parametrize(
    ("make", "capture"), [(cuda_graph_decoder, Rerun()), (compile_decoder, Rerun()), (compile_decoder, None)]
)
def test_quantized_experts_are_refused_before_capture_or_compilation(make: Any, capture: Any) -> None:
    model = random_model("qwen3_moe").bfloat16()
    experts = expert_modules(model)[0]
    experts.gate_up_proj = torch.nn.Parameter(experts.gate_up_proj.to(torch.int8), requires_grad=False)
    with pytest.raises(UnsupportedError) as caught:
        make(model, CpuDevice(), capture=capture).generate(prompt(), 3)
    assert str(caught.value) == (
        "quantized experts run one after the other, chosen on the host, which no graph or compiled step repeats; use "
        "--engine eager"
    )


def test_facts_name_the_captured_expert_implementation() -> None:
    model = random_model("qwen3_moe").bfloat16()
    seen: set[str] = set()
    expert_modules(model)[0].register_forward_hook(lambda module, *_: seen.add(module.config._experts_implementation))
    decoder = cuda_graph_decoder(model, CpuDevice(), capture=Rerun())
    decoder.generate(prompt()[:1], 3)
    assert decoder.facts().experts == decoder.step_facts().experts == "batched_mm"
    assert seen == {"grouped_mm", "batched_mm"}  # Of the prefill and of the decode steps.
    decoder.generate(prompt().repeat(3, 1), 3)
    assert decoder.facts().experts == "grouped_mm"
    assert EagerDecoder(model, CpuDevice()).facts().experts == "grouped_mm"
    assert EagerDecoder(random_model("llama"), CpuDevice()).facts().experts is None


def test_sliding_window_layers_have_window_length_and_no_padding() -> None:
    cache = StaticKVCache(random_model("mistral"), batch=1, length=128)
    assert [layer.keys.shape[2] for layer in cache.layers.layers] == [16, 16]
    assert not cache.takes_padding
    short = StaticKVCache(random_model("mistral"), batch=1, length=16)
    assert [type(layer).__name__ for layer in short.layers.layers] == ["StaticKVLayer"] * 2
    assert short.takes_padding


@pytest.mark.slow
@pytest.mark.usefixtures("traced_only")
def test_native_prefills_sliding_windows_with_the_library_and_a_reason() -> None:
    model = random_model("mistral")
    expected = library_tokens(model, prompt(), 24)
    decoder = plain_native_decoder(model, CpuDevice(), capture=Rerun(), prefill="captured")
    assert tuple(decoder.generate(prompt(), 24).tokens) == expected
    assert (decoder.facts().prefill, decoder.facts().prefill_reason) == ("plain", KEEPS_PADDING)


def test_eager_refuses_a_depth_in_sliding_windows_before_prefill() -> None:
    model = random_model("mistral")
    model.forward = None
    with pytest.raises(UnsupportedError, match="not a DynamicSlidingWindowLayer; leave it out"):
        EagerDecoder(model, CpuDevice()).generate(prompt(), 2, context=torch.ones(2, 20, dtype=torch.int64))


def test_state_view_has_no_reference_cycle() -> None:
    view = StateView(LinearAttentionLayer())
    assert view.layers[7] is view.layer
    freed = weakref.ref(view)
    del view
    assert freed() is None


def test_eager_refuses_a_layer_type_without_its_config() -> None:
    model = random_model("qwen3_next")
    model.config.layer_types = ["chunked_attention", "full_attention"]
    with pytest.raises(ModelError) as caught:
        EagerDecoder(model, CpuDevice())
    assert str(caught.value) == (
        "transformers cannot make the KV cache of this config: 'Qwen3NextConfig' object has no attribute "
        "'attention_chunk_size'"
    )


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("falcon_h1", "attention and a recurrent state in one layer has no static cache here; use --engine eager"),
        ("chunks", "chunked attention has no static cache here; use --engine eager"),
    ],
)
def test_layer_types_without_a_static_cache_are_refused(kind: str, message: str) -> None:
    model = random_model("llama" if kind == "chunks" else kind)
    if kind == "chunks":
        model.config.layer_types = ["chunked_attention"] * 2
    with pytest.raises(UnsupportedError) as caught:
        cuda_graph_decoder(model, CpuDevice(), capture=Rerun()).generate(prompt(), 5)
    assert str(caught.value) == message
