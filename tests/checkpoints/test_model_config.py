"""Test the language model's config: the text part of multimodal models, and refusals of other models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarker.checkpoints.base import Target
from benchmarker.checkpoints.read_model import language_model_config
from benchmarker.core.errors import ModelError
from benchmarker.quantization.load import find_checkpoint, load_quantized
from benchmarker.quantization.registry import LOADERS
from benchmarker.schema.model import ModelSpec
from benchmarker.workloads.generation.spec import VariantSpec

TEXT = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 256,
}
VISION = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 56,
    "patch_size": 14,
}


def folder_of(tmp_path: Path, config: dict) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def resolved(tmp_path: Path, config: dict) -> dict:
    return language_model_config(folder_of(tmp_path, config), config, "MODEL", trusted=False)


@pytest.mark.parametrize(
    ("config", "kind", "architecture"),
    [
        ({"model_type": "gemma3", "text_config": TEXT}, "gemma3_text", "Gemma3ForCausalLM"),
        ({"model_type": "qwen3_5", "text_config": TEXT}, "qwen3_5_text", "Qwen3_5ForCausalLM"),
        ({"model_type": "mistral3", "text_config": TEXT | {"model_type": "mistral"}}, "mistral", "MistralForCausalLM"),
    ],
)
def test_text_part_of_a_multimodal_config_is_used(tmp_path, config, kind, architecture):
    text = resolved(tmp_path, config | {"dtype": "bfloat16", "quantization_config": {"quant_method": "x"}})
    assert (text["model_type"], text["architectures"]) == (kind, [architecture])
    assert text["vocab_size"] == 256
    assert text["dtype"] == "bfloat16"
    assert text["quantization_config"] == {"quant_method": "x"}


def test_omitted_config_fields_have_the_architectures_defaults(tmp_path):
    assert resolved(tmp_path, {"model_type": "gemma3", "text_config": {}})["vocab_size"] == 262_208
    assert resolved(tmp_path, {"model_type": "gpt2", "n_embd": 64})["vocab_size"] == 50_257


def test_text_model_config_is_unchanged(tmp_path):
    config = {"model_type": "qwen3", **TEXT}
    assert resolved(tmp_path, config) is config


def test_encoder_architecture_configured_as_a_decoder_is_measured(tmp_path):
    config = {"model_type": "bert", "is_decoder": True, **TEXT}
    assert resolved(tmp_path, config) is config


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"model_type": "mamba2", "vocab_size": 256},
            "MODEL: model_type 'mamba2' has no attention heads (num_attention_heads), from which the KV cache and "
            "the roofline are computed; give a model with attention layers",
        ),
        (
            {"model_type": "siglip_vision_model"},
            "MODEL: model_type 'siglip_vision_model' has no vocabulary (vocab_size); give a language model",
        ),
        (
            {"model_type": "qwen3_vl", "text_config": TEXT},
            "MODEL: transformers has no causal language model for the text part (model_type 'qwen3_vl_text') of "
            "model_type 'qwen3_vl'; give a checkpoint of a text model",
        ),
        (
            {"model_type": "t5", "is_encoder_decoder": True},
            "MODEL: model_type 't5' is an encoder-decoder; give a decoder, such as qwen3-small",
        ),
        (
            {"model_type": "bert", **TEXT},
            "MODEL: model_type 'bert' is an encoder, which predicts masked tokens; give a decoder, such as qwen3-small",
        ),
    ],
)
def test_unsupported_models_are_refused(tmp_path, config, message):
    with pytest.raises(ModelError) as caught:
        resolved(tmp_path, config)
    assert str(caught.value) == message


def load(folder: Path, quant: str, *, dummy: bool):
    spec = ModelSpec(id=str(folder), load_format="dummy" if dummy else "auto", dtype="float32")
    checkpoint = find_checkpoint(spec, VariantSpec(name=quant, quant=quant))
    return load_quantized(quant, checkpoint, LOADERS[quant].options(), Target("cpu", "float32"))


@torch.no_grad()
def test_text_part_matches_the_logits_of_the_multimodal_model(tmp_path):
    from transformers import Mistral3Config, Mistral3ForConditionalGeneration

    config = Mistral3Config(
        text_config=TEXT | {"model_type": "mistral"}, vision_config=VISION | {"model_type": "pixtral"}
    )
    multimodal = Mistral3ForConditionalGeneration(config).eval()
    multimodal.save_pretrained(tmp_path)
    ids = torch.arange(10, 30)[None]
    loaded = load(tmp_path, "fp16", dummy=False)
    torch.testing.assert_close(loaded.model(ids).logits, multimodal(ids).logits)
    assert loaded.notes == ("only the text part (mistral) of the multimodal checkpoint is loaded",)


def test_random_weights_of_a_multimodal_config_are_of_its_text_part(tmp_path):
    model = load(folder_of(tmp_path, {"model_type": "gemma3", "text_config": TEXT}), "fp16", dummy=True).model
    assert type(model).__name__ == "Gemma3ForCausalLM"
