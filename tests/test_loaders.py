"""The loaders with their real libraries, on a two-layer random Qwen3."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
from pathlib import Path

import pytest
import torch

from benchmarker.core.errors import MissingLibraryError, ModelError, SpecError
from benchmarker.quantization.load import load_model
from tests.loading import EMBEDDING, LINEARS, NORMS, PARAMETERS, ROPE_BYTES, distance, facts_of, load, prepare


def test_fp16_keeps_every_weight_in_16_bit(session_model):
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


@pytest.mark.parametrize(("dtype", "width"), [("bfloat16", 2), ("float32", 4)])
def test_the_type_of_the_weights_can_be_chosen(session_model, dtype, width):
    facts = facts_of(load(session_model, "fp16", dtype=dtype))
    assert facts.weight_bytes == width * PARAMETERS + ROPE_BYTES
    assert facts.weight_classes == {f"Tensor {dtype}": 15}


def test_a_model_whose_output_layer_is_its_own(shape_folder, tmp_path):
    folder = Path(shutil.copytree(shape_folder, tmp_path / "untied"))
    config = json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(config))
    facts = facts_of(load(folder, "fp16", dummy=True))
    assert facts.parameters == PARAMETERS + EMBEDDING
    assert not facts.lm_head_tied


def test_a_model_is_loaded_in_one_call(session_model):
    model = load_model(str(session_model), device="cpu")
    assert model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=3, do_sample=False).shape == (1, 6)


def test_one_call_says_what_is_wrong_in_one_line(session_model):
    with pytest.raises(SpecError) as caught:
        load_model(str(session_model), "int4")
    assert str(caught.value) == "load_model: quant: no loader 'int4'; did you mean 'int8'?"


def test_weights_of_another_model_are_refused(model_folder):
    config = json.loads((model_folder / "config.json").read_text()) | {"num_hidden_layers": 3}
    (model_folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError) as caught:
        load(model_folder, "fp16")
    assert str(caught.value) == (
        f"{model_folder}: the checkpoint lacks 11 of the model's tensors "
        "(model.layers.2.input_layernorm.weight first); is its config.json that of another model?"
    )


def test_weights_in_other_shapes_are_refused(model_folder):
    config = json.loads((model_folder / "config.json").read_text()) | {"intermediate_size": 512}
    (model_folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError) as caught:
        load(model_folder, "fp16")
    assert str(caught.value) == (
        f"{model_folder}: its tensors have other shapes than its config.json says; --verbose lists them"
    )


@pytest.mark.parametrize(("quant", "library"), [("int8", "torchao"), ("bnb4", "bitsandbytes"), ("gptq", "optimum")])
def test_a_missing_library_is_said_before_the_model_is_looked_for(quant, library, monkeypatch):
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
def test_int8_stores_a_byte_a_weight_and_for_each_row_a_scale_in_32_bits_and_a_zero_point(session_model, dtype):
    loaded = load(session_model, "int8", dtype=dtype)
    facts = facts_of(loaded)
    row_bytes = 2 * (128 + 64 + 64 + 128 + 256 + 256 + 128) * (4 + 1)
    assert facts.parameters == PARAMETERS
    assert facts.weight_bytes == LINEARS + row_bytes + 2 * (EMBEDDING + NORMS) + ROPE_BYTES
    assert facts.quantized_fraction == pytest.approx(LINEARS / PARAMETERS)
    assert facts.linear_classes == {"Linear": 15}
    assert facts.weight_classes == {"Int8Tensor int8": 14, f"Tensor {dtype}": 1}
    assert facts.notes == (f"lm_head is not quantized: it stays in {dtype}, tied to the embedding",)
    assert distance(loaded, load(session_model, "fp16", dtype=dtype)) < 0.05


@pytest.mark.slow
def test_int8_can_share_a_scale_within_a_group(session_model):
    per_row, per_group = load(session_model, "int8"), load(session_model, "int8", group_size=32)
    assert facts_of(per_group).weight_bytes > facts_of(per_row).weight_bytes
    assert distance(per_group, load(session_model, "fp16")) < 0.05


@pytest.mark.slow
def test_int8_leaves_the_compilers_flags_alone(session_model):
    import torch._inductor.config as inductor

    before = inductor.coordinate_descent_tuning, torch.get_float32_matmul_precision()
    load(session_model, "int8")
    assert (inductor.coordinate_descent_tuning, torch.get_float32_matmul_precision()) == before


@pytest.mark.slow
def test_int8_groups_that_do_not_divide(session_model):
    with pytest.raises(SpecError) as caught:
        load(session_model, "int8", group_size=48)
    assert str(caught.value) == (
        "int8: options.group_size=48 does not divide the model's hidden size of 128; "
        "choose one that does, or leave it out for one scale per row"
    )


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_bnb4_stores_half_a_byte_a_weight_with_its_scales(session_model, dtype):
    loaded = load(session_model, "bnb4", dtype=dtype)
    facts = facts_of(loaded)
    scale_bytes, code_bytes = 4 * LINEARS // 64, 14 * 16 * 4
    at_least = LINEARS // 2 + scale_bytes + 2 * (EMBEDDING + NORMS) + ROPE_BYTES
    assert at_least < facts.weight_bytes <= at_least + code_bytes
    assert facts.parameters == PARAMETERS
    assert facts.quantized_fraction == pytest.approx(LINEARS / PARAMETERS)
    assert facts.linear_classes == {"Linear": 1, "Linear4bit": 14}
    assert facts.weight_classes == {"Params4bit uint8": 14, f"Tensor {dtype}": 1}
    assert distance(loaded, load(session_model, "fp16", dtype=dtype)) < 0.5


@pytest.mark.slow
def test_double_quantization_makes_the_scales_smaller(session_model):
    single, double = load("qwen3-tiny", "bnb4", dummy=True), load("qwen3-tiny", "bnb4", dummy=True, double_quant=True)
    assert facts_of(double).weight_bytes < facts_of(single).weight_bytes
    assert facts_of(double).parameters == facts_of(single).parameters


@pytest.mark.slow
def test_a_checkpoint_in_4_bit_already_keeps_its_own_config(session_model, tmp_path):
    load(session_model, "bnb4").model.save_pretrained(tmp_path / "nf4")
    loaded = load(tmp_path / "nf4", "bnb4", quant_type="fp4")
    assert loaded.notes == (
        "the checkpoint is bitsandbytes 4 bit already (quant_type=nf4, double_quant=False)",
        "its own config won over quant_type=fp4",
    )
    assert facts_of(loaded).linear_classes == {"Linear": 1, "Linear4bit": 14}
