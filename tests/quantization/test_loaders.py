"""Test the loaders with their real libraries on a random two-layer Qwen3."""

from __future__ import annotations

import importlib.metadata
import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torchao.quantization import Int4TilePackedTo4dTensor

from benchmarker.checkpoints.base import Checkpoint, Target
from benchmarker.core.errors import (
    BenchmarkerError,
    DeviceError,
    MissingLibraryError,
    ModelError,
    SpecError,
    UnsupportedError,
)
from benchmarker.quantization import torchao_dynamic, torchao_int4
from benchmarker.quantization.base import Loaded, Options, check_supported
from benchmarker.quantization.load import load_facts, load_model
from tests.loading import EMBEDDING, LINEARS, NORMS, PARAMETERS, ROPE_BYTES, distance, facts_of, load, logits, prepare


@dataclass(frozen=True)
class Gpu:
    """GPU properties that `install` makes torch report."""

    name: str
    capability: tuple[int, int]
    hip: str | None = None

    def install(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: self.name)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: self.capability)
        monkeypatch.setattr(torch.version, "hip", self.hip)


def test_fp16_stores_every_weight_in_16_bit(session_model):
    loaded = load(session_model, "fp16")
    facts = facts_of(loaded)
    assert facts.parameters == PARAMETERS
    assert facts.weight_bytes == 2 * PARAMETERS + ROPE_BYTES
    assert facts.bits_per_weight == pytest.approx(16, abs=0.01)
    assert facts.quantized_fraction == 0
    assert facts.linear_classes == {"Linear": 15}
    assert facts.weight_classes == {"Tensor float16": 15}
    assert (facts.lm_head_dtype, facts.lm_head_tied) == ("float16", True)
    assert not loaded.model.training


@pytest.mark.parametrize(("dtype", "element_bytes"), [("bfloat16", 2), ("float32", 4)])
def test_dtype_sets_the_type_of_the_weights(session_model, dtype, element_bytes):
    facts = facts_of(load(session_model, "fp16", dtype=dtype))
    assert facts.weight_bytes == element_bytes * PARAMETERS + ROPE_BYTES
    assert facts.weight_classes == {f"Tensor {dtype}": 15}


def test_untied_output_layer_counts_as_parameters(shape_folder, tmp_path):
    folder = Path(shutil.copytree(shape_folder, tmp_path / "untied"))
    config = json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(config))
    facts = facts_of(load(folder, "fp16", dummy=True))
    assert facts.parameters == PARAMETERS + EMBEDDING
    assert not facts.lm_head_tied


def test_load_model_returns_a_working_model(session_model):
    model = load_model(str(session_model), device="cpu")
    assert model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=3, do_sample=False).shape == (1, 6)


def test_load_model_refuses_an_unknown_quantization(session_model):
    with pytest.raises(SpecError) as caught:
        load_model(str(session_model), "bnb")
    assert str(caught.value) == "load_model: quant: no quantization 'bnb'; did you mean 'bnb8'?"


def test_load_model_advises_its_arguments_and_no_options():
    with pytest.raises(ModelError, match='a shape without weights; use load_format="dummy" '):
        load_model("qwen3-tiny")


def test_checkpoint_with_missing_tensors_is_refused(model_folder):
    config = json.loads((model_folder / "config.json").read_text()) | {"num_hidden_layers": 3}
    (model_folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError) as caught:
        load(model_folder, "fp16")
    assert str(caught.value) == (
        f"{model_folder}: the checkpoint lacks 11 of the model's tensors, such as "
        "model.layers.2.input_layernorm.weight; is its config.json that of another model?"
    )


def test_checkpoint_with_more_layers_than_its_config_is_refused(model_folder):
    config = json.loads((model_folder / "config.json").read_text())
    layers = config["num_hidden_layers"] - 1
    (model_folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": layers}))
    with pytest.raises(ModelError) as caught:
        load(model_folder, "fp16")
    assert str(caught.value) == (
        f"{model_folder}: the checkpoint has tensors of layers that its config.json does not have "
        f"(model.layers.{layers}.input_layernorm.weight first); is it that of another model?"
    )


def test_attention_heads_not_divisible_by_kv_heads_are_refused(model_folder):
    config = json.loads((model_folder / "config.json").read_text()) | {"num_key_value_heads": 3}
    (model_folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"num_attention_heads \(2\) is not a multiple of num_key_value_heads \(3\)"):
        load(model_folder, "fp16")


def test_checkpoint_with_mismatched_shapes_is_refused(model_folder):
    config = json.loads((model_folder / "config.json").read_text()) | {"intermediate_size": 512}
    (model_folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError) as caught:
        load(model_folder, "fp16")
    assert str(caught.value) == (
        f"{model_folder}: its tensors have other shapes than its config.json states; --verbose lists them"
    )


@pytest.mark.parametrize(
    ("quant", "library"),
    [
        ("int8", "torchao"),
        ("int8-dynamic", "torchao"),
        ("fp8", "torchao"),
        ("int4", "torchao"),
        ("bnb4", "bitsandbytes"),
        ("bnb8", "bitsandbytes"),
        ("gptq", "optimum"),
    ],
)
def test_missing_library_is_reported_before_the_model_is_searched(quant, library, monkeypatch):
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(MissingLibraryError) as caught:
        prepare("no/such/model", quant)
    assert str(caught.value) == (
        f"{quant}: the library '{library}' is not installed; pip install -e '.[{quant}]' in benchmarker's folder"
    )


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_int8_weight_bytes_include_scale_and_zero_point_per_row(session_model, dtype):
    loaded = load(session_model, "int8", dtype=dtype)
    facts = facts_of(loaded)
    row_bytes = 2 * (128 + 64 + 64 + 128 + 256 + 256 + 128) * (4 + 1)
    assert facts.parameters == PARAMETERS
    assert facts.weight_bytes == LINEARS + row_bytes + 2 * (EMBEDDING + NORMS) + ROPE_BYTES
    assert facts.quantized_fraction == pytest.approx(LINEARS / PARAMETERS)
    assert facts.linear_classes == {"Linear": 15}
    assert facts.weight_classes == {"Int8Tensor int8": 14, f"Tensor {dtype}": 1}
    assert (facts.lm_head_dtype, facts.lm_head_tied, facts.notes) == (dtype, True, ())
    assert distance(loaded, load(session_model, "fp16", dtype=dtype)) < 0.05


@pytest.mark.slow
def test_int8_supports_scales_per_group(session_model):
    per_row, per_group = load(session_model, "int8"), load(session_model, "int8", group_size=32)
    assert facts_of(per_group).weight_bytes > facts_of(per_row).weight_bytes
    assert distance(per_group, load(session_model, "fp16")) < 0.05


@pytest.mark.slow
def test_int8_does_not_change_inductor_settings(session_model):
    import torch._inductor.config as inductor

    before = inductor.coordinate_descent_tuning, torch.get_float32_matmul_precision()
    load(session_model, "int8")
    assert (inductor.coordinate_descent_tuning, torch.get_float32_matmul_precision()) == before


@pytest.mark.slow
def test_int8_refuses_a_group_size_that_does_not_divide(session_model):
    with pytest.raises(SpecError) as caught:
        load(session_model, "int8", group_size=48)
    assert str(caught.value) == (
        "int8: options.group_size=48 does not divide the model's hidden size of 128; choose one that does"
    )


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_bnb4_weight_bytes_include_its_scales(session_model, dtype):
    loaded = load(session_model, "bnb4", dtype=dtype)
    facts = facts_of(loaded)
    scale_bytes, codebook_bytes = 4 * LINEARS // 64, 14 * 16 * 4
    packed_bytes = LINEARS // 2 + scale_bytes + 2 * (EMBEDDING + NORMS) + ROPE_BYTES
    assert packed_bytes < facts.weight_bytes <= packed_bytes + codebook_bytes
    assert facts.parameters == PARAMETERS
    assert facts.quantized_fraction == pytest.approx(LINEARS / PARAMETERS)
    assert facts.linear_classes == {"Linear": 1, "Linear4bit": 14}
    assert facts.weight_classes == {"Params4bit uint8": 14, f"Tensor {dtype}": 1}
    assert distance(loaded, load(session_model, "fp16", dtype=dtype)) < 0.5


@pytest.mark.slow
def test_bnb4_layers_without_whole_blocks_run_on_a_cpu(model_folder):
    config = json.loads((model_folder / "config.json").read_text()) | {"intermediate_size": 272}
    (model_folder / "config.json").write_text(json.dumps(config))
    loaded = load(model_folder, "bnb4", dummy=True, dtype="bfloat16")
    assert distance(loaded, load(model_folder, "fp16", dummy=True, dtype="bfloat16")) < 0.6


def test_double_quantization_reduces_the_weight_bytes(session_model):
    single, double = load("qwen3-tiny", "bnb4", dummy=True), load("qwen3-tiny", "bnb4", dummy=True, double_quant=True)
    assert facts_of(double).weight_bytes < facts_of(single).weight_bytes
    assert facts_of(double).parameters == facts_of(single).parameters


@pytest.mark.slow
def test_stored_bnb4_config_overrides_the_options(session_model, tmp_path):
    load(session_model, "bnb4").model.save_pretrained(tmp_path / "nf4")
    loaded = load(tmp_path / "nf4", "bnb4", quant_type="fp4")
    assert loaded.notes == (
        "the checkpoint is bitsandbytes 4 bit (quant_type=nf4, double_quant=False)",
        "its own config won over quant_type=fp4",
    )
    assert facts_of(loaded).linear_classes == {"Linear": 1, "Linear4bit": 14}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_bnb8_weight_bytes_include_a_scale_per_row(session_model, dtype):
    loaded = load(session_model, "bnb8", dtype=dtype)
    facts = facts_of(loaded)
    row_bytes = 2 * (128 + 64 + 64 + 128 + 256 + 256 + 128) * 4
    assert facts.parameters == PARAMETERS
    assert facts.weight_bytes == LINEARS + row_bytes + 2 * (EMBEDDING + NORMS) + ROPE_BYTES
    assert facts.quantized_fraction == pytest.approx(LINEARS / PARAMETERS)
    assert facts.linear_classes == {"Linear": 1, "Linear8bitLt": 14}
    assert facts.weight_classes == {"Int8Params int8": 14, f"Tensor {dtype}": 1}
    assert distance(loaded, load(session_model, "fp16", dtype=dtype)) < 0.1
    assert facts_of(loaded).weight_bytes == facts.weight_bytes, "the first forward moves the scales elsewhere"


@pytest.mark.slow
def test_bits_per_weight_of_a_real_model_include_scales():
    bits = {quant: facts_of(load("qwen3-small", quant, dtype="bfloat16")).bits_per_weight for quant in ("int8", "bnb8")}
    assert bits == {"int8": pytest.approx(9.81, abs=0.005), "bnb8": pytest.approx(9.78, abs=0.005)}


@pytest.mark.slow
def test_bnb8_threshold_computes_outliers_in_16_bit(session_model):
    unquantized = load(session_model, "fp16", dtype="bfloat16")
    # With a threshold of 0.01, almost every channel is computed in 16 bit.
    low, off = (load(session_model, "bnb8", dtype="bfloat16", threshold=threshold) for threshold in (0.01, 0))
    assert [module.state.threshold for module in low.model.modules() if hasattr(module, "state")] == [0.01] * 14
    assert not torch.equal(logits(low), logits(off))
    assert distance(low, unquantized) < distance(off, unquantized)


@pytest.mark.slow
def test_bitsandbytes_checkpoints_load_with_their_number_of_bits(session_model, tmp_path):
    for quant in ("bnb8", "bnb4"):
        load(session_model, quant).model.save_pretrained(tmp_path / quant)
    loaded = load(tmp_path / "bnb8", "bnb8", threshold=3.0)
    assert loaded.notes == (
        "the checkpoint is bitsandbytes 8 bit (threshold=6.0)",
        "its own config won over threshold=3.0",
    )
    assert facts_of(loaded).linear_classes == {"Linear": 1, "Linear8bitLt": 14}
    for quant, other in (("bnb4", "bnb8"), ("bnb8", "bnb4")):
        with pytest.raises(ModelError, match=f"which --quant {quant} cannot take; use --quant {other}, or"):
            load(tmp_path / other, quant)


def test_int4_on_a_cpu_is_refused_before_the_model_is_searched():
    with pytest.raises(DeviceError) as caught:
        prepare("no/such/model", "int4", dtype="bfloat16")
    assert str(caught.value) == (
        "int4: needs an NVIDIA GPU of compute capability 8.0; this is the CPU. bnb4 and gptq run here too"
    )


@pytest.mark.parametrize(
    ("gpu", "dtype", "line"),
    [
        (
            Gpu("NVIDIA T4", (7, 5)),
            "bfloat16",
            "needs an NVIDIA GPU of compute capability 8.0; this is NVIDIA T4 (7.5)",
        ),
        (
            Gpu("AMD Instinct MI300X", (9, 4), hip="6.4"),
            "bfloat16",
            "needs an NVIDIA GPU of compute capability 8.0; this is AMD Instinct",
        ),
        (Gpu("NVIDIA H100", (9, 0)), "float16", "computes in bfloat16, not float16; use --dtype bfloat16"),
    ],
)
def test_int4_refuses_unsupported_gpus_and_dtypes(gpu, dtype, line, monkeypatch):
    gpu.install(monkeypatch)
    with pytest.raises(BenchmarkerError, match=re.escape(line)):
        check_supported(torchao_int4.LOADER, torchao_int4.Int4Options(), Target("cuda:0", dtype))


def test_int4_supports_hopper(monkeypatch):
    Gpu("NVIDIA H100", (9, 0)).install(monkeypatch)
    torchao_int4.check(torchao_int4.Int4Options(), Target("cuda:0", "bfloat16"))


@pytest.mark.parametrize(("scales", "algorithm"), [("range", "tinygemm"), ("hqq", "hqq")])
def test_int4_scales_option_sets_the_algorithm_and_not_the_packing(scales, algorithm):
    config = torchao_int4.torchao_config(torchao_int4.Int4Options(group_size=64, scales=scales))
    assert config.int4_choose_qparams_algorithm == algorithm
    assert (config.group_size, config.int4_packing_format) == (64, "tile_packed_to_4d")
    assert config.set_inductor_config is False


def test_int4_refuses_a_group_size_that_does_not_divide(tmp_path):
    checkpoint = Checkpoint(
        tmp_path, "some/model", None, dummy=False, config={"hidden_size": 256, "intermediate_size": 96}
    )
    with pytest.raises(SpecError) as caught:
        torchao_int4.check_groups("int4", checkpoint, 64)
    assert str(caught.value) == (
        "int4: options.group_size=64 does not divide the model's intermediate size of 96; choose one that does"
    )


def test_packed_int4_codes_count_as_quantized_weights(session_model):
    """Count torchao's packed tensor, built of zeros because its packing kernel needs a GPU."""
    loaded = load(session_model, "fp16", dtype="bfloat16")
    up = loaded.model.model.layers[0].mlp.up_proj
    words = torch.zeros(up.out_features // 8, up.in_features // 128, 32, 4, dtype=torch.int32)
    scales = torch.zeros(up.in_features // 32, up.out_features, 2, dtype=torch.bfloat16)
    int4_tensor = Int4TilePackedTo4dTensor(words, scales, [1, 32], up.weight.shape)
    before = facts_of(loaded)
    up.weight = torch.nn.Parameter(int4_tensor, requires_grad=False)
    facts = facts_of(loaded)
    weights = up.in_features * up.out_features
    assert (facts.parameters, facts.quantized_fraction) == (PARAMETERS, pytest.approx(weights / PARAMETERS))
    assert before.weight_bytes - facts.weight_bytes == 2 * weights - (weights // 2 + weights // 32 * 4)
    assert facts.weight_classes["Int4TilePackedTo4dTensor int32"] == 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available() or torch.version.hip is not None, reason="needs an NVIDIA GPU")
def test_int4_reduces_weight_bytes_and_preserves_logits(shape_folder, tmp_path):
    folder = Path(shutil.copytree(shape_folder, tmp_path / "wide"))
    # torchao pads int4 rows to 1024 inputs, so narrower layers would need as many bytes as in 16 bit.
    wide = {"hidden_size": 1024, "intermediate_size": 2048, "num_attention_heads": 8, "head_dim": 128}
    (folder / "config.json").write_text(json.dumps(json.loads((folder / "config.json").read_text()) | wide))
    results = {}
    for quant, options in (("fp16", {}), ("int8", {}), ("int4", {}), ("int4", {"group_size": 32})):
        model = load_model(str(folder), quant, device="cuda", dtype="bfloat16", load_format="dummy", options=options)
        facts = load_facts(Loaded(model), load_s=1.0, peak_bytes=None)
        ids = torch.arange(10, 30, device="cuda")[None]
        with torch.no_grad():
            results[quant, *options.values()] = facts, model(ids).logits.float()
    unquantized_facts, unquantized = results["fp16",]
    for key in (("int4",), ("int4", 32)):
        facts, quantized = results[key]
        assert facts.weight_bytes < results["int8",][0].weight_bytes < unquantized_facts.weight_bytes
        assert facts.quantized_fraction == results["int8",][0].quantized_fraction > 0
        assert facts.weight_classes["Int4TilePackedTo4dTensor int32"] == 14
        assert (quantized - unquantized).norm() < 0.5 * unquantized.norm()
    assert results["int4", 32][0].weight_bytes > results["int4",][0].weight_bytes


def test_int8_dynamic_also_quantizes_activations(session_model):
    loaded, weight_only = (
        load(session_model, "int8-dynamic", dtype="float32"),
        load(session_model, "int8", dtype="float32"),
    )
    unquantized = load(session_model, "fp16", dtype="float32")
    assert facts_of(loaded).weight_classes == {"Int8Tensor int8": 14, "Tensor float32": 1}
    assert facts_of(loaded).quantized_fraction == pytest.approx(LINEARS / PARAMETERS)
    # Quantized activations add to the error of quantized weights.
    assert distance(weight_only, unquantized) < distance(loaded, unquantized) < 0.1


def test_fp8_on_a_cpu_is_refused_before_the_model_is_searched():
    with pytest.raises(DeviceError) as caught:
        prepare("no/such/model", "fp8", dtype="bfloat16")
    assert str(caught.value) == (
        "fp8: needs an NVIDIA GPU of compute capability 8.9; this is the CPU. int8-dynamic runs here"
    )


@pytest.mark.parametrize(
    ("capability", "dtype", "line"),
    [
        (
            (8, 0),
            "bfloat16",
            "fp8: needs an NVIDIA GPU of compute capability 8.9; this is NVIDIA A100 (8.0). int8-dynamic runs here",
        ),
        ((9, 0), "float16", "fp8: computes in bfloat16, not float16; use --dtype bfloat16"),
    ],
)
def test_fp8_refuses_unsupported_gpus_and_dtypes(capability, dtype, line, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA A100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    with pytest.raises((DeviceError, SpecError)) as caught:
        check_supported(torchao_dynamic.FP8, Options(), Target("cuda:0", dtype))
    assert str(caught.value) == line


@pytest.mark.parametrize("quant", ["int8", "int8-dynamic"])
def test_quantization_without_matching_layers_raises(quant, tmp_path):
    config = {"model_type": "gpt2", "n_embd": 64, "n_layer": 1, "n_head": 4, "vocab_size": 256}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedError) as caught:
        load(tmp_path, quant, dummy=True)
    assert str(caught.value) == (
        f"{quant}: no weight of GPT2LMHeadModel was quantized: this quantization takes nn.Linear, and the model's "
        "layers are Conv1D (4); use --quant fp16, or a quantization that takes them"
    )
