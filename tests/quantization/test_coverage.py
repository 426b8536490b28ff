"""Test the coverage of quantization by kind of module on a two-layer mixture of experts with some int8 weights."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarker.core.errors import WrongResultError
from benchmarker.quantization.coverage import coverage_after_forward, refusal, weight_coverage
from benchmarker.quantization.load import load_model
from benchmarker.quantization.registry import LOADERS
from benchmarker.schema.model import ModuleKind, ModuleWeights, WeightCoverage
from benchmarker.workloads.generation.generation_bench import GenerationBench
from benchmarker.workloads.generation.reading.generation_caveats import caveats
from tests.records import load, record

ATTENTION = 2 * (64 * 64 + 2 * 64 * 32 + 64 * 64)
EXPERTS = 2 * 8 * 3 * 64 * 32
HEAD_NORMS = 2 * 2 * 16
NORMS = 2 * 2 * 64 + 64
HEAD = 256 * 64


@pytest.fixture
def mixture():
    config = AutoConfig.for_model(
        "qwen3_moe",
        vocab_size=256,
        hidden_size=64,
        moe_intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        num_experts=8,
        num_experts_per_tok=2,
        decoder_sparse_step=1,
    )
    return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()


def quantize_linears(model):
    for module in model.modules():
        if type(module) is nn.Linear and module is not model.get_output_embeddings():
            module.weight = nn.Parameter(module.weight.to(torch.int8), requires_grad=False)


def coverage_of(**shares: tuple[int, int]) -> WeightCoverage:
    kinds: dict[ModuleKind, ModuleWeights] = {
        kind.replace("_", " "): ModuleWeights(parameters=count, quantized_parameters=quantized, bytes_by_type={})
        for kind, (count, quantized) in shares.items()
    }
    return WeightCoverage(kinds=kinds)


def test_coverage_counts_weights_types_and_quantized_weights_by_kind(mixture):
    quantize_linears(mixture)
    kinds = weight_coverage(mixture).kinds
    measured = {
        kind: (entry.parameters, entry.quantized_parameters, entry.bytes_by_type) for kind, entry in kinds.items()
    }
    assert measured == {
        "output layer": (HEAD, 0, {"bfloat16": 2 * HEAD}),
        "embedding rows": (64, 0, {"bfloat16": 2 * 64}),
        "attention": (ATTENTION + HEAD_NORMS, ATTENTION, {"int8": ATTENTION, "bfloat16": 2 * HEAD_NORMS}),
        "router": (2 * 8 * 64, 0, {"bfloat16": 2 * 2 * 8 * 64}),
        "experts": (EXPERTS, 0, {"bfloat16": 2 * EXPERTS}),
        "other": (NORMS, 0, {"bfloat16": 2 * NORMS}),
    }


def test_a_tied_output_layer_counts_once(mixture):
    mixture.config.tie_word_embeddings = True
    mixture.tie_weights()
    kinds = weight_coverage(mixture).kinds
    assert kinds["output layer"].parameters == HEAD
    assert "embedding rows" not in kinds


def test_weights_unpacked_in_the_first_forward_are_not_quantized(mixture):
    quantize_linears(mixture)
    first = mixture.model.layers[0].self_attn.q_proj
    assert weight_coverage(mixture).kinds["attention"].quantized_parameters == ATTENTION

    class Unpacking(nn.Linear):
        def forward(self, states):
            self.weight = nn.Parameter(torch.zeros(self.weight.shape, dtype=torch.bfloat16), requires_grad=False)
            return super().forward(states)

    for module in mixture.modules():
        if type(module) is nn.Linear and module.weight.dtype == torch.int8:
            module.__class__ = Unpacking
    assert coverage_after_forward(mixture).kinds["attention"].quantized_parameters == 0
    assert first.weight.dtype == torch.bfloat16


def test_dense_4b_model_with_16_bit_output_layer_has_no_caveat():
    dense = coverage_of(output_layer=(388_956_160, 0), MLP=(3_633_315_840, 3_633_315_840), other=(196_096, 0))
    assert dense.words == "10 % of the weights are not quantized (output layer 10 %)"
    assert dense.unquantized_share == pytest.approx(0.0967, abs=1e-4)
    assert coverage_caveats(dense) == []


def test_more_than_ten_percent_unquantized_weights_give_a_caveat():
    coverage = coverage_of(attention=(60, 60), experts=(30, 0), router=(10, 0))
    assert coverage_caveats(coverage) == ["int8: 40 % of the weights are not quantized (experts 30 %, router 10 %)."]


def coverage_caveats(coverage):
    lines = caveats([record("int8", load=load(coverage=coverage))], [])
    return [line for line in lines if "not quantized (" in line]


def test_less_than_half_quantized_is_refused_with_the_librarys_limit():
    coverage = coverage_of(attention=(24, 24), experts=(57, 0), output_layer=(19, 0))
    assert refusal(LOADERS["bnb4"], coverage) == (
        "less than half of the model is bnb4: 76 % of the weights are not quantized (experts 57 %, output layer 19 %); "
        "bitsandbytes does not quantize these experts, which are fused in 3-D parameters; measure the unquantized model"
    )
    assert refusal(LOADERS["bnb4"], coverage_of(MLP=(50, 50), output_layer=(50, 0))) is None
    assert refusal(LOADERS["fp16"], None) is None


@pytest.mark.parametrize(
    ("quant", "message"),
    [
        (
            "bnb4",
            "less than half of the model is bnb4: 76 % of the weights are not quantized (experts 57 %, output layer "
            "19 %); bitsandbytes does not quantize these experts, which are fused in 3-D parameters; "
            "measure the unquantized model",
        ),
        (
            "mxfp4",
            "ran mostly in bfloat16: transformers keeps fused experts and other layers unpacked; 76 % of the weights "
            "are not quantized (experts 57 %, output layer 19 %)",
        ),
    ],
)
def test_only_formats_unpacked_by_transformers_are_reported_as_unpacked(quant, message):
    kinds = {"attention": (24, 24), "experts": (57, 0), "output layer": (19, 0)}
    coverage = WeightCoverage(
        kinds={
            kind: ModuleWeights(parameters=count, quantized_parameters=quantized, bytes_by_type={"bfloat16": 2 * count})
            for kind, (count, quantized) in kinds.items()
        }
    )
    bench = object.__new__(GenerationBench)
    bench._job = SimpleNamespace(variant=SimpleNamespace(quant=quant))
    bench.source = SimpleNamespace(loaded=SimpleNamespace(coverage=coverage))
    with pytest.raises(WrongResultError) as caught:
        bench.correct(None)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("path", "classes", "kind"),
    [
        ("model.layers.0.mlp.gate", "M Layers Layer Qwen3MoeSparseMoeBlock Linear", "router"),
        ("model.layers.0.mlp.shared_expert_gate", "M Layers Layer Qwen3NextSparseMoeBlock Linear", "router"),
        ("model.layers.0.mlp.shared_experts.up_proj", "M Layers Layer DeepseekV2Moe DeepseekV2MLP Linear", "MLP"),
        ("model.layers.0.linear_attn.in_proj_a", "M Layers Layer Qwen3_5GatedDeltaNet Linear", "linear attention"),
        ("model.layers.0.mamba.in_proj", "M Layers Layer GraniteMoeHybridMambaLayer Linear", "linear attention"),
        ("backbone.layers.0.mixer.q_proj", "M Layers NemotronHBlock NemotronHAttention Linear", "attention"),
        ("transformer.h.0.mlp.c_fc", "M H GPT2Block GPT2MLP Conv1D", "MLP"),
        ("model.layers.0.input_layernorm", "M Layers JambaMambaDecoderLayer RMSNorm", "other"),
    ],
)
def test_module_kind_follows_the_innermost_class_name(path, classes, kind):
    from benchmarker.quantization.coverage import module_kind

    names = path.split(".")
    modules = {
        ".".join(names[: length + 1]): type(name, (nn.Module,), {})() for length, name in enumerate(classes.split())
    }
    assert module_kind(modules, path, SimpleNamespace()) == (kind, 1)


def test_int8_quantizes_fused_experts(mixture, tmp_path):
    mixture.save_pretrained(tmp_path)
    ids = torch.arange(8)[None]
    with torch.no_grad():
        expected = mixture(ids).logits.float()
        loaded = load_model(str(tmp_path), "int8", dtype="bfloat16", device="cpu")
        result = loaded(ids).logits.float()
    experts = weight_coverage(loaded).kinds["experts"]
    assert (experts.parameters, experts.quantized_parameters) == (EXPERTS, EXPERTS)
    assert experts.bytes_by_type["int8"] >= EXPERTS
    assert loaded.config._experts_implementation == "eager"
    assert (result - expected).norm() / expected.norm() < 0.02
