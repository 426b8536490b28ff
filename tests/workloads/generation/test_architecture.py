"""Bytes and FLOPs of described architectures equal a step counted by operator, and values computed by hand."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3MoeConfig

from benchmarker.checkpoints.base import Checkpoint
from benchmarker.checkpoints.dummy import empty_model
from benchmarker.checkpoints.files import shipped_shape
from benchmarker.checkpoints.read_model import model_errors
from benchmarker.core.errors import ModelError, UnsupportedError
from benchmarker.engines.base import TokenSource
from benchmarker.hardware.device import CpuDevice
from benchmarker.schema.job import Procedure
from benchmarker.workloads.generation.architecture import DESCRIBED, Architecture
from benchmarker.workloads.generation.expert_routing import experts_per_step
from benchmarker.workloads.generation.generation_bench import outline_of
from benchmarker.workloads.generation.read_architecture import describe
from benchmarker.workloads.generation.source_benchmarker import ModelBenchmarker, SourceBenchmarker
from benchmarker.workloads.generation.spec import Grid
from tests.architectures import ARCHITECTURES, small_model
from tests.counted import cache_tensors, counted_step
from tests.jobs import job_of

CONTEXT = 33


def ids(batch_size: int = 1, tokens: int = CONTEXT + 1) -> torch.Tensor:
    return torch.randint(3, 2000, (batch_size, tokens), generator=torch.Generator().manual_seed(1))


def step(architecture: Architecture, **fields: Any) -> Any:
    shape = {"prompt_tokens": CONTEXT, "new_tokens": 2, "batch_size": 1, "depth": 0}
    return architecture.demand(**shape | fields)


def test_every_described_architecture_has_a_small_model() -> None:
    assert {name.split()[0] for name in ARCHITECTURES} == set(DESCRIBED)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_described_bytes_and_flops_equal_a_counted_step(name: str) -> None:
    model = small_model(name)
    architecture = describe(model)
    described, counted = step(architecture), counted_step(model, ids())
    # The description includes buffers that are never read, and the row of a tied embedding a second time.
    assert counted.weight_bytes <= described.weight_bytes <= counted.weight_bytes + 1024
    assert described.kv_bytes == counted.kv_bytes + counted.state_bytes
    assert (described.state_bytes or 0) == counted.state_bytes
    # The description excludes the position of the step and rotary angles. Torch counts part of the state arithmetic.
    states = sum(layer.state_flops for layer in architecture.layers)
    own_position = sum(layer.score_flops for layer in architecture.layers)
    minimum, maximum = described.decode_flops + own_position - states, described.decode_flops + own_position
    assert 0.997 * minimum <= counted.flops <= 1.003 * maximum
    assert architecture.parameters == sum(tensor.numel() for tensor in model.parameters())


@pytest.mark.parametrize("name", ["qwen3_next", "granitemoehybrid", "deepseek_v2", "gemma4_text"])
def test_cache_grows_by_the_described_bytes_per_token(name: str) -> None:
    model, sizes = small_model(name), []
    for tokens in (10, 11):
        with torch.no_grad():
            cache = model(ids(tokens=tokens), use_cache=True).past_key_values
        sizes.append(sum(tensor.nbytes for kind, tensor in cache_tensors(cache) if kind.startswith("kv")))
    assert sizes[1] - sizes[0] == describe(model).kv_bytes_per_token


def test_small_models_have_known_bytes() -> None:
    moe = describe(small_model("qwen3_moe", num_experts=8))
    assert (step(moe).weight_bytes, step(moe).decode_flops) == (3_157_760, 3_289_088)
    assert describe(small_model("qwen3_next")).kv_bytes_per_token == 512
    latent = describe(small_model("deepseek_v2"))
    assert latent.kv_bytes_per_token == 480
    assert [layer.feed_forward for layer in latent.layers] == ["dense", "MoE", "MoE"]


def test_qwen3_30b_reads_a_tenth_of_its_weights() -> None:
    config = Qwen3MoeConfig(
        vocab_size=151936, hidden_size=2048, num_hidden_layers=48, num_attention_heads=32, num_key_value_heads=4,
        head_dim=128, num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768, tie_word_embeddings=False,
    )  # fmt: skip
    with torch.device("meta"):
        architecture = describe(AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16))
    assert architecture.parameters == 30_532_122_624
    assert architecture.active_parameters == 3_353_032_704
    assert step(architecture).weight_bytes == pytest.approx(6.08e9, rel=2e-3)
    assert architecture.kv_bytes_per_token == 2 * 48 * 4 * 128 * 2


def test_gpt_oss_20b_has_the_published_active_parameters_and_windows() -> None:
    folder = shipped_shape("gpt-oss-20b")
    assert folder is not None
    architecture = describe(empty_model(folder))
    # The model card counts the output layer but not the embedding.
    assert architecture.active_parameters - 201_088 * 2880 == pytest.approx(3.61e9, rel=2e-3)
    attention = 2880 * (2 * 4096 + 2 * 512)
    experts = 4 * 2880 * (5760 + 2880)
    weights = 24 * (attention + 32 * 2880 + experts) + 201_088 * 2880
    # The rest are biases, sinks, norms and one row of the embedding.
    assert step(architecture).weight_bytes == pytest.approx(2 * weights, rel=1e-3)
    assert step(architecture, prompt_tokens=1000).kv_bytes == 2 * 8 * 64 * 2 * 12 * (1000 + 127)


def test_granite_has_the_states_of_its_mamba_layer() -> None:
    model = small_model("granitemoehybrid")
    convolution, state = (8 * 64 + 2 * 16) * 4, 8 * 64 * 16
    demand = step(describe(model))
    # transformers keeps the recurrent state in 32 bits.
    assert demand.state_bytes == convolution * model.dtype.itemsize + state * 4
    assert demand.kv_bytes - demand.state_bytes == 2 * 2 * 64 * model.dtype.itemsize * CONTEXT


def test_batch_reads_the_experts_selected_by_its_tokens() -> None:
    model, texts = small_model("qwen3_moe", num_experts=8), ids(8, tokens=12)
    single = experts_per_step(model, texts[:1].tolist(), steps=4)
    many = experts_per_step(model, texts.tolist(), steps=4)
    assert single == 2
    assert 2 < many <= 8
    # Eight equal prompts select the same experts.
    assert experts_per_step(model, texts[:1].tolist() * 8, steps=4) == 2
    counted = counted_step(model, texts)
    described = step(
        describe(model), batch_size=8, prompt_tokens=11, used_experts=experts_per_step(model, texts.tolist(), steps=1)
    )
    assert counted.weight_bytes <= described.weight_bytes <= counted.weight_bytes + 1024


def test_layers_that_share_kv_compute_one_prompt_position() -> None:
    architecture = describe(small_model("gemma4_text"))
    flops_of_1, flops_of_2 = (step(architecture, prompt_tokens=tokens).prefill_flops for tokens in (1, 2))
    readers = sum(2 * layer.weights for layer in architecture.layers if layer.shares_kv)
    scores = sum(layer.score_flops * (1 if layer.shares_kv else 2) for layer in architecture.layers)
    weights = architecture.other_weights + sum(layer.weights for layer in architecture.layers)
    assert flops_of_2 - flops_of_1 == 2 * weights - readers + scores


def test_cell_records_the_experts_per_step() -> None:
    bench = ModelBenchmarker(small_model("qwen3_moe", num_experts=8))
    grid = Grid(prompt_tokens=(8,), new_tokens=(4,), batch_size=(1, 8))
    single, eight = bench.run(grid, Procedure(warmup=1, warmup_limit=1, runs=1))
    assert (single.demand.experts_per_step, single.demand.experts, single.demand.weight_bytes) == (2, 8, 3_157_760)
    assert 2 < eight.demand.experts_per_step <= 8
    assert single.demand.weight_bytes < eight.demand.weight_bytes
    assert bench.no_demand is None
    # transformers' grouped product reads the experts in place.
    assert single.demand.copied_bytes is None


def test_unquantized_model_in_another_process_has_the_demand_of_the_loaded_model(tmp_path: Path) -> None:
    model = small_model("qwen3")
    checkpoint = Checkpoint(tmp_path, "some/model", None, dummy=False, config=model.config.to_dict())
    outline = outline_of(job_of(form={"quant": "fp16", "engine": "vllm"}, model={"dtype": "bfloat16"}), checkpoint)
    bench = SourceBenchmarker(TokenSource(), checkpoint.config, CpuDevice(), outline=outline)
    point = Grid(prompt_tokens=(8,), new_tokens=(4,), batch_size=(2,)).points()[0]
    assert bench.cell(point).demand == ModelBenchmarker(model).cell(point).demand
    for form in (
        {"quant": "fp16", "engine": "vllm", "gpus": 2},
        {"quant": "fp16", "engine": "vllm", "engine_options": ["quantization=fp8"]},
        {"quant": "fp16", "engine": "llama-cpp", "engine_options": ["gguf=Q8_0"]},
        {"quant": "gptq", "engine": "vllm"},
        {"quant": "fp16"},
    ):
        assert outline_of(job_of(form=form), checkpoint) is None


def test_external_engine_has_no_floor_for_a_mixture_of_experts() -> None:
    dense, mixture = (SourceBenchmarker(TokenSource(), config, CpuDevice()) for config in ({}, {"num_experts": 8}))
    assert dense.no_demand is None
    assert mixture.no_demand
    assert mixture.no_demand.reason == (
        "the engine runs in a process of its own, which does not count the experts of a step"
    )


def test_config_refused_by_transformers_raises_in_one_line() -> None:
    with (
        pytest.raises(ModelError, match=r"cannot be read: its config\.json is invalid: The `layer_types`") as refused,
        model_errors("cannot be read"),
    ):
        LlamaConfig(num_hidden_layers=1, layer_types=["warp_attention"])
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("llama4_text", "the architecture 'llama4_text' is not described (docs/models.md lists others)"),
        ("chunked", "layer 1 is of kind 'chunked_attention', which is not described"),
        ("remote", "the code of LlamaForCausalLM comes from the model's own repository"),
        ("window", "'llama' is described without layers of kind sliding window"),
    ],
)
def test_undescribed_architectures_are_refused_with_a_reason(model: str, reason: str) -> None:
    config: Any = LlamaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
    causal_lm: Any = AutoModelForCausalLM.from_config(config)
    if model == "llama4_text":
        causal_lm.config.model_type = model
    elif model == "chunked":
        causal_lm.config.layer_types = ["full_attention", "chunked_attention"]
    elif model == "window":
        causal_lm.config.layer_types, causal_lm.config.sliding_window = ["sliding_attention"] * 2, 16
    else:
        remote = type("LlamaForCausalLM", (type(causal_lm),), {"__module__": "transformers_modules.abc.modeling"})
        causal_lm.__class__ = remote
    with pytest.raises(UnsupportedError) as refused:
        describe(causal_lm)
    assert str(refused.value) == reason
