"""A captured prefill on a CPU, where a replay runs the step again: padded, chunked and at a depth as without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from benchmarker.core.errors import SpecError
from benchmarker.engines.base import UnsupportedError
from benchmarker.engines.decoders import prefill_decode
from benchmarker.engines.decoders.eager import EagerDecoder
from benchmarker.engines.decoders.graph_capture import Capture, Captured
from benchmarker.engines.decoders.native import native_decoder
from benchmarker.engines.decoders.prefill_decode import LibraryStep, chunks, padded
from benchmarker.engines.decoders.static_decoder import StaticCacheDecoder, cuda_graph_decoder
from benchmarker.engines.generator import Generator
from benchmarker.engines.registry import ENGINES, torch_engine
from benchmarker.hardware.device import CpuDevice, Device
from benchmarker.workloads.generation.generation_job import engine_options
from tests.engines.test_engines_graph import Rerun, context, model
from tests.jobs import read_job
from tests.loading import plain_native_decoder

__all__ = ["model"]


def captured_decoder(model: PreTrainedModel, device: Device, *, capture: Capture) -> StaticCacheDecoder:
    """Both steps as the model has them, captured."""
    return StaticCacheDecoder(LibraryStep(model), device, capture=capture, captured_prefill=True)


def prompt(*, batch: int = 1, tokens: int = 7) -> torch.Tensor:
    """Rows that differ from each other."""
    return (torch.arange(tokens) * 5 + torch.arange(batch)[:, None] * 11 + 3).remainder(128)


def cached(decoder: Any, tokens: int) -> torch.Tensor:
    """Keys and values of all layers up to a position."""
    layers = decoder.shape.cache.layers.layers
    return torch.stack([part[:, :, :tokens] for layer in layers for part in (layer.keys, layer.values)])


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("tokens", [1, 26, 31, 32, 33, 64, 300])
def test_a_padded_prompt_gives_the_tokens_and_the_cache_of_the_models_own_prefill(
    model: PreTrainedModel, tokens: int, batch: int
) -> None:
    asked = prompt(batch=batch, tokens=tokens)
    plain, captured = (kind(model, CpuDevice(), capture=Rerun()) for kind in (cuda_graph_decoder, captured_decoder))
    for _ in range(2):
        expected = plain.generate(asked, 8).tokens
        assert captured.generate(asked, 8).tokens == expected
    assert EagerDecoder(model, CpuDevice()).generate(asked, 8).tokens == expected
    assert torch.allclose(cached(captured, tokens + 7), cached(plain, tokens + 7), atol=1e-4)
    assert captured.facts().prefill == "captured"
    assert plain.facts().prefill is None


@pytest.mark.parametrize("depth", [1, 33, 200])
@pytest.mark.parametrize("tokens", [1, 33])
def test_a_padded_prompt_behind_a_depth_gives_the_tokens_of_a_prompt_that_is_longer_by_it(
    model: PreTrainedModel, depth: int, tokens: int
) -> None:
    before, asked = context(depth, batch=3), prompt(batch=3, tokens=tokens)
    expected = EagerDecoder(model, CpuDevice()).generate(torch.cat([before, asked], dim=1), 8).tokens
    decoder = captured_decoder(model, CpuDevice(), capture=Rerun())
    for _ in range(3):
        assert decoder.generate(asked, 8, context=before).tokens == expected
    # Another prompt length records a graph over the depth, which has to be put there again.
    longer = prompt(batch=3, tokens=tokens + 32)
    expected = EagerDecoder(model, CpuDevice()).generate(torch.cat([before, longer], dim=1), 8).tokens
    assert decoder.generate(longer, 8, context=before).tokens == expected


@pytest.mark.parametrize("tokens", [63, 64, 65, 96, 150])
def test_a_long_prompt_goes_in_chunks_each_behind_the_last(
    model: PreTrainedModel, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefill_decode, "LONGEST_CHUNK", 64)
    asked = prompt(batch=2, tokens=tokens)
    expected = EagerDecoder(model, CpuDevice()).generate(asked, 8, context=context(40)).tokens
    decoder = captured_decoder(model, CpuDevice(), capture=Rerun())
    before = context(40)
    for _ in range(2):
        assert decoder.generate(asked, 8, context=before).tokens == expected


def test_chunks_hold_every_token_once_and_no_more_rows_than_memory_allows() -> None:
    for batch in (1, 3, 128, 1000):
        for tokens in (1, 26, 32, 33, 257, 1025, 4096, 4097, 10_000):
            parts = list(chunks(tokens, batch))
            assert sum(count for count, _ in parts) == tokens
            assert all(count <= length <= padded(count) for count, length in parts)
            assert all(length * batch <= 16_384 or length == 32 for _, length in parts)
    assert list(chunks(4100, 1)) == [(4096, 4096), (4, 32)]
    assert [padded(tokens) for tokens in (1, 32, 33, 257, 1025)] == [32, 32, 64, 320, 1152]


def test_a_timed_prefill_is_one_replay_and_its_memory_counts(model: PreTrainedModel) -> None:
    seen: list[int] = []
    capture = Rerun()
    decoder = captured_decoder(model, CpuDevice(), capture=capture)
    decoder.generate(prompt(tokens=26), 3)
    model.model.embed_tokens.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0].shape[1]))
    with decoder.timed():
        decoder.generate(prompt(tokens=26), 3)
    assert seen == [32, 1, 1]
    # A step's graph and a prefill's.
    assert capture.captures == 2
    assert decoder.graph_pool_bytes == 2 * 4096
    assert decoder.facts().graphs_captured == 1
    decoder.generate(prompt(tokens=27), 3)
    assert capture.captures == 2


class RefusesPrompts(Rerun):
    """Captures one step, and nothing after it."""

    def __call__(self, step: Callable[[], None]) -> Captured:
        if self.captures:
            raise UnsupportedError("linear.py:3 `x.item()`: not permitted when stream is capturing")
        return super().__call__(step)


def test_a_prefill_that_cannot_be_captured_is_the_models_own_and_says_why(model: PreTrainedModel) -> None:
    decoder = captured_decoder(model, CpuDevice(), capture=RefusesPrompts())
    before, asked = context(40), prompt(batch=2)
    expected = EagerDecoder(model, CpuDevice()).generate(asked, 8, context=before).tokens
    for _ in range(2):
        assert decoder.generate(asked, 8, context=before).tokens == expected
    facts = decoder.facts()
    assert facts.prefill == "plain"
    assert facts.prefill_reason == "linear.py:3 `x.item()`: not permitted when stream is capturing"


def test_a_model_that_attends_in_a_way_of_its_own_is_not_captured(model: PreTrainedModel) -> None:
    decoder = captured_decoder(model, CpuDevice(), capture=Rerun())
    for layer in model.model.layers:
        own = layer.self_attn.forward

        def forward(*arguments: Any, own: Any = own, **named: Any) -> Any:
            many = arguments[0] if arguments else named["hidden_states"]
            return own(*arguments, **named, **({"head_mask": 1} if many.shape[1] > 1 else {}))

        layer.self_attn.forward = forward
    decoder.generate(prompt(), 3)
    assert decoder.facts().prefill == "plain"
    assert "attends with head_mask" in str(decoder.facts().prefill_reason)


def test_a_text_is_scored_and_streamed_through_the_captured_prefill(model: PreTrainedModel) -> None:
    ids = prompt(tokens=50)
    with torch.no_grad():
        expected = model(ids).logits[0].log_softmax(-1)
    decoder = captured_decoder(model, CpuDevice(), capture=Rerun())
    assert torch.allclose(decoder.log_probabilities(ids), expected, atol=1e-4)
    for tokens in (5, 40, 50):
        made = [token for piece in decoder.stream(ids[:, :tokens], 12, frozenset()) for token in piece]
        assert made == list(EagerDecoder(model, CpuDevice()).generate(ids[:, :tokens], 12).tokens[0])
    shape: Any = decoder.shape
    assert sorted(shape.prefills) == [32, 64]


@pytest.mark.slow
@pytest.mark.by_hand
def test_one_compiled_layer_takes_prompts_of_every_length(model: PreTrainedModel) -> None:
    decoder = native_decoder(model, CpuDevice(), capture=Rerun())
    before = context(50, batch=1)
    for tokens in (7, 40, 70, 100, 128):
        asked = prompt(tokens=tokens)
        expected = EagerDecoder(model, CpuDevice()).generate(asked, 150 - tokens, context=before).tokens
        decoder.generate(asked, 150 - tokens, context=before)
        with decoder.timed():
            assert decoder.generate(asked, 150 - tokens, context=before).tokens == expected
        assert decoder.facts().prefill_reason is None
    # A layer and the head of the step, a layer for the first prompt, and one for prompts of any length.
    assert decoder.facts().frames_compiled == 4


@pytest.mark.slow
@pytest.mark.by_hand
@pytest.mark.parametrize("kind", ["phi3", "nanochat", "cohere", "llama"])
def test_models_that_are_built_otherwise_make_the_tokens_of_generate(kind: str) -> None:
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        kind, vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, initializer_range=0.2, pad_token_id=0, mlp_bias=True, attention_bias=True,
    )  # fmt: skip
    tried = AutoModelForCausalLM.from_config(config).eval()
    asked = prompt(batch=2, tokens=20)
    expected = EagerDecoder(tried, CpuDevice()).generate(asked, 32).tokens
    for runtime in captured_decoder, native_decoder:
        decoder: Any = runtime(tried, CpuDevice(), capture=Rerun())
        assert decoder.generate(asked, 32).tokens == expected
        assert decoder.facts().prefill == "captured"


@pytest.mark.parametrize(("words", "prefill"), [([], "plain"), (["--engine-option", "prefill=plain"], None)])
def test_native_captures_its_prefill_unless_the_option_says_plain(
    model: PreTrainedModel, words: list[str], prefill: str | None
) -> None:
    options = engine_options(read_job(["--quant", "fp16", "--engine", "native", *words]).variant)
    native = torch_engine("native")
    # Nothing is captured before the first generation.
    assert native.decoder(model, CpuDevice(), **options.model_dump()).facts().prefill == prefill
    assert native.decoder(model, CpuDevice()).facts().prefill == "plain"


def test_engines_without_options_take_none_and_native_only_its_own(model: PreTrainedModel) -> None:
    with pytest.raises(SpecError, match=r"^--engine-option: prefill: .*'plain' or 'captured'"):
        read_job(["--quant", "fp16", "--engine", "native", "--engine-option", "prefill=fast"])
    with pytest.raises(SpecError, match="engine_options: no key 'prefill'"):
        Generator(model, engine="compile", engine_options={"prefill": "captured"})
    assert [name for name in ("cuda_graph", "compile") if ENGINES[name].options.model_fields] == []


@pytest.mark.slow
@pytest.mark.usefixtures("traced_only")
def test_a_plain_native_prefill_is_the_models_own(model: PreTrainedModel) -> None:
    seen: list[int] = []
    decoder = plain_native_decoder(model, CpuDevice(), capture=Rerun())
    decoder.generate(prompt(tokens=26), 3)
    model.model.embed_tokens.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0].shape[1]))
    decoder.generate(prompt(tokens=26), 3)
    assert seen == [26, 1, 1]
    assert decoder.facts().prefill is None
    assert decoder.facts().frames_compiled == 2
