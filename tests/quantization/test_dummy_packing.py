"""Test random weights in stored formats by reading them with the libraries that define the formats."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from benchmarker.core.errors import ModelError, SpecError
from benchmarker.execution.jobs import make_job
from benchmarker.quantization.dummy_packing import SCHEMES
from benchmarker.quantization.load import find_checkpoint
from benchmarker.quantization.registry import LOADERS
from benchmarker.quantization.stored_formats import compressed_scheme
from benchmarker.schema.model import ModelSpec, QuantSpec
from tests.loading import prepare

LAYER = "model.layers.1.mlp.up_proj"


def tensors_of(folder: Path, layer: str = LAYER) -> dict[str, Tensor]:
    stored = load_file(folder / "model.safetensors")
    return {name.removeprefix(f"{layer}."): tensor for name, tensor in stored.items() if name.startswith(f"{layer}.")}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_compressed_tensors_round_trips_random_weights(shape_folder, scheme):
    pytest.importorskip("compressed_tensors", reason="compressed-tensors computes names, shapes and types")
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationConfig

    checkpoint = prepare(shape_folder, "compressed-tensors", dummy=True, scheme=scheme)
    config = checkpoint.quantization
    assert config is not None
    assert compressed_scheme(config) == scheme
    stored = tensors_of(checkpoint.folder)
    compressor = BaseCompressor.get_value_from_registry(config["format"])
    group = QuantizationConfig.model_validate(config).config_groups["group_0"]
    unpacked = compressor.decompress(stored, group)
    assert unpacked["weight"].shape == (256, 128)
    assert float(unpacked["weight"].float().std()) == pytest.approx(0.2, rel=0.02)
    repacked = compressor.compress(unpacked, group)
    assert {name: tensor.dtype for name, tensor in repacked.items()} == {
        name: tensor.dtype for name, tensor in stored.items()
    }
    for name in ("weight_packed", "weight", "weight_shape"):
        # The library writes NVFP4's negative zero as zero.
        if name in stored and not (scheme.startswith("nvfp4") and name == "weight_packed"):
            assert torch.equal(repacked[name].view(torch.uint8), stored[name].view(torch.uint8))


def test_fp8_block_weights_have_the_shapes_of_transformers_layer(shape_folder):
    from transformers.integrations.finegrained_fp8 import FP8Linear

    checkpoint = prepare(shape_folder, "fp8-checkpoint", dummy=True)
    stored = tensors_of(checkpoint.folder)
    layer = FP8Linear(128, 256, block_size=(128, 128))
    assert {name: (tensor.shape, tensor.dtype) for name, tensor in stored.items()} == {
        name: (tensor.shape, tensor.dtype) for name, tensor in layer.state_dict().items()
    }
    weight = stored["weight"].float() * stored["weight_scale_inv"].repeat_interleave(128, 0)
    assert float(weight.std()) == pytest.approx(0.2, rel=0.02)
    assert bool(weight.isfinite().all())


def test_autoround_random_weights_have_gptq_shapes_without_g_idx(shape_folder):
    gptq_folder = prepare(shape_folder, "gptq", dummy=True).folder
    folder = stored_without_library(shape_folder, "autoround")
    gptq = tensors_of(gptq_folder)
    del gptq["g_idx"]
    assert {name: (tensor.shape, tensor.dtype) for name, tensor in tensors_of(folder).items()} == {
        name: (tensor.shape, tensor.dtype) for name, tensor in gptq.items()
    }
    assert json.loads((folder / "config.json").read_text())["quantization_config"]["quant_method"] == "auto-round"


def stored_without_library(shape: Path, quant: str) -> Path:
    """Return a folder with random weights, written without the format's library."""
    from benchmarker.checkpoints.base import QuantizationNeeds
    from benchmarker.checkpoints.find import find_for_quantization
    from benchmarker.schema.model import ModelSpec

    loader = LOADERS[quant]
    needs = QuantizationNeeds(packing=loader.packing, options=loader.options())
    return find_for_quantization(ModelSpec(id=str(shape), load_format="dummy"), needs).folder


@pytest.mark.parametrize(("quant", "options"), [("gptq", {"sym": False}), ("awq", {})])
def test_asymmetric_random_weights_have_zero_points_near_the_middle(shape_folder, quant, options):
    zeros = tensors_of(stored_with(shape_folder, quant, **options))["qzeros"]
    codes = torch.stack([zeros >> (4 * nibble) & 15 for nibble in range(8)])
    assert codes.unique().tolist() == [7, 8, 9]


def stored_with(shape: Path, quant: str, **options: object) -> Path:
    return prepare(shape, quant, dummy=True, **options).folder


def test_a_scheme_is_accepted_as_quant(model_folder):
    dummy = {"subject.model.id": str(model_folder), "subject.model.load_format": "dummy"}
    variant = make_job({**dummy, "variant.quant": "W8A8"}).variant
    assert (variant.quant, variant.options, variant.name) == ("compressed-tensors", {"scheme": "w8a8"}, "w8a8")


def test_scheme_that_contradicts_the_checkpoint_is_refused(model_folder):
    config = json.loads((model_folder / "config.json").read_text())
    weights = {"num_bits": 4, "type": "int"}
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"weights": weights}},
    }
    (model_folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(SpecError, match="is w4a16 and not w8a8; leave --quant out"):
        make_job({"subject.model.id": str(model_folder), "variant.quant": "w8a8"})


def test_option_that_contradicts_the_checkpoint_is_refused(model_folder):
    config = json.loads((model_folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    (model_folder / "config.json").write_text(json.dumps(config))
    arguments = {"subject.model.id": str(model_folder), "variant.quant": "gptq"}
    assert make_job({**arguments, "variant.options": ["bits=4"]}).variant.quant == "gptq"
    with pytest.raises(SpecError, match="has bits=4 and not 8; leave --option bits out"):
        make_job({**arguments, "variant.options": ["bits=8"]})


def test_quant_that_contradicts_the_folder_is_refused_before_a_sweep(model_folder):
    config = json.loads((model_folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    (model_folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="which --quant int8 cannot take; use --quant gptq, or"):
        make_job({"subject.model.id": str(model_folder), "variant.quant": "int8"})


def test_unquantized_model_for_a_stored_format_is_refused_with_a_remedy(model_folder):
    model = ModelSpec(id=str(model_folder))
    with pytest.raises(ModelError, match="leave --quant out, or add --load-format dummy for random weights"):
        find_checkpoint(model, QuantSpec(quant="compressed-tensors", options={"scheme": "w8a8"}))


@pytest.mark.parametrize(
    ("quant", "message"),
    [
        (
            "compressed-tensors",
            "compressed-tensors: random weights need a scheme: "
            "--quant w4a16, w8a16, w8a8, fp8-dynamic, nvfp4, nvfp4a16",
        ),
        ("mxfp4", "mxfp4: random weights of an MXFP4 checkpoint of gpt-oss are not made; give a checkpoint"),
    ],
)
def test_formats_without_random_weights_are_refused(shape_folder, quant, message, monkeypatch):
    monkeypatch.setattr("benchmarker.quantization.base.installed_version", lambda name: "1.0")
    monkeypatch.setattr("benchmarker.checkpoints.find.import_libraries", lambda *names: None)
    with pytest.raises((SpecError, ModelError)) as caught:
        prepare(shape_folder, quant, dummy=True)
    assert str(caught.value) == message


def test_packed_random_weights_require_linear_layers(tmp_path):
    from transformers import GPT2Config

    GPT2Config(n_embd=64, n_layer=1, n_head=4, vocab_size=128).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"GPT2LMHeadModel has no nn\.Linear, and packed formats quantize no other"):
        stored_without_library(tmp_path, "fp8-checkpoint")
