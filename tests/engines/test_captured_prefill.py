"""Test the captured prefill (padding, chunks, depth) on a CPU with a capture that reruns the step at each replay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from benchmarker.core.errors import SpecError
from benchmarker.engines.base import UnsupportedError
from benchmarker.engines.decoders import prefill_decode, static_kv_cache
from benchmarker.engines.decoders.eager import EagerDecoder
from benchmarker.engines.decoders.graph_capture import Capture, Captured
from benchmarker.engines.decoders.native import native_decoder
from benchmarker.engines.decoders.prefill_decode import LibraryStep, chunks, padded, whole_prompts
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
    """Return a decoder that captures the library's prefill and decode steps."""
    return StaticCacheDecoder(LibraryStep(model), device, capture=capture, captured_prefill=True)


def prompt(*, batch: int = 1, tokens: int = 7) -> torch.Tensor:
    """Return token ids, [batch, tokens], with different rows."""
    return (torch.arange(tokens) * 5 + torch.arange(batch)[:, None] * 11 + 3).remainder(128)


def cached(decoder: Any, tokens: int) -> torch.Tensor:
    """Return the keys and values of all layers for the first `tokens` positions."""
    layers = decoder.shape.cache.layers.layers
    return torch.stack([states[:, :, :tokens] for layer in layers for states in (layer.keys, layer.values)])


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("tokens", [1, 26, 31, 32, 33, 64, 300])
def test_padded_prefill_matches_tokens_and_cache_of_the_model(model: PreTrainedModel, tokens: int, batch: int) -> None:
    prompt_ids = prompt(batch=batch, tokens=tokens)
    uncaptured, captured = (
        kind(model, CpuDevice(), capture=Rerun()) for kind in (cuda_graph_decoder, captured_decoder)
    )
    for _ in range(2):
        expected = uncaptured.generate(prompt_ids, 8).tokens
        assert captured.generate(prompt_ids, 8).tokens == expected
    assert EagerDecoder(model, CpuDevice()).generate(prompt_ids, 8).tokens == expected
    assert torch.allclose(cached(captured, tokens + 7), cached(uncaptured, tokens + 7), atol=1e-4)
    assert captured.facts().prefill == "captured"
    assert uncaptured.facts().prefill is None


@pytest.mark.parametrize("depth", [1, 33, 200])
@pytest.mark.parametrize("tokens", [1, 33])
def test_padded_prefill_at_a_depth_matches_the_concatenated_prompt(
    model: PreTrainedModel, depth: int, tokens: int
) -> None:
    prefix, prompt_ids = context(depth, batch=3), prompt(batch=3, tokens=tokens)
    expected = EagerDecoder(model, CpuDevice()).generate(torch.cat([prefix, prompt_ids], dim=1), 8).tokens
    decoder = captured_decoder(model, CpuDevice(), capture=Rerun())
    for _ in range(3):
        assert decoder.generate(prompt_ids, 8, context=prefix).tokens == expected
    # Capturing a graph for a new prompt length overwrites the prefix, which is prefilled again.
    longer = prompt(batch=3, tokens=tokens + 32)
    expected = EagerDecoder(model, CpuDevice()).generate(torch.cat([prefix, longer], dim=1), 8).tokens
    assert decoder.generate(longer, 8, context=prefix).tokens == expected


@pytest.mark.parametrize("tokens", [63, 64, 65, 96, 150])
def test_chunked_prefill_matches_the_tokens_of_eager(
    model: PreTrainedModel, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefill_decode, "LONGEST_CHUNK", 64)
    prompt_ids = prompt(batch=2, tokens=tokens)
    expected = EagerDecoder(model, CpuDevice()).generate(prompt_ids, 8, context=context(40)).tokens
    decoder = captured_decoder(model, CpuDevice(), capture=Rerun())
    prefix = context(40)
    for _ in range(2):
        assert decoder.generate(prompt_ids, 8, context=prefix).tokens == expected


@pytest.mark.parametrize(("tokens", "sequences"), [(20, 4), (33, 2), (64, 2), (65, 1)])
def test_whole_prompts_of_a_batch_match_tokens_and_cache_of_the_model(
    model: PreTrainedModel, tokens: int, sequences: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefill_decode, "MOST_ROWS", 128)
    prompt_ids = prompt(batch=7, tokens=tokens)
    assert whole_prompts(tokens, 7) == sequences
    uncaptured, captured = (
        kind(model, CpuDevice(), capture=Rerun()) for kind in (cuda_graph_decoder, captured_decoder)
    )
    for _ in range(2):
        expected = uncaptured.generate(prompt_ids, 8).tokens
        assert captured.generate(prompt_ids, 8).tokens == expected
    assert torch.allclose(cached(captured, tokens + 7), cached(uncaptured, tokens + 7), atol=1e-4)
    (graph,) = captured.shape.prefills
    assert graph == (padded(tokens), True, sequences)
    # With a context the prompt does not start at position 0.
    prefix = context(40, batch=7)
    expected = EagerDecoder(model, CpuDevice()).generate(torch.cat([prefix, prompt_ids], dim=1), 8).tokens
    assert captured.generate(prompt_ids, 8, context=prefix).tokens == expected


def test_chunks_cover_the_prompt_within_the_token_limit() -> None:
    for batch in (1, 3, 128, 1000):
        for tokens in (1, 26, 32, 33, 257, 1025, 4096, 4097, 10_000):
            pieces = list(chunks(tokens, batch))
            assert sum(count for count, _ in pieces) == tokens
            assert all(count <= length <= padded(count) for count, length in pieces)
            assert all(length * batch <= 16_384 or length == 32 for _, length in pieces)
    assert list(chunks(4100, 1)) == [(4096, 4096), (4, 32)]
    assert [padded(tokens) for tokens in (1, 32, 33, 257, 1025)] == [32, 32, 64, 320, 1152]


def test_timed_prefill_is_one_replay_and_counts_its_graph_memory(model: PreTrainedModel) -> None:
    lengths: list[int] = []
    capture = Rerun()
    decoder = captured_decoder(model, CpuDevice(), capture=capture)
    decoder.generate(prompt(tokens=26), 3)
    model.model.embed_tokens.register_forward_hook(lambda module, inputs, output: lengths.append(inputs[0].shape[1]))
    with decoder.timed():
        decoder.generate(prompt(tokens=26), 3)
    assert lengths == [32, 1, 1]
    # One graph of the decode step and one of the prefill.
    assert capture.captures == 2
    assert decoder.graph_pool_bytes == 2 * 4096
    assert decoder.facts().graphs_captured == 1
    decoder.generate(prompt(tokens=27), 3)
    assert capture.captures == 2


class RefusesPrompts(Rerun):
    """Capture that fails after the first step."""

    def __call__(self, step: Callable[[], None]) -> Captured:
        if self.captures:
            raise UnsupportedError("linear.py:3 `x.item()`: not permitted when stream is capturing")
        return super().__call__(step)


def test_failed_prefill_capture_falls_back_to_the_model_with_a_reason(model: PreTrainedModel) -> None:
    decoder = captured_decoder(model, CpuDevice(), capture=RefusesPrompts())
    prefix, prompt_ids = context(40), prompt(batch=2)
    expected = EagerDecoder(model, CpuDevice()).generate(prompt_ids, 8, context=prefix).tokens
    for _ in range(2):
        assert decoder.generate(prompt_ids, 8, context=prefix).tokens == expected
    facts = decoder.facts()
    assert facts.prefill == "plain"
    assert facts.prefill_reason == "linear.py:3 `x.item()`: not permitted when stream is capturing"


def test_unsupported_attention_arguments_prevent_prefill_capture(model: PreTrainedModel) -> None:
    decoder = captured_decoder(model, CpuDevice(), capture=Rerun())
    for layer in model.model.layers:
        library_forward = layer.self_attn.forward

        def forward(*arguments: Any, library_forward: Any = library_forward, **keywords: Any) -> Any:
            hidden = arguments[0] if arguments else keywords["hidden_states"]
            return library_forward(*arguments, **keywords, **({"head_mask": 1} if hidden.shape[1] > 1 else {}))

        layer.self_attn.forward = forward
    decoder.generate(prompt(), 3)
    assert decoder.facts().prefill == "plain"
    assert "attends with head_mask" in str(decoder.facts().prefill_reason)


def test_scoring_and_streaming_use_the_captured_prefill(model: PreTrainedModel) -> None:
    ids = prompt(tokens=50)
    with torch.no_grad():
        expected = model(ids).logits[0].log_softmax(-1)
    decoder = captured_decoder(model, CpuDevice(), capture=Rerun())
    assert torch.allclose(decoder.log_probabilities(ids), expected, atol=1e-4)
    for tokens in (5, 40, 50):
        streamed = [token for piece in decoder.stream(ids[:, :tokens], 12, frozenset()) for token in piece]
        assert streamed == list(EagerDecoder(model, CpuDevice()).generate(ids[:, :tokens], 12).tokens[0])
    shape: Any = decoder.shape
    assert sorted(shape.prefills) == [(32, True, 1), (64, True, 1)]


@pytest.mark.slow
@pytest.mark.by_hand
def test_one_compiled_layer_handles_every_prompt_length(model: PreTrainedModel) -> None:
    decoder = native_decoder(model, CpuDevice(), capture=Rerun())
    prefix = context(50, batch=1)
    for tokens in (7, 40, 70, 100, 128):
        prompt_ids = prompt(tokens=tokens)
        expected = EagerDecoder(model, CpuDevice()).generate(prompt_ids, 150 - tokens, context=prefix).tokens
        decoder.generate(prompt_ids, 150 - tokens, context=prefix)
        with decoder.timed():
            assert decoder.generate(prompt_ids, 150 - tokens, context=prefix).tokens == expected
        assert decoder.facts().prefill_reason is None
    # Decode layer and head, prefill layer of the first prompt length, and prefill layer with a dynamic length.
    assert decoder.facts().frames_compiled == 4


@pytest.mark.slow
@pytest.mark.by_hand
@pytest.mark.parametrize("kind", ["phi3", "nanochat", "cohere", "llama"])
def test_captured_prefill_of_other_architectures_matches_generate(kind: str) -> None:
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        kind, vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, initializer_range=0.2, pad_token_id=0, mlp_bias=True, attention_bias=True,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config).eval()
    prompt_ids = prompt(batch=2, tokens=20)
    expected = EagerDecoder(model, CpuDevice()).generate(prompt_ids, 32).tokens
    for runtime in captured_decoder, native_decoder:
        decoder: Any = runtime(model, CpuDevice(), capture=Rerun())
        assert decoder.generate(prompt_ids, 32).tokens == expected
        assert decoder.facts().prefill == "captured"


@pytest.mark.parametrize(("arguments", "prefill"), [([], "plain"), (["--engine-option", "prefill=plain"], None)])
def test_native_captures_its_prefill_unless_disabled_by_option(
    model: PreTrainedModel, arguments: list[str], prefill: str | None
) -> None:
    options = engine_options(read_job(["--quant", "fp16", "--engine", "native", *arguments]).variant)
    native = torch_engine("native")
    # Nothing is captured before the first generation.
    assert native.decoder(model, CpuDevice(), **options.model_dump()).facts().prefill == prefill
    assert native.decoder(model, CpuDevice()).facts().prefill == "plain"


def test_unknown_engine_options_are_refused(model: PreTrainedModel) -> None:
    with pytest.raises(SpecError, match=r"^--engine-option: prefill: .*'plain' or 'captured'"):
        read_job(["--quant", "fp16", "--engine", "native", "--engine-option", "prefill=fast"])
    with pytest.raises(SpecError, match="engine_options: no key 'prefill'"):
        Generator(model, engine="compile", engine_options={"prefill": "captured"})
    assert [name for name in ("cuda_graph", "compile") if ENGINES[name].options.model_fields] == []


@pytest.mark.slow
@pytest.mark.usefixtures("traced_only")
def test_native_without_captured_prefill_runs_the_models_prefill(model: PreTrainedModel) -> None:
    lengths: list[int] = []
    decoder = plain_native_decoder(model, CpuDevice(), capture=Rerun())
    decoder.generate(prompt(tokens=26), 3)
    model.model.embed_tokens.register_forward_hook(lambda module, inputs, output: lengths.append(inputs[0].shape[1]))
    decoder.generate(prompt(tokens=26), 3)
    assert lengths == [26, 1, 1]
    assert decoder.facts().prefill is None
    assert decoder.facts().frames_compiled == 2


def test_prompt_at_position_0_attends_to_itself_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    query, (key, value) = torch.randn(2, 4, 5, 16), torch.randn(2, 2, 2, 32, 16)
    unused = torch.zeros(3)
    made = []
    for backend, is_first in ((static_kv_cache.FLASH, True), (static_kv_cache.MATMULS, False)):
        monkeypatch.setattr(static_kv_cache, "attention_backend", lambda *_, backend=backend, **__: backend)
        visible = static_kv_cache.SequenceLengths(torch.tensor([5, 5]), unused, unused, is_first=is_first)
        made += static_kv_cache.attend(
            torch.nn.Identity(), query, key, value, None, scaling=0.25, sequence_lengths=visible
        )[:1]
    torch.testing.assert_close(*made)
