"""The loop over a fixed cache with a capture that just runs the step again: what does not need a GPU of all of it."""

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
    """Records like a graph: warm runs, then the recorded one, and a replay repeats the same function."""

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


def test_replaying_makes_the_tokens_that_generate_makes_over_and_over(model: PreTrainedModel) -> None:
    expected = EagerDecoder(model, CpuDevice()).generate(prompt(), 64).tokens
    assert len(set(expected[0])) > 10
    runtime = cuda_graph_decoder(model, CpuDevice(), capture=Rerun())
    # The second time finds the first one's keys in the cache, and the position where the capture left it.
    assert runtime.generate(prompt(), 64).tokens == expected
    assert runtime.generate(prompt(), 64).tokens == expected


@pytest.mark.parametrize("depth", [1, 100])
def test_a_depth_gives_the_tokens_of_a_prompt_that_is_longer_by_it(
    model: PreTrainedModel, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("eager", "static_decoder"):
        monkeypatch.setattr(f"benchmarker.engines.decoders.{module}.CHUNK", 64)
    whole = torch.cat([context(depth), prompt()], dim=1)
    expected = EagerDecoder(model, CpuDevice()).generate(whole, 8).tokens
    before = context(depth)
    for runtime in (EagerDecoder(model, CpuDevice()), cuda_graph_decoder(model, CpuDevice(), capture=Rerun())):
        for _ in range(2):
            assert runtime.generate(prompt(), 8, context=before).tokens == expected


def test_a_depth_is_put_into_the_cache_once_and_not_in_the_timed_part(model: PreTrainedModel) -> None:
    seen: list[int] = []
    model.model.embed_tokens.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0].shape[1]))
    before = context(300)
    for runtime in (EagerDecoder(model, CpuDevice()), cuda_graph_decoder(model, CpuDevice(), capture=Rerun())):
        runtime.generate(prompt(), 3, context=before)
        seen.clear()
        runtime.generate(prompt(), 3, context=before)
        assert seen == [7, 1, 1]


def test_another_depth_or_none_forgets_the_last_one(model: PreTrainedModel) -> None:
    runtime = cuda_graph_decoder(model, CpuDevice(), capture=Rerun())
    plain = EagerDecoder(model, CpuDevice()).generate(prompt(), 8).tokens
    other = EagerDecoder(model, CpuDevice()).generate(torch.cat([context(20), prompt()], dim=1), 8).tokens
    runtime.generate(prompt(), 8, context=context(30))
    assert runtime.generate(prompt(), 8, context=context(20)).tokens == other
    assert runtime.generate(prompt(), 8).tokens == plain


def test_one_graph_a_shape_and_every_timed_step_is_a_replay(model: PreTrainedModel) -> None:
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


def test_tokens_are_read_at_the_end_and_the_record_says_so(model: PreTrainedModel) -> None:
    runtime = cuda_graph_decoder(model, CpuDevice(), capture=Rerun())
    made = runtime.generate(prompt(), 5)
    assert runtime.facts().tokens_read == "end"
    assert made.last_ns == made.end_ns
    assert [len(row) for row in made.tokens] == [5, 5]


def test_kernels_of_a_token_are_those_of_one_replay_or_of_two_tokens_more_in_generate(model: PreTrainedModel) -> None:
    counted: list[int] = []
    model.lm_head.register_forward_hook(lambda module, inputs, output: counted.append(10))

    def count(work: Callable[[], object]) -> int:
        counted.clear()
        work()
        return sum(counted)

    for runtime in (EagerDecoder(model, CpuDevice()), cuda_graph_decoder(model, CpuDevice(), capture=Rerun())):
        assert runtime.kernels_per_token(count) is None
        runtime.generate(prompt(), 5)
        assert runtime.kernels_per_token(count) == 10


def test_a_cpu_has_no_graphs_and_the_cell_says_what_to_use(model: PreTrainedModel) -> None:
    with pytest.raises(UnsupportedError, match="use --engine eager or compile"):
        cuda_graph_decoder(model, CpuDevice()).generate(prompt(), 5)


def test_a_failed_capture_names_the_line_that_waited_for_the_device() -> None:
    def forward() -> None:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore")

    def capture() -> None:
        try:
            forward()
        finally:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")

    with pytest.raises(RuntimeError) as caught:
        capture()
    said = operation(caught.value)
    assert said.startswith("test_engines_graph.py:")
    assert said.endswith(": CUDA error: operation not permitted when stream is capturing")
    assert "`raise RuntimeError" in said


@pytest.mark.slow
@pytest.mark.usefixtures("traced_only")
def test_other_runtimes_run_what_they_ran_before_a_model_was_compiled_and_keep_nothing_of_it(
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
def test_models_that_are_built_otherwise_make_the_tokens_of_generate(kind: str) -> None:
    # NanoChat has its last norm before the layers too, Cohere's layers have five linears of one input.
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        kind, vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, initializer_range=0.2, pad_token_id=0, mlp_bias=True, attention_bias=True,
    )  # fmt: skip
    tried = with_uneven_norms(AutoModelForCausalLM.from_config(config))
    expected = EagerDecoder(tried, CpuDevice()).generate(prompt(), 32).tokens
    assert len(set(expected[0])) > 2
    for runtime in cuda_graph_decoder, compile_decoder:
        assert runtime(tried, CpuDevice(), capture=Rerun()).generate(prompt(), 32).tokens == expected


@pytest.mark.slow
def test_a_model_that_attends_in_a_way_of_its_own_is_refused() -> None:
    config = AutoConfig.for_model(
        "stablelm", vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2,
    )  # fmt: skip
    tried = AutoModelForCausalLM.from_config(config).eval()
    said = "StableLmAttention attends with no lengths of the sequences in the cache; use --engine eager"
    for decoder in cuda_graph_decoder, compile_decoder:
        with pytest.raises(UnsupportedError, match=re.escape(said)):
            decoder(tried, CpuDevice(), capture=Rerun()).generate(prompt(), 5)


def test_a_step_that_leaves_layers_out_is_no_compiled_step(model: PreTrainedModel) -> None:
    runtime = compile_decoder(model, CpuDevice(), capture=Rerun())
    model.model.layers[3] = Elsewhere(model.model.layers[3])
    cast("Any", runtime).step.run_compiled = lambda function, *arguments: function(*arguments)
    with pytest.raises(UnsupportedError, match=f"runs {LAYERS - 1} of its {LAYERS} decoder layers"):
        runtime.generate(prompt(), 5)


class Elsewhere(torch.nn.Module):
    """A layer that was wrapped after the runtime had looked for it."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.inner = [layer]

    def forward(self, hidden: torch.Tensor, **arguments: Any) -> torch.Tensor:
        made: torch.Tensor = type(self.inner[0]).forward(self.inner[0], hidden, **arguments)
        return made


@pytest.mark.slow
@pytest.mark.usefixtures("traced_only")
def test_a_layer_that_the_compiler_cannot_share_is_an_error_not_a_silent_fallback(model: PreTrainedModel) -> None:
    for number, layer in enumerate(model.model.layers):
        layer.mlp.number = number
        layer.mlp.register_forward_hook(lambda module, inputs, output: output + 0 * module.number)
    runtime = compile_decoder(model, CpuDevice(), capture=Rerun())
    # Two versions of a function, after which torch gives up on it.
    limit = torch._dynamo.config.patch(recompile_limit=2)
    with limit, pytest.raises(UnsupportedError, match=r"torch\.compile: .*limit"):
        runtime.generate(prompt(), 5)


@pytest.mark.slow
@pytest.mark.parametrize("quant", ["fp16", "int8", "bnb4"])
@pytest.mark.usefixtures("traced_only")
def test_every_form_makes_the_same_tokens_by_the_librarys_linears_in_every_runtime(
    session_model, quant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ours(*_: object, **__: object) -> None:
        raise AssertionError("this program's own attention")

    monkeypatch.setattr(static_kv_cache, "decode_attention", ours)
    model = load(session_model, quant, dtype="float32").model
    classes = [type(module) for module in model.modules()]
    asked = torch.arange(10, 30)[None]
    expected = tokens_of(EagerDecoder(model, CpuDevice()), asked, 24)
    for kind in (cuda_graph_decoder, compile_decoder):
        decoder = kind(model, CpuDevice(), capture=Rerun())
        assert tokens_of(decoder, asked, 24) == expected
        assert [type(module) for module in model.modules()] == classes
        assert {use.origin for use in decoder.facts().kernels_used} <= {"library", "inductor"}
    assert decoder.facts().frames_compiled == 2


@pytest.mark.slow
@pytest.mark.by_hand
@pytest.mark.parametrize("kernel", ["auto", "torch"])
def test_gptq_gives_the_logits_of_eager_within_the_rounding_of_16_bit(shape_folder, kernel: str) -> None:
    # Its kernels know 16 bit only, so that the order of additions shows: 2 % of the largest logit.
    model = load(shape_folder, "gptq", dtype="bfloat16", dummy=True, kernel=kernel).model
    hidden: list[torch.Tensor] = []
    model.model.layers[-1].register_forward_hook(lambda module, inputs, output: hidden.append(output[:, -1].clone()))
    asked = torch.arange(10, 30)[None]
    EagerDecoder(model, CpuDevice()).generate(asked, 2)
    runtime = compile_decoder(model, CpuDevice(), capture=Rerun())
    runtime.generate(asked, 2)
    expected, made = (model.lm_head(model.model.norm(one)).detach().float() for one in (hidden[1], hidden[-1]))
    assert float((made - expected).abs().max() / expected.abs().max()) < 0.02
    assert runtime.facts().frames_compiled == 2


def test_a_cache_that_cannot_fit_says_what_it_needs_and_what_there_is(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = 2 * LAYERS * 3 * 2**19 * 2 * 16 * 4
    monkeypatch.setattr(static_kv_cache, "free_bytes", lambda device: needed - 1)
    said = r"out of memory: the KV cache of 3 x 524288 positions needs 1.50 GiB, and 1.50 GiB are free beside"
    with pytest.raises(torch.cuda.OutOfMemoryError, match=said):
        StaticKVCache(model, batch=3, length=2**19)
    monkeypatch.setattr(static_kv_cache, "free_bytes", lambda device: 2 * LAYERS * 1 * 128 * 2 * 16 * 4)
    assert StaticKVCache(model, batch=1, length=128).length == 128


def test_attending_leaves_the_unfilled_part_out() -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 6, 1, 16), torch.randn(2, 3, 40, 16), torch.randn(2, 3, 40, 16)
    lengths = torch.tensor([5, 40], dtype=torch.int32)
    filled = SequenceLengths(lengths, query_starts=torch.arange(3), key_starts=torch.arange(3) * 40)
    made, _ = attend(torch.nn.Identity(), query, key, value, None, scaling=0.25, sequence_lengths=filled)
    for sequence, length in enumerate(lengths.tolist()):
        expected = torch.nn.functional.scaled_dot_product_attention(
            query[sequence],
            *(one[sequence, :, :length].repeat_interleave(2, dim=0) for one in (key, value)),
            scale=0.25,
        )
        assert torch.allclose(made[sequence, 0], expected[:, 0], atol=1e-5)


@pytest.mark.slow
def test_one_compiled_layer_serves_all_of_them_and_gives_the_flash_kernel_the_cache_itself(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiled by Inductor, at a depth, on a batch of two: the kernel's part done by hand, the rest real."""
    addresses: set[int] = set()
    of_the_cache: set[int] = set()
    allocate = StaticKVLayer.allocate

    def noted(self: StaticKVLayer, *shape: Any, **kind: Any) -> None:
        allocate(self, *shape, **kind)
        of_the_cache.update((self.stored_keys.data_ptr(), self.stored_values.data_ptr()))

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
        made = torch.empty_like(query)
        for at, (first, length) in enumerate(zip(key_starts.tolist(), lengths.tolist(), strict=False)):
            keys, values = (
                one[first : first + length].repeat_interleave(query.shape[1] // key.shape[1], dim=1).transpose(0, 1)
                for one in (key, value)
            )
            weights = ((keys @ query[at].unsqueeze(-1)).squeeze(-1) * scaling).softmax(dim=-1)
            made[at] = (weights.unsqueeze(1) @ values).squeeze(1)
        return made

    before = context(50)
    expected = EagerDecoder(model, CpuDevice()).generate(prompt(), 16, context=before).tokens
    monkeypatch.setattr(StaticKVLayer, "allocate", noted)
    monkeypatch.setattr(static_kv_cache, "flash_kernel", kernel)
    monkeypatch.setattr(static_kv_cache, "attention_backend", lambda *_, **__: static_kv_cache.FLASH)
    runtime = compile_decoder(model, CpuDevice(), capture=Rerun())
    runtime.generate(prompt(), 16, context=before)
    with runtime.timed():
        assert runtime.generate(prompt(), 16, context=before).tokens == expected
    assert len(of_the_cache) == 2 * LAYERS
    assert addresses == of_the_cache
    facts = runtime.facts()
    # One layer and one head.
    assert (facts.compiled, facts.frames_compiled, facts.graph_breaks, facts.recompilations) == ("layer", 2, 0, 0)


class FakeDriver:
    """A graph of four nodes: two kernels, an event and a fill."""

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


def test_the_driver_tells_what_a_graph_holds_and_whether_a_capture_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda name: FakeDriver())
    assert DriverLibrary().kernels(5) == 3
    assert [DriverLibrary().is_broken(stream) for stream in (77, 78)] == [True, False]


def test_without_the_drivers_library_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr("ctypes.CDLL", missing)
    assert DriverLibrary().kernels(5) is None
    assert not DriverLibrary().is_broken(77)
