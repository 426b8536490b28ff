"""Test decoding with a static KV cache on a CPU, with a capture that reruns the step at each replay."""

import gc
import re
import weakref
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from benchmarker.engines.base import UnsupportedError
from benchmarker.engines.decoders import static_kv_cache
from benchmarker.engines.decoders.compile import compile_decoder
from benchmarker.engines.decoders.eager import EagerDecoder
from benchmarker.engines.decoders.graph_capture import WARM_STEPS, Captured, DriverLibrary, operation
from benchmarker.engines.decoders.static_decoder import cuda_graph_decoder
from benchmarker.engines.decoders.static_kv_cache import SequenceLengths, StaticKVCache, StaticKVLayer, attend
from benchmarker.hardware.device import CpuDevice
from benchmarker.schema.model import StepFacts
from tests.loading import load, tokens_of, with_uneven_norms

LAYERS = 4


@pytest.fixture
def model() -> PreTrainedModel:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, tie_word_embeddings=True, initializer_range=0.2,
    )  # fmt: skip
    return with_uneven_norms(Qwen3ForCausalLM(config))


class Rerun:
    """Stand-in for a CUDA graph capture: warm-up steps and a captured step, and each replay calls the step."""

    def __init__(self) -> None:
        self.captures = 0
        self.replays = 0

    def __call__(self, step: Callable[[], None]) -> Captured:
        self.captures += 1
        for _ in range(WARM_STEPS + 1):
            step()

        def replay() -> None:
            self.replays += 1
            step()

        return Captured(replay, pool_bytes=4096, kernels=7)


def prompt(*, batch: int = 2, tokens: int = 7) -> torch.Tensor:
    return torch.arange(2, 2 + tokens).repeat(batch, 1)


def context(tokens: int, *, batch: int = 2) -> torch.Tensor:
    return torch.arange(tokens).remainder(128).repeat(batch, 1)


def test_replayed_steps_match_generate_repeatedly(model: PreTrainedModel) -> None:
    expected = EagerDecoder(model, CpuDevice()).generate(prompt(), 64).tokens
    assert len(set(expected[0])) > 10
    runtime = cuda_graph_decoder(model, CpuDevice(), capture=Rerun())
    # The second generation starts with the keys and the position that the first one left in the cache.
    assert runtime.generate(prompt(), 64).tokens == expected
    assert runtime.generate(prompt(), 64).tokens == expected


@pytest.mark.parametrize("depth", [1, 100])
def test_depth_matches_the_concatenated_prompt(
    model: PreTrainedModel, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("eager", "static_decoder"):
        monkeypatch.setattr(f"benchmarker.engines.decoders.{module}.CHUNK", 64)
    concatenated = torch.cat([context(depth), prompt()], dim=1)
    expected = EagerDecoder(model, CpuDevice()).generate(concatenated, 8).tokens
    prefix = context(depth)
    for runtime in (EagerDecoder(model, CpuDevice()), cuda_graph_decoder(model, CpuDevice(), capture=Rerun())):
        for _ in range(2):
            assert runtime.generate(prompt(), 8, context=prefix).tokens == expected


def test_context_is_prefilled_once_and_outside_timing(model: PreTrainedModel) -> None:
    lengths: list[int] = []
    model.model.embed_tokens.register_forward_hook(lambda module, inputs, output: lengths.append(inputs[0].shape[1]))
    prefix = context(300)
    for runtime in (EagerDecoder(model, CpuDevice()), cuda_graph_decoder(model, CpuDevice(), capture=Rerun())):
        runtime.generate(prompt(), 3, context=prefix)
        lengths.clear()
        runtime.generate(prompt(), 3, context=prefix)
        assert lengths == [7, 1, 1]


def test_changed_depth_replaces_the_cached_context(model: PreTrainedModel) -> None:
    runtime = cuda_graph_decoder(model, CpuDevice(), capture=Rerun())
    without_depth = EagerDecoder(model, CpuDevice()).generate(prompt(), 8).tokens
    at_depth_20 = EagerDecoder(model, CpuDevice()).generate(torch.cat([context(20), prompt()], dim=1), 8).tokens
    runtime.generate(prompt(), 8, context=context(30))
    assert runtime.generate(prompt(), 8, context=context(20)).tokens == at_depth_20
    assert runtime.generate(prompt(), 8).tokens == without_depth


def test_one_graph_per_shape_and_every_timed_step_replays_it(model: PreTrainedModel) -> None:
    capture = Rerun()
    runtime = cuda_graph_decoder(model, CpuDevice(), capture=capture)
    runtime.generate(prompt(), 20)
    with runtime.timed():
        runtime.generate(prompt(), 20)
        runtime.generate(prompt(), 20)
    runtime.check()
    facts = runtime.facts()
    assert (facts.graphs_captured, facts.graph_replays) == (1, 38)
    assert capture.replays == 57
    assert runtime.graph_pool_bytes == 4096
    assert runtime.step_facts() == StepFacts(graph_kernels=7, attention=facts.attention)
    runtime.generate(prompt(batch=1), 20)
    assert runtime.facts().graphs_captured == 2


def test_tokens_are_read_at_the_end_of_generation(model: PreTrainedModel) -> None:
    runtime = cuda_graph_decoder(model, CpuDevice(), capture=Rerun())
    generation = runtime.generate(prompt(), 5)
    assert runtime.facts().tokens_read == "end"
    assert generation.last_ns == generation.end_ns
    assert [len(row) for row in generation.tokens] == [5, 5]


def test_kernels_per_token_are_counted(model: PreTrainedModel) -> None:
    launches: list[int] = []
    model.lm_head.register_forward_hook(lambda module, inputs, output: launches.append(10))

    def count(work: Callable[[], object]) -> int:
        launches.clear()
        work()
        return sum(launches)

    for runtime in (EagerDecoder(model, CpuDevice()), cuda_graph_decoder(model, CpuDevice(), capture=Rerun())):
        assert runtime.kernels_per_token(count) is None
        runtime.generate(prompt(), 5)
        assert runtime.kernels_per_token(count) == 10


def test_cuda_graph_on_a_cpu_raises_with_alternatives(model: PreTrainedModel) -> None:
    with pytest.raises(UnsupportedError, match="use --engine eager or compile"):
        cuda_graph_decoder(model, CpuDevice()).generate(prompt(), 5)


def test_failed_capture_names_the_synchronizing_line() -> None:
    def forward() -> None:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore")

    def capture() -> None:
        try:
            forward()
        finally:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")

    with pytest.raises(RuntimeError) as caught:
        capture()
    message = operation(caught.value)
    assert message.startswith("test_engines_graph.py:")
    assert message.endswith(": CUDA error: operation not permitted when stream is capturing")
    assert "`raise RuntimeError" in message


@pytest.mark.slow
@pytest.mark.usefixtures("traced_only")
def test_compiled_decoder_leaves_the_model_unchanged_and_frees_its_cache(
    model: PreTrainedModel,
) -> None:
    expected = EagerDecoder(model, CpuDevice()).generate(prompt(), 16).tokens
    compiled = compile_decoder(model, CpuDevice(), capture=Rerun())
    compiled.generate(prompt(), 16)
    frames = compiled.facts().frames_compiled
    graph = cuda_graph_decoder(model, CpuDevice(), capture=Rerun())
    assert graph.generate(prompt(), 16).tokens == expected
    assert EagerDecoder(model, CpuDevice()).generate(prompt(), 16).tokens == expected
    assert compiled.facts().frames_compiled == frames
    assert not any("forward" in vars(module) for module in model.modules())
    cache = weakref.ref(cast("Any", compiled).shape.cache)
    del compiled
    torch.compiler.reset()
    gc.collect()
    assert cache() is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["nanochat", *(pytest.param(kind, marks=pytest.mark.by_hand) for kind in ("cohere", "llama", "phi3"))]
)
@pytest.mark.usefixtures("traced_only")
def test_other_architectures_match_generate(kind: str) -> None:
    # NanoChat also applies its final norm before the layers; five linears of a Cohere layer share one input.
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        kind, vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, initializer_range=0.2, pad_token_id=0, mlp_bias=True, attention_bias=True,
    )  # fmt: skip
    model = with_uneven_norms(AutoModelForCausalLM.from_config(config))
    expected = EagerDecoder(model, CpuDevice()).generate(prompt(), 32).tokens
    assert len(set(expected[0])) > 2
    for runtime in cuda_graph_decoder, compile_decoder:
        assert runtime(model, CpuDevice(), capture=Rerun()).generate(prompt(), 32).tokens == expected


@pytest.mark.slow
def test_unsupported_attention_is_refused_with_a_reason() -> None:
    config = AutoConfig.for_model(
        "stablelm", vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config).eval()
    message = "StableLmAttention attends with no lengths of the sequences in the cache; use --engine eager"
    for decoder in cuda_graph_decoder, compile_decoder:
        with pytest.raises(UnsupportedError, match=re.escape(message)):
            decoder(model, CpuDevice(), capture=Rerun()).generate(prompt(), 5)


def test_step_that_skips_a_decoder_layer_is_refused(model: PreTrainedModel) -> None:
    runtime = compile_decoder(model, CpuDevice(), capture=Rerun())
    model.model.layers[3] = WrappedLayer(model.model.layers[3])
    cast("Any", runtime).step.run_compiled = lambda function, *arguments: function(*arguments)
    with pytest.raises(UnsupportedError, match=f"runs {LAYERS - 1} of its {LAYERS} decoder layers"):
        runtime.generate(prompt(), 5)


class WrappedLayer(torch.nn.Module):
    """Wrapper of a layer, installed after the decoder collected the model's layers."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.inner = [layer]

    def forward(self, hidden: torch.Tensor, **arguments: Any) -> torch.Tensor:
        output: torch.Tensor = type(self.inner[0]).forward(self.inner[0], hidden, **arguments)
        return output


@pytest.mark.slow
@pytest.mark.usefixtures("traced_only")
def test_layers_exceeding_the_recompile_limit_raise(model: PreTrainedModel) -> None:
    for number, layer in enumerate(model.model.layers):
        layer.mlp.number = number
        layer.mlp.register_forward_hook(lambda module, inputs, output: output + 0 * module.number)
    runtime = compile_decoder(model, CpuDevice(), capture=Rerun())
    # torch stops compiling a function after two versions of it.
    limit = torch._dynamo.config.patch(recompile_limit=2)
    with limit, pytest.raises(UnsupportedError, match=r"torch\.compile: .*limit"):
        runtime.generate(prompt(), 5)


@pytest.mark.slow
@pytest.mark.parametrize("quant", ["fp16", "int8", "bnb4"])
@pytest.mark.usefixtures("traced_only")
def test_every_quantization_matches_eager_with_library_kernels(
    session_model, quant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def own_attention(*_: object, **__: object) -> None:
        raise AssertionError("called benchmarker's own attention")

    monkeypatch.setattr(static_kv_cache, "decode_attention", own_attention)
    model = load(session_model, quant, dtype="float32").model
    classes = [type(module) for module in model.modules()]
    prompt_ids = torch.arange(10, 30)[None]
    expected = tokens_of(EagerDecoder(model, CpuDevice()), prompt_ids, 24)
    for kind in (cuda_graph_decoder, compile_decoder):
        decoder = kind(model, CpuDevice(), capture=Rerun())
        assert tokens_of(decoder, prompt_ids, 24) == expected
        assert [type(module) for module in model.modules()] == classes
        assert {use.origin for use in decoder.facts().kernels_used} <= {"library", "inductor"}
    assert decoder.facts().frames_compiled == 2


@pytest.mark.slow
@pytest.mark.by_hand
@pytest.mark.parametrize("kernel", ["auto", "torch"])
def test_compiled_gptq_logits_match_eager_within_16_bit_rounding(shape_folder, kernel: str) -> None:
    # GPTQ kernels compute in 16 bit only, so the order of additions changes logits by up to 2 % of the largest.
    model = load(shape_folder, "gptq", dtype="bfloat16", dummy=True, kernel=kernel).model
    hidden: list[torch.Tensor] = []
    model.model.layers[-1].register_forward_hook(lambda module, inputs, output: hidden.append(output[:, -1].clone()))
    prompt_ids = torch.arange(10, 30)[None]
    EagerDecoder(model, CpuDevice()).generate(prompt_ids, 2)
    runtime = compile_decoder(model, CpuDevice(), capture=Rerun())
    runtime.generate(prompt_ids, 2)
    expected, compiled = (model.lm_head(model.model.norm(state)).detach().float() for state in (hidden[1], hidden[-1]))
    assert float((compiled - expected).abs().max() / expected.abs().max()) < 0.02
    assert runtime.facts().frames_compiled == 2


def test_cache_too_large_for_memory_raises_with_both_sizes(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache_bytes = 2 * LAYERS * 3 * 2**19 * 2 * 16 * 4
    monkeypatch.setattr(static_kv_cache, "free_bytes", lambda device: cache_bytes - 1)
    message = r"out of memory: the KV cache of 3 x 524288 positions needs 1.50 GiB, and 1.50 GiB are free beside"
    with pytest.raises(torch.cuda.OutOfMemoryError, match=message):
        StaticKVCache(model, batch=3, length=2**19)
    monkeypatch.setattr(static_kv_cache, "free_bytes", lambda device: 2 * LAYERS * 1 * 128 * 2 * 16 * 4)
    assert StaticKVCache(model, batch=1, length=128).length == 128


def test_attention_ignores_unfilled_cache_positions() -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 6, 1, 16), torch.randn(2, 3, 40, 16), torch.randn(2, 3, 40, 16)
    lengths = torch.tensor([5, 40], dtype=torch.int32)
    filled = SequenceLengths(lengths, query_starts=torch.arange(3), key_starts=torch.arange(3) * 40)
    output, _ = attend(torch.nn.Identity(), query, key, value, None, scaling=0.25, sequence_lengths=filled)
    for sequence, length in enumerate(lengths.tolist()):
        expected = torch.nn.functional.scaled_dot_product_attention(
            query[sequence],
            *(states[sequence, :, :length].repeat_interleave(2, dim=0) for states in (key, value)),
            scale=0.25,
        )
        assert torch.allclose(output[sequence, 0], expected[:, 0], atol=1e-5)


@pytest.mark.slow
def test_one_compiled_layer_passes_every_cache_uncopied_to_flash_attention(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compile by Inductor at a depth, for a batch of two, with a reference implementation of the flash kernel."""
    addresses: set[int] = set()
    cache_addresses: set[int] = set()
    allocate = StaticKVLayer.allocate

    def recording_allocate(self: StaticKVLayer, *shape: Any, **options: Any) -> None:
        allocate(self, *shape, **options)
        cache_addresses.update((self.stored_keys.data_ptr(), self.stored_values.data_ptr()))

    def kernel(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        filled: SequenceLengths,
        *,
        positions: int,
        scaling: float,
    ) -> torch.Tensor:
        lengths, key_starts = filled.lengths, filled.key_starts
        assert len(query) == len(lengths)
        addresses.update((key.data_ptr(), value.data_ptr()))
        output = torch.empty_like(query)
        for row, (first, length) in enumerate(zip(key_starts.tolist(), lengths.tolist(), strict=False)):
            keys, values = (
                states[first : first + length].repeat_interleave(query.shape[1] // key.shape[1], dim=1).transpose(0, 1)
                for states in (key, value)
            )
            weights = ((keys @ query[row].unsqueeze(-1)).squeeze(-1) * scaling).softmax(dim=-1)
            output[row] = (weights.unsqueeze(1) @ values).squeeze(1)
        return output

    prefix = context(50)
    expected = EagerDecoder(model, CpuDevice()).generate(prompt(), 16, context=prefix).tokens
    monkeypatch.setattr(StaticKVLayer, "allocate", recording_allocate)
    monkeypatch.setattr(static_kv_cache, "flash_kernel", kernel)
    monkeypatch.setattr(static_kv_cache, "attention_backend", lambda *_, **__: static_kv_cache.FLASH)
    runtime = compile_decoder(model, CpuDevice(), capture=Rerun())
    runtime.generate(prompt(), 16, context=prefix)
    with runtime.timed():
        assert runtime.generate(prompt(), 16, context=prefix).tokens == expected
    assert len(cache_addresses) == 2 * LAYERS
    assert addresses == cache_addresses
    facts = runtime.facts()
    # One frame for the layers and one for the head.
    assert (facts.compiled, facts.frames_compiled, facts.graph_breaks, facts.recompilations) == ("layer", 2, 0, 0)


class FakeDriver:
    """Driver library whose graph has four nodes: two kernels, an event and a fill."""

    def cuGraphGetNodes(self, graph: Any, nodes: Any, count: Any) -> int:
        if nodes is not None:
            nodes[:] = [1, 2, 3, 4]
        count._obj.value = 4
        return 0

    def cuGraphNodeGetType(self, node: Any, kind: Any) -> int:
        kind._obj.value = {1: 0, 2: 0, 3: 6, 4: 2}[node.value]
        return 0

    def cuStreamIsCapturing(self, stream: Any, state: Any) -> int:
        state._obj.value = 2 if stream.value == 77 else 1
        return 0


def test_driver_counts_graph_kernels_and_detects_broken_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda name: FakeDriver())
    assert DriverLibrary().kernels(5) == 3
    assert [DriverLibrary().is_broken(stream) for stream in (77, 78)] == [True, False]


def test_missing_driver_library_gives_no_kernel_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr("ctypes.CDLL", missing)
    assert DriverLibrary().kernels(5) is None
    assert not DriverLibrary().is_broken(77)
