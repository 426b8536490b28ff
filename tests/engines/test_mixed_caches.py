"""Static caches of models whose layers differ: sliding windows, attention sinks, recurrent states, experts."""

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


def of_the_library(model: PreTrainedModel, ids: torch.Tensor, new_tokens: int) -> tuple[tuple[int, ...], ...]:
    generate: Any = model.generate
    made = generate(ids, max_new_tokens=new_tokens, do_sample=False, eos_token_id=None, pad_token_id=0)
    return tuple(map(tuple, made[:, ids.shape[1] :].tolist()))


@pytest.mark.parametrize(
    "kind", [*KINDS[:1], *(pytest.param(kind, marks=pytest.mark.slow) for kind in (*KINDS[1:], *MORE_KINDS))]
)
def test_a_captured_step_makes_the_tokens_of_generate_past_the_window_and_at_a_depth(kind: str) -> None:
    model, depth = random_model(kind), torch.arange(300, 320).repeat(2, 1)
    decoder = cuda_graph_decoder(model, CpuDevice(), capture=Rerun())
    expected = of_the_library(model, prompt(), 12)
    assert len(set(expected[0])) > 1
    for _ in range(2):
        assert tuple(decoder.generate(prompt(), 12).tokens) == expected
    deep = of_the_library(model, torch.cat((depth, prompt()), dim=1), 4)
    for _ in range(2):
        assert tuple(decoder.generate(prompt(), 4, context=depth).tokens) == deep


def test_layers_with_states_have_one_index_while_one_compiled_layer_runs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model("qwen3_5_text")
    own = [indices_of(layer) for layer in model.model.layers]
    seen: list[set[int]] = []

    def run(self: Any, function: Callable[..., Any], *arguments: Any) -> Any:
        if function.__name__ == "decode_layer":
            seen.append(indices_of(arguments[0]))
        return function(*arguments)

    monkeypatch.setattr("benchmarker.engines.decoders.compile.CompiledStep.run_compiled", run)
    monkeypatch.setattr("benchmarker.engines.decoders.compile.CompiledStep.check", lambda self: None)
    made = compile_decoder(model, CpuDevice(), capture=Rerun()).generate(prompt(), 4).tokens
    assert made == of_the_library(model, prompt(), 4)
    kinds = model.config.layer_types
    assert seen[: len(own)] == [{0} if kind == "linear_attention" else {n} for n, kind in enumerate(kinds)]
    assert [indices_of(layer) for layer in model.model.layers] == own


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
def test_traced_layers_make_the_tokens_of_generate(kind: str) -> None:
    check_compiled_layers(kind, Rerun())


@pytest.mark.slow
@pytest.mark.by_hand
@pytest.mark.usefixtures("traced_only")
def test_a_traced_step_without_a_graph_makes_the_tokens_of_generate() -> None:
    check_compiled_layers("gpt_oss", None)


@pytest.mark.slow
@pytest.mark.by_hand
@pytest.mark.parametrize("capture", [Rerun(), None])
@pytest.mark.parametrize("kind", KINDS)
def test_compiled_layers_make_the_tokens_of_generate(kind: str, capture: Rerun | None) -> None:
    check_compiled_layers(kind, capture)


def check_compiled_layers(kind: str, capture: Rerun | None) -> None:
    model = random_model(kind)
    expected = of_the_library(model, prompt(), 12)
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
def test_a_graph_groups_many_rows_of_experts_in_bfloat16_alone(dtype: torch.dtype, rows: int, product: str) -> None:
    # Two of eight experts for each row.
    assert captured_experts(small_model("qwen3_moe").to(dtype), rows) == product


@pytest.mark.parametrize(
    ("make", "capture"), [(cuda_graph_decoder, Rerun()), (compile_decoder, Rerun()), (compile_decoder, None)]
)
def test_quantized_experts_are_refused_before_a_step_is_captured_or_compiled(make: Any, capture: Any) -> None:
    model = random_model("qwen3_moe").bfloat16()
    experts = expert_modules(model)[0]
    experts.gate_up_proj = torch.nn.Parameter(experts.gate_up_proj.to(torch.int8), requires_grad=False)
    with pytest.raises(UnsupportedError) as caught:
        make(model, CpuDevice(), capture=capture).generate(prompt(), 3)
    assert str(caught.value) == (
        "quantized experts run one after the other, chosen on the host, which no graph or compiled step repeats; use "
        "--engine eager"
    )


def test_the_record_has_the_product_of_the_experts_that_the_graph_holds() -> None:
    model = random_model("qwen3_moe").bfloat16()
    seen: set[str] = set()
    expert_modules(model)[0].register_forward_hook(lambda module, *_: seen.add(module.config._experts_implementation))
    decoder = cuda_graph_decoder(model, CpuDevice(), capture=Rerun())
    decoder.generate(prompt()[:1], 3)
    assert decoder.facts().experts == decoder.step_facts().experts == "batched_mm"
    assert seen == {"grouped_mm", "batched_mm"}  # The prompt's, and the steps'.
    decoder.generate(prompt().repeat(3, 1), 3)
    assert decoder.facts().experts == "grouped_mm"
    assert EagerDecoder(model, CpuDevice()).facts().experts == "grouped_mm"
    assert EagerDecoder(random_model("llama"), CpuDevice()).facts().experts is None


def test_a_window_keeps_its_newest_positions_and_takes_no_padding() -> None:
    cache = StaticKVCache(random_model("mistral"), batch=1, length=128)
    assert [layer.keys.shape[2] for layer in cache.layers.layers] == [16, 16]
    assert not cache.takes_padding
    short = StaticKVCache(random_model("mistral"), batch=1, length=16)
    assert [type(layer).__name__ for layer in short.layers.layers] == ["StaticKVLayer"] * 2
    assert short.takes_padding


@pytest.mark.slow
@pytest.mark.usefixtures("traced_only")
def test_native_leaves_the_prompt_of_a_window_to_the_library_with_the_reason() -> None:
    model = random_model("mistral")
    expected = of_the_library(model, prompt(), 24)
    decoder = plain_native_decoder(model, CpuDevice(), capture=Rerun(), prefill="captured")
    assert tuple(decoder.generate(prompt(), 24).tokens) == expected
    assert (decoder.facts().prefill, decoder.facts().prefill_reason) == ("plain", KEEPS_PADDING)


def test_eager_refuses_a_depth_in_windows_before_it_fills_them() -> None:
    model = random_model("mistral")
    model.forward = None
    with pytest.raises(UnsupportedError, match="not a DynamicSlidingWindowLayer; leave it out"):
        EagerDecoder(model, CpuDevice()).generate(prompt(), 2, context=torch.ones(2, 20, dtype=torch.int64))


def test_a_view_of_a_layers_states_is_no_reference_cycle() -> None:
    view = StateView(LinearAttentionLayer())
    assert view.layers[7] is view.layer
    freed = weakref.ref(view)
    del view
    assert freed() is None


def test_eager_refuses_a_kind_of_layer_that_the_model_lacks() -> None:
    model = random_model("qwen3_next")
    model.config.layer_types = ["chunked_attention", "full_attention"]
    with pytest.raises(ModelError) as caught:
        EagerDecoder(model, CpuDevice())
    assert str(caught.value) == (
        "transformers cannot make the KV cache of this config: 'Qwen3NextConfig' object has no attribute "
        "'attention_chunk_size'"
    )


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("falcon_h1", "attention and a recurrent state in one layer has no static cache here; use --engine eager"),
        ("chunks", "chunked attention has no static cache here; use --engine eager"),
    ],
)
def test_a_kind_of_layer_without_a_static_cache_is_named(kind: str, said: str) -> None:
    model = random_model("llama" if kind == "chunks" else kind)
    if kind == "chunks":
        model.config.layer_types = ["chunked_attention"] * 2
    with pytest.raises(UnsupportedError) as caught:
        cuda_graph_decoder(model, CpuDevice(), capture=Rerun()).generate(prompt(), 5)
    assert str(caught.value) == said
