"""The loop over a fixed cache with a capture that just runs the step again: what does not need a GPU of all of it."""

import gc
import re
import sys
import weakref
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from benchmarker.hardware.device import CpuDevice
from benchmarker.quantization.inspect import module_tensors, storage_bytes
from benchmarker.runtimes import attention
from benchmarker.runtimes.attention import attend
from benchmarker.runtimes.base import UnsupportedError
from benchmarker.runtimes.capture import WARM_STEPS, Captured, operation
from benchmarker.runtimes.compiled import CompiledRuntime
from benchmarker.runtimes.driver import Driver
from benchmarker.runtimes.eager import EagerRuntime
from benchmarker.runtimes.fixed import Filled, FixedLayer
from benchmarker.runtimes.gated import fuse_gates
from benchmarker.runtimes.graph import GraphRuntime
from benchmarker.runtimes.joined import join_linears
from benchmarker.runtimes.linears import as_rows, fits_codes, fits_words, prepare_linears
from benchmarker.schema.base import Scalar
from benchmarker.schema.old_products import CODES, GATED, JOINED, by_rows
from benchmarker.schema.record import StepFacts
from tests.loading import load, tokens_of, with_uneven_norms

LAYERS = 10
"""More than the eight compilations after which torch gives up on a function."""


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
    expected = EagerRuntime(model, CpuDevice()).generate(prompt(), 64).tokens
    assert len(expected[0].unique()) > 10
    runtime = GraphRuntime(model, CpuDevice(), capture=Rerun())
    # The second time finds the first one's keys in the cache, and the position where the capture left it.
    assert torch.equal(runtime.generate(prompt(), 64).tokens, expected)
    assert torch.equal(runtime.generate(prompt(), 64).tokens, expected)


@pytest.mark.parametrize("depth", [1, 100, 4200])
def test_a_depth_gives_the_tokens_of_a_prompt_that_is_longer_by_it(model: PreTrainedModel, depth: int) -> None:
    whole = torch.cat([context(depth), prompt()], dim=1)
    expected = EagerRuntime(model, CpuDevice()).generate(whole, 8).tokens
    before = context(depth)
    for runtime in (EagerRuntime(model, CpuDevice()), GraphRuntime(model, CpuDevice(), capture=Rerun())):
        for _ in range(2):
            assert torch.equal(runtime.generate(prompt(), 8, context=before).tokens, expected)


def test_a_depth_is_put_into_the_cache_once_and_not_in_the_timed_part(model: PreTrainedModel) -> None:
    seen: list[int] = []
    model.model.embed_tokens.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0].shape[1]))
    before = context(300)
    for runtime in (EagerRuntime(model, CpuDevice()), GraphRuntime(model, CpuDevice(), capture=Rerun())):
        runtime.generate(prompt(), 3, context=before)
        seen.clear()
        runtime.generate(prompt(), 3, context=before)
        assert seen == [7, 1, 1]


def test_another_depth_or_none_forgets_the_last_one(model: PreTrainedModel) -> None:
    runtime = GraphRuntime(model, CpuDevice(), capture=Rerun())
    plain = EagerRuntime(model, CpuDevice()).generate(prompt(), 8).tokens
    other = EagerRuntime(model, CpuDevice()).generate(torch.cat([context(20), prompt()], dim=1), 8).tokens
    runtime.generate(prompt(), 8, context=context(30))
    assert torch.equal(runtime.generate(prompt(), 8, context=context(20)).tokens, other)
    assert torch.equal(runtime.generate(prompt(), 8).tokens, plain)


def test_one_graph_a_shape_and_every_timed_step_is_a_replay(model: PreTrainedModel) -> None:
    capture = Rerun()
    runtime = GraphRuntime(model, CpuDevice(), capture=capture)
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
    runtime = GraphRuntime(model, CpuDevice(), capture=Rerun())
    made = runtime.generate(prompt(), 5)
    assert runtime.facts().tokens_read == "end"
    assert made.last_ns == made.end_ns
    assert made.tokens.shape == (2, 5)


def test_kernels_of_a_token_are_those_of_one_replay_or_of_two_tokens_more_in_generate(model: PreTrainedModel) -> None:
    counted: list[int] = []
    model.lm_head.register_forward_hook(lambda module, inputs, output: counted.append(10))

    def count(work: Callable[[], object]) -> int:
        counted.clear()
        work()
        return sum(counted)

    for runtime in (EagerRuntime(model, CpuDevice()), GraphRuntime(model, CpuDevice(), capture=Rerun())):
        assert runtime.kernels_per_token(count) is None
        runtime.generate(prompt(), 5)
        assert runtime.kernels_per_token(count) == 10


def test_a_cpu_has_no_graphs_and_the_cell_says_what_to_use(model: PreTrainedModel) -> None:
    with pytest.raises(UnsupportedError, match="use --runtime eager or compile"):
        GraphRuntime(model, CpuDevice()).generate(prompt(), 5)


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
    assert said.startswith("test_runtimes_graph.py:")
    assert said.endswith(": CUDA error: operation not permitted when stream is capturing")
    assert "`raise RuntimeError" in said


def test_a_sliding_window_is_refused_with_the_runtime_that_can(model: PreTrainedModel) -> None:
    model.config.layer_types = ["sliding_attention"] * LAYERS
    model.config.sliding_window = 16
    with pytest.raises(UnsupportedError, match=r"StaticSlidingWindowLayer.*--runtime eager"):
        GraphRuntime(model, CpuDevice(), capture=Rerun()).generate(prompt(), 5)


@pytest.mark.slow
def test_one_compiled_layer_serves_all_of_them_with_the_tokens_of_eager(model: PreTrainedModel) -> None:
    expected = EagerRuntime(model, CpuDevice()).generate(prompt(), 64, context=context(50)).tokens
    runtime = CompiledRuntime(model, CpuDevice(), capture=Rerun())
    before = context(50)
    runtime.generate(prompt(), 64, context=before)
    with runtime.timed():
        made = runtime.generate(prompt(), 64, context=before).tokens
    facts = runtime.facts()
    assert torch.equal(made, expected)
    # One layer and one head: ten layers would be ten, and from the ninth on none.
    assert (facts.compiled, facts.frames_compiled, facts.graph_breaks, facts.recompilations) == ("layer", 2, 0, 0)


@pytest.mark.slow
def test_other_runtimes_run_what_they_ran_before_a_model_was_compiled_and_keep_nothing_of_it(
    model: PreTrainedModel,
) -> None:
    expected = EagerRuntime(model, CpuDevice()).generate(prompt(), 16).tokens
    compiled = CompiledRuntime(model, CpuDevice(), capture=Rerun())
    compiled.generate(prompt(), 16)
    frames = compiled.facts().frames_compiled
    graph = GraphRuntime(model, CpuDevice(), capture=Rerun())
    assert torch.equal(graph.generate(prompt(), 16).tokens, expected)
    assert torch.equal(EagerRuntime(model, CpuDevice()).generate(prompt(), 16).tokens, expected)
    assert compiled.facts().frames_compiled == frames
    assert not any("forward" in vars(module) for module in model.modules())
    cache = weakref.ref(cast("Any", compiled)._shape.cache)
    del compiled
    torch.compiler.reset()
    gc.collect()
    assert cache() is None


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["nanochat", "cohere", "llama", "phi3"])
def test_models_that_are_built_otherwise_make_the_tokens_of_generate(kind: str) -> None:
    # NanoChat has its last norm before the layers too, Cohere's layers have five linears of one input.
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        kind, vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, initializer_range=0.2, pad_token_id=0, mlp_bias=True, attention_bias=True,
    )  # fmt: skip
    tried = with_uneven_norms(AutoModelForCausalLM.from_config(config))
    expected = EagerRuntime(tried, CpuDevice()).generate(prompt(), 32).tokens
    assert len(expected[0].unique()) > 2
    for runtime in GraphRuntime, CompiledRuntime:
        assert torch.equal(runtime(tried, CpuDevice(), capture=Rerun()).generate(prompt(), 32).tokens, expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("gpt_oss", "GptOssAttention attends with s_aux; use --runtime eager"),
        ("stablelm", "StableLmAttention attends with nothing of what a decode step tells it; use --runtime eager"),
        ("gpt2", "this model caches 4 heads of 16 numbers, where its config says 2 of 16; use --runtime eager"),
    ],
)
def test_a_model_that_attends_in_a_way_of_its_own_is_refused(kind: str, said: str) -> None:
    config = AutoConfig.for_model(
        kind, vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, layer_types=["full_attention"] * 2, num_local_experts=4,
    )  # fmt: skip
    tried = AutoModelForCausalLM.from_config(config).eval()
    with pytest.raises(UnsupportedError) as caught:
        GraphRuntime(tried, CpuDevice(), capture=Rerun()).generate(prompt(), 5)
    assert str(caught.value) == said
    with pytest.raises(UnsupportedError, match=re.escape(said) if kind != "gpt2" else "in a way of its own"):
        CompiledRuntime(tried, CpuDevice(), capture=Rerun()).generate(prompt(), 5)


def test_a_step_that_leaves_layers_out_is_no_compiled_step(model: PreTrainedModel) -> None:
    runtime = CompiledRuntime(model, CpuDevice(), capture=Rerun())
    model.model.layers[3] = Elsewhere(model.model.layers[3])
    cast("Any", runtime)._run = lambda function, *arguments: function(*arguments)
    with pytest.raises(UnsupportedError, match="runs 9 of its 10 decoder layers"):
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
def test_a_layer_that_the_compiler_cannot_share_is_an_error_not_a_silent_fallback(model: PreTrainedModel) -> None:
    for number, layer in enumerate(model.model.layers):
        layer.mlp.number = number
        layer.mlp.register_forward_hook(lambda module, inputs, output: output + 0 * module.number)
    runtime = CompiledRuntime(model, CpuDevice(), capture=Rerun())
    # gptqmodel, once loaded, raises torch's limit for the whole process.
    limit = torch._dynamo.config.patch(recompile_limit=8)
    with limit, pytest.raises(UnsupportedError, match=r"torch\.compile: .*limit"):
        runtime.generate(prompt(), 5)


@pytest.mark.slow
@pytest.mark.parametrize("quant", ["fp16", "int8", "bnb4"])
def test_every_form_makes_the_same_tokens_in_every_runtime(model_folder, quant: str) -> None:
    model = load(model_folder, quant, dtype="float32").model
    asked = torch.arange(10, 30)[None]
    expected = tokens_of(EagerRuntime(model, CpuDevice()), asked, 64)
    assert tokens_of(GraphRuntime(model, CpuDevice(), capture=Rerun()), asked, 64) == expected
    layered = CompiledRuntime(model, CpuDevice(), capture=Rerun())
    assert tokens_of(layered, asked, 64) == expected
    assert layered.facts().frames_compiled == 2


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["auto", "torch"])
def test_gptq_gives_the_logits_of_eager_within_the_rounding_of_16_bit(shape_folder, kernel: str) -> None:
    # Its kernels know 16 bit only, so that the order of additions shows: 2 % of the largest logit.
    model = load(shape_folder, "gptq", dtype="bfloat16", dummy=True, kernel=kernel).model
    hidden: list[torch.Tensor] = []
    model.model.layers[-1].register_forward_hook(lambda module, inputs, output: hidden.append(output[:, -1].clone()))
    asked = torch.arange(10, 30)[None]
    EagerRuntime(model, CpuDevice()).generate(asked, 2)
    runtime = CompiledRuntime(model, CpuDevice(), capture=Rerun())
    runtime.generate(asked, 2)
    expected, made = (model.lm_head(model.model.norm(one)).detach().float() for one in (hidden[1], hidden[-1]))
    assert float((made - expected).abs().max() / expected.abs().max()) < 0.02
    assert runtime.facts().frames_compiled == 2


@pytest.mark.slow
def test_our_kernel_takes_gptqs_words_only_where_groups_follow_one_another(shape_folder) -> None:
    model = load(shape_folder, "gptq", dtype="bfloat16", dummy=True, kernel="torch").model
    packed = [module for module in model.modules() if hasattr(module, "qweight")]
    assert all(fits_words(module) for module in packed)
    mixed, other = packed[:2]
    mixed.g_idx[0] += 1
    other.bits = 8
    assert not fits_words(mixed)
    assert not fits_words(other)
    assert not fits_words(model.lm_head)
    # Written in Triton: on a CPU the library's own stays, and the record says nothing.
    assert prepare_linears(model) == []


@pytest.mark.slow
def test_bitsandbytes_products_of_one_input_are_made_as_one_and_no_byte_is_kept_twice(model_folder) -> None:
    model = unpacked(load(model_folder, "bnb4", dtype="float32").model)
    linears: list[Any] = [module for module in model.modules() if type(module).__name__ == "Linear4bit"]
    asked = torch.arange(10, 30)[None]
    expected = tokens_of(EagerRuntime(model, CpuDevice()), asked, 32)
    names, size = set(dict(model.named_modules())), weights_size(model)
    runtime = CompiledRuntime(model, CpuDevice(), capture=Rerun())
    assert tokens_of(runtime, asked, 32) == expected
    assert runtime.facts().own_products == JOINED
    products = [linear.part.joint.product for linear in linears if hasattr(linear, "part") and linear.part.start == 0]
    attention, mlp = products[:2]
    assert len(products) == 4
    assert (attention.out_features, mlp.out_features) == (128 + 2 * 64, 2 * 256)
    assert join_linears(model) == [JOINED]
    assert (set(dict(model.named_modules())), weights_size(model)) == (names, size)
    assert linears[1].weight.untyped_storage().data_ptr() == attention.weight.untyped_storage().data_ptr()
    # Several queries go to each linear by itself, and find their own weights there.
    assert tokens_of(EagerRuntime(model, CpuDevice()), asked, 32) == expected


def unpacked(model: Any) -> Any:
    """With bitsandbytes' weights left as they lie on a GPU; on some processors it repacks them at the first call."""
    for linear in model.modules():
        if type(linear).__name__ == "Linear4bit":
            linear.support_avx512bf16_for_cpu = False
    return model


class ByHand:
    """In place of our kernels, which run on a GPU alone: the same products, and which were made."""

    def __init__(self) -> None:
        self.made: list[torch.Size] = []
        self.gated = 0

    def rows_times(self, hidden: torch.Tensor, rows: torch.Tensor, scales: torch.Tensor | None) -> torch.Tensor:
        return self._times(hidden, rows, scales).to(hidden.dtype)

    def gated_rows_times(self, hidden: torch.Tensor, rows: torch.Tensor, scales: torch.Tensor | None) -> torch.Tensor:
        self.gated += 1
        gate, up = self._times(hidden, rows, scales).chunk(2)
        return (torch.nn.functional.silu(gate) * up).to(hidden.dtype)

    def _times(self, hidden: torch.Tensor, rows: torch.Tensor, scales: torch.Tensor | None) -> torch.Tensor:
        self.made.append(rows.shape)
        made = hidden.float() @ rows.float().T
        return made if scales is None else made * scales.flatten()

    def codes_times(
        self, hidden: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor, numbers: torch.Tensor, parts: int
    ) -> torch.Tensor:
        self.made.append(torch.Size((2 * packed.numel() // len(hidden), len(hidden))))
        codes = torch.stack((packed >> 4, packed & 15), 1).flatten().int()
        weights = (numbers[codes].view(len(scales), -1) * scales[:, None]).view(-1, len(hidden))
        return torch.stack([weights[:, at::parts] @ hidden[at::parts].float() for at in range(parts)])

    def parts_of(self, inputs: int) -> int:
        return 2


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> ByHand:
    kernel = ByHand()
    for module in ("rows_kernel", "codes_kernel"):
        monkeypatch.setitem(sys.modules, f"benchmarker.runtimes.{module}", cast("Any", kernel))
    monkeypatch.setattr("benchmarker.runtimes.linears.can_start_early", lambda device: True)
    for where in ("linears", "joined", "gated"):
        monkeypatch.setattr(
            f"benchmarker.runtimes.{where}.is_one_query",
            lambda hidden, linear: hidden.numel() == linear.in_features,
        )
    return kernel


def qwen2() -> PreTrainedModel:
    """Query, key and value have a bias."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=True,
    )  # fmt: skip
    made = Qwen2ForCausalLM(config).eval()
    for module in made.modules():
        if isinstance(module, torch.nn.Linear) and module.bias is not None:
            torch.nn.init.normal_(module.bias)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("quant", ["fp16", "int8", "biased"])
def test_our_products_of_one_input_are_made_as_one_and_no_byte_is_kept_twice(
    model_folder, quant: str, by_hand: ByHand
) -> None:
    model = qwen2() if quant == "biased" else load(model_folder, quant, dtype="bfloat16").model
    many, one = torch.arange(10, 30)[None], torch.tensor([[10]])
    expected = logits(model, many), logits(model, one)
    names, size = set(dict(model.named_modules())), weights_size(model)
    for _ in range(2):
        assert prepare_linears(model) == [by_rows(15, 15)]
        assert join_linears(model) == [JOINED]
        assert fuse_gates(model) == [GATED]
    by_hand.made.clear()
    by_hand.gated = 0
    made = logits(model, one)
    assert float((made - expected[1]).abs().max() / made.abs().max()) < 0.05
    assert by_hand.gated == len(model.model.layers)
    rows = [shape[0] for shape in by_hand.made]
    attention, mlp = model.model.layers[0].self_attn, model.model.layers[0].mlp
    q, kv, hidden = attention.q_proj.out_features, attention.k_proj.out_features, attention.o_proj.out_features
    layer = [q + 2 * kv, hidden, 2 * mlp.up_proj.out_features, hidden]
    assert rows == [*layer, *layer, model.lm_head.out_features]
    assert (set(dict(model.named_modules())), weights_size(model)) == (names, size)
    key = attention.k_proj
    assert key.part.joint.made is None
    own, joint = (as_rows(weight)[0] for weight in (key.weight, key.part.joint.product.weight))
    assert own.untyped_storage().data_ptr() == joint.untyped_storage().data_ptr()
    # Several queries go to each linear by itself, and find their own weights there.
    assert torch.equal(logits(model, many), expected[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "ours"), [({}, True), ({"quant_type": "fp4"}, True), ({"double_quant": True}, False)]
)
def test_our_kernel_takes_bitsandbytes_codes_whose_scales_are_numbers(
    model_folder, options: dict[str, Scalar], ours: bool, by_hand: ByHand
) -> None:
    model = unpacked(load(model_folder, "bnb4", dtype="float32", **options).model)
    many, one = torch.arange(10, 30)[None], torch.tensor([[10]])
    expected = logits(model, many), logits(model, one)
    for _ in range(2):
        assert prepare_linears(model) == [by_rows(1, 15), *([CODES] if ours else [])]
        assert join_linears(model) == ([JOINED] if ours else [])
    by_hand.made.clear()
    made = logits(model, one)
    assert float((made - expected[1]).abs().max() / made.abs().max()) < 1e-4
    layer = [128 + 2 * 64, 128, 2 * 256, 128] if ours else []
    assert [shape[0] for shape in by_hand.made] == [*layer, *layer, model.lm_head.out_features]
    assert torch.equal(logits(model, many), expected[0])


@pytest.mark.slow
def test_a_bias_in_another_type_than_the_models_is_added_in_the_models(tmp_path, by_hand: ByHand) -> None:
    # bitsandbytes leaves it in the type that it computes in, which a checkpoint in 4 bit has of its own.
    qwen2().save_pretrained(tmp_path)
    in_4bit = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)
    model = unpacked(
        Qwen2ForCausalLM.from_pretrained(
            tmp_path, dtype=torch.bfloat16, device_map="cpu", quantization_config=in_4bit
        ).eval()
    )
    one = torch.tensor([[10]])
    expected = logits(model, one)
    assert model.model.layers[0].self_attn.q_proj.bias.dtype == torch.float32
    assert prepare_linears(model)[1:] == [CODES]
    join_linears(model)
    by_hand.made.clear()
    made = logits(model, one)
    assert len(by_hand.made) == 4 * len(model.model.layers) + 1
    hidden = torch.randn(1, 1, 64, dtype=torch.bfloat16)
    assert model.model.layers[0].self_attn.q_proj(hidden).dtype == torch.bfloat16
    assert float((made - expected).abs().max() / made.abs().max()) < 0.05


@pytest.mark.slow
def test_our_kernel_takes_codes_only_in_the_form_that_it_knows(
    model_folder, by_hand: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = unpacked(load(model_folder, "bnb4", dtype="float32").model)
    linear: Any = model.model.layers[0].mlp.gate_proj
    state = linear.weight.quant_state
    assert fits_codes(linear)
    for where, name, value in (
        (state, "blocksize", 256),
        (state, "nested", True),
        (state, "absmax", state.absmax.half()),
        (state, "shape", torch.Size(reversed(state.shape))),
        (linear, "in_features", 100),
        (linear.weight, "data", linear.weight.data.flatten().view(torch.bfloat16)),
        (linear.weight, "quant_state", None),
    ):
        with monkeypatch.context() as changed:
            changed.setattr(where, name, value)
            assert not fits_codes(linear), name
    assert fits_codes(linear)
    assert not fits_codes(model.lm_head)
    # One that wraps another under its name adds something to what that makes.
    assert not fits_codes(type("Linear4bit", (torch.nn.Module,), {})())
    linear.in_features = 100
    assert prepare_linears(model)[1:] == [f"{CODES} (13 of 14 linears)"]


@pytest.mark.slow
def test_what_is_not_alike_or_used_twice_is_not_joined(model_folder, by_hand: ByHand) -> None:
    model = load(model_folder, "fp16", dtype="bfloat16").model
    first, second = (layer.self_attn for layer in model.model.layers)
    int8 = load(model_folder, "int8", dtype="bfloat16").model.model.layers[0].self_attn
    first.q_proj.weight = int8.q_proj.weight
    second.q_proj.weight = second.o_proj.weight = torch.nn.Parameter(second.o_proj.weight.data.repeat(1, 1))
    expected = logits(model, torch.tensor([[10]]))
    prepare_linears(model)
    join_linears(model)
    assert not any(hasattr(linear, "part") for attention in (first, second) for linear in attention.children())
    assert hasattr(model.model.layers[1].mlp.gate_proj, "part")
    made = logits(model, torch.tensor([[10]]))
    assert float((made - expected).abs().max() / made.abs().max()) < 0.05


@pytest.mark.slow
def test_an_mlp_that_does_something_else_with_its_gate_keeps_its_own_forward(model_folder, by_hand: ByHand) -> None:
    model = load(model_folder, "fp16", dtype="bfloat16").model
    first, second = (layer.mlp for layer in model.model.layers)
    first.act_fn = torch.nn.GELU()
    prepare_linears(model)
    join_linears(model)
    fuse_gates(model)
    by_hand.gated = 0
    with torch.no_grad():
        first(torch.randn(1, 1, 128, dtype=torch.bfloat16))
        assert by_hand.gated == 0
        second(torch.randn(1, 1, 128, dtype=torch.bfloat16))
    assert by_hand.gated == 1


class CutOff(torch.nn.SiLU):
    """At what no vector of ordinary size reaches."""

    def forward(self, gate: torch.Tensor) -> torch.Tensor:
        return super().forward(gate.clamp(max=20))


@pytest.mark.slow
def test_an_mlp_that_cuts_large_numbers_off_keeps_its_own_forward(model_folder, by_hand: ByHand) -> None:
    model = load(model_folder, "fp16", dtype="bfloat16").model
    for layer in model.model.layers:
        layer.mlp.act_fn = CutOff()
    prepare_linears(model)
    join_linears(model)
    assert fuse_gates(model) == []


@pytest.mark.slow
def test_an_mlp_that_overflows_at_large_numbers_is_judged_by_ordinary_ones(model_folder, by_hand: ByHand) -> None:
    model = load(model_folder, "fp16", dtype="float16").model
    for layer in model.model.layers:
        layer.mlp.down_proj.weight.data *= 30
    prepare_linears(model)
    join_linears(model)
    assert fuse_gates(model) == [GATED]


@pytest.mark.slow
def test_int8_with_scales_for_groups_is_left_to_torchao(model_folder, by_hand: ByHand) -> None:
    model = load(model_folder, "int8", dtype="bfloat16", group_size=32).model
    expected = logits(model, torch.tensor([[10]]))
    # All but the output layer, which stays in 16 bit.
    assert prepare_linears(model) == [by_rows(1, 15)]
    assert join_linears(model) == []
    by_hand.made.clear()
    made = logits(model, torch.tensor([[10]]))
    assert float((made - expected).abs().max() / made.abs().max()) < 0.05
    assert [shape[0] for shape in by_hand.made] == [model.lm_head.out_features]


@pytest.mark.slow
def test_a_model_is_looked_at_for_joining_once(model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[PreTrainedModel] = []
    monkeypatch.setattr("benchmarker.runtimes.compiled.join_linears", lambda given: looked.append(given) or [])
    runtime = CompiledRuntime(model, CpuDevice(), capture=Rerun())
    for new_tokens in (3, 3, 5):
        runtime.generate(prompt(), new_tokens)
    assert len(looked) == 1


def logits(model: PreTrainedModel, asked: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        made: torch.Tensor = model(input_ids=asked).logits
    return made.float()


def weights_size(model: PreTrainedModel) -> int:
    return storage_bytes(tensor for module in model.modules() for tensor in module_tensors(module))


@pytest.mark.slow
def test_linears_that_were_not_quantized_alike_are_not_joined(model_folder) -> None:
    nested = load(model_folder, "bnb4", dtype="float32", double_quant=True).model
    assert join_linears(nested) == []
    assert join_linears(load(model_folder, "fp16", dtype="float32").model) == []


def test_attending_leaves_the_unfilled_part_out() -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 6, 1, 16), torch.randn(2, 3, 40, 16), torch.randn(2, 3, 40, 16)
    lengths = torch.tensor([5, 40], dtype=torch.int32)
    filled = Filled(lengths, query_starts=torch.arange(3), key_starts=torch.arange(3) * 40)
    made, _ = attend(torch.nn.Identity(), query, key, value, None, scaling=0.25, filled=filled)
    for sequence, length in enumerate(lengths.tolist()):
        expected = torch.nn.functional.scaled_dot_product_attention(
            query[sequence],
            *(one[sequence, :, :length].repeat_interleave(2, dim=0) for one in (key, value)),
            scale=0.25,
        )
        assert torch.allclose(made[sequence, 0], expected[:, 0], atol=1e-5)


@pytest.mark.slow
def test_the_flash_kernel_is_given_the_cache_itself_and_not_a_copy(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiled, on a batch of two: the kernel's part done by hand, the plumbing around it real."""
    addresses: set[int] = set()
    of_the_cache: set[int] = set()
    allocate = FixedLayer.allocate

    def noted(self: FixedLayer, *shape: Any, **kind: Any) -> None:
        allocate(self, *shape, **kind)
        of_the_cache.update((self.stored_keys.data_ptr(), self.stored_values.data_ptr()))

    def kernel(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        query_starts: torch.Tensor,
        key_starts: torch.Tensor,
        lengths: torch.Tensor,
        *,
        positions: int,
        scaling: float,
    ) -> torch.Tensor:
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

    expected = EagerRuntime(model, CpuDevice()).generate(prompt(), 16).tokens
    monkeypatch.setattr(FixedLayer, "allocate", noted)
    monkeypatch.setattr(attention, "flash_kernel", kernel)
    monkeypatch.setattr(attention, "way_of", lambda key: attention.FLASH)
    runtime = CompiledRuntime(model, CpuDevice(), capture=Rerun())
    assert torch.equal(runtime.generate(prompt(), 16).tokens, expected)
    assert len(of_the_cache) == 2 * LAYERS
    assert addresses == of_the_cache


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


def test_the_driver_tells_what_a_graph_holds_and_whether_a_capture_is_spoiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda name: FakeDriver())
    assert Driver().kernels(5) == 3
    assert [Driver().is_spoiled(stream) for stream in (77, 78)] == [True, False]


def test_without_the_drivers_library_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr("ctypes.CDLL", missing)
    assert Driver().kernels(5) is None
    assert not Driver().is_spoiled(77)
