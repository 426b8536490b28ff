"""Test loading stored quantized checkpoints without --quant; compressed-tensors' library packs its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers.integrations.finegrained_fp8 import FP8Linear

from benchmarker.checkpoints.base import Target
from benchmarker.checkpoints.read_model import read_model
from benchmarker.core.errors import DeviceError, ModelError, SpecError
from benchmarker.execution.jobs import make_job
from benchmarker.kernels.scaled_linear import multiplies_fp8
from benchmarker.quantization import stored_kernels
from benchmarker.quantization.base import Loaded, TorchGpu
from benchmarker.quantization.load import check_stored, find_checkpoint
from benchmarker.quantization.registry import LOADERS, stored_quant
from benchmarker.quantization.stored_formats import compressed_scheme, packed_switch, unpacked_words
from benchmarker.quantization.stored_kernels import has_fp8_blocks, replace_stored
from benchmarker.schema.config_io import read_experiment
from benchmarker.schema.model import ModelSpec, ModuleWeights, QuantSpec, WeightCoverage
from tests.loading import distance, facts_of, load, prepare

WEIGHTS = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}
W4A16 = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": WEIGHTS}}}
GPTQ = {"quant_method": "gptq", "bits": 8, "group_size": 64, "desc_act": True, "sym": False}


def with_quantization(folder: Path, **quantization: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": quantization}))
    return folder


@pytest.mark.parametrize(
    ("weights", "activations", "scheme"),
    [
        ({"num_bits": 4, "type": "int"}, None, "w4a16"),
        ({"num_bits": 8, "type": "int"}, {"num_bits": 8}, "w8a8"),
        ({"num_bits": 8, "type": "int"}, None, "w8a16"),
        ({"num_bits": 8, "type": "float"}, {"num_bits": 8, "dynamic": True}, "fp8-dynamic"),
        ({"num_bits": 8, "type": "float"}, {"num_bits": 8, "dynamic": False}, "fp8-static"),
        ({"num_bits": 4, "type": "float"}, {"num_bits": 4, "dynamic": "local"}, "nvfp4"),
    ],
)
def test_compressed_tensors_scheme_of_weights_and_activations(weights, activations, scheme):
    group = {"weights": weights, "input_activations": activations}
    assert compressed_scheme({"config_groups": {"group_0": group}}) == scheme
    other = {"weights": {"num_bits": 2, "type": "int"}}
    assert compressed_scheme({"config_groups": {"group_0": group, "group_1": other}}) == "mixed"


@pytest.mark.parametrize(
    ("quantization", "quant", "name"),
    [
        (W4A16, "compressed-tensors", "w4a16 {}"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8-checkpoint", "fp8 {}"),
        ({"quant_method": "auto-round", "bits": 4}, "autoround", "w4a16-autoround {}"),
        ({"quant_method": "mxfp4"}, "mxfp4", "mxfp4 {}"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "modelopt", "nvfp4 {}"),
        (GPTQ, "gptq", "gptq bits=8 group_size=64 sym=False desc_act=True {}"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, "bnb4", "bnb4 {}"),
    ],
)
def test_quantization_follows_the_checkpoint_without_quant(model_folder, quantization, quant, name):
    job = make_job({"subject.model.id": str(with_quantization(model_folder, **quantization))})
    assert (job.variant.quant, job.variant.name) == (quant, name.format(model_folder.name))


def test_unquantized_checkpoint_is_fp16(model_folder):
    variant = make_job({"subject.model.id": str(model_folder)}).variant
    assert (variant.quant, variant.name, variant.checkpoint) == ("fp16", "fp16", None)


def test_random_weights_of_a_quantized_checkpoint_need_a_quantization(model_folder):
    dummy = {"subject.model.id": str(with_quantization(model_folder, **GPTQ)), "subject.model.load_format": "dummy"}
    with pytest.raises(SpecError, match=r"--quant: .* is quantized; choose the quantization of the random weights"):
        make_job(dummy)
    assert make_job({**dummy, "variant.quant": "awq"}).variant.name == "awq"


def test_quant_that_contradicts_the_checkpoint_is_refused_with_its_format():
    with pytest.raises(Exception, match="quantized already") as caught:
        check_stored("int8", "some/model", {"quantization_config": W4A16})
    assert str(caught.value) == (
        "some/model: quantized already (compressed-tensors, w4a16), which --quant int8 cannot take; "
        "use --quant compressed-tensors, or an unquantized checkpoint"
    )


def test_unquantized_checkpoint_of_a_config_is_the_baseline(model_folder, tmp_path):
    unquantized, packed = model_folder, tmp_path / "packed"
    packed.mkdir()
    (packed / "config.json").write_bytes((unquantized / "config.json").read_bytes())
    with_quantization(packed, **W4A16)
    config = tmp_path / "config.yaml"
    config.write_text(f"variants: [{{checkpoint: {packed}}}, {{checkpoint: {unquantized}}}]")
    experiment = read_experiment(config)
    assert [variant.name for variant in experiment.variants] == ["w4a16 packed", f"fp16 {unquantized.name}"]
    assert experiment.first_baseline == f"fp16 {unquantized.name}"
    job = make_job({}, config=config, variant=f"fp16 {unquantized.name}")
    assert (job.title, job.model.id) == (str(packed), str(unquantized))
    for variant, folder in zip(experiment.variants, (packed, unquantized), strict=True):
        with pytest.raises(SpecError) as refused:
            make_job({"subject.model.load_format": "dummy"}, config=config, variant=variant.name)
        assert str(refused.value) == f"--checkpoint: {folder} has its own weights; leave load_format dummy out"


def test_torchao_checkpoint_loads_by_its_config_class():
    saved = {"quant_method": "torchao", "quant_type": {"default": {"_type": "Int8WeightOnlyConfig", "_data": {}}}}
    assert stored_quant(saved) == "int8"


def test_unpacked_weights_are_reported_as_16_bit():
    weights = ModuleWeights(parameters=100, quantized_parameters=0, bytes_by_type={"bfloat16": 200})
    assert unpacked_words(LOADERS["fp8-checkpoint"], WeightCoverage(kinds={"MLP": weights})) == (
        "ran in bfloat16: transformers unpacked the checkpoint, its kernels for packed weights are for NVIDIA GPUs of "
        "compute capability 8.9 and above; 100 % of the weights are not quantized (MLP 100 %)"
    )


def test_unpacked_experts_are_reported_as_mostly_16_bit():
    attention = ModuleWeights(parameters=100, quantized_parameters=100, bytes_by_type={"int32": 50})
    experts = ModuleWeights(parameters=300, quantized_parameters=0, bytes_by_type={"float16": 600})
    coverage = WeightCoverage(kinds={"attention": attention, "experts": experts})
    assert unpacked_words(LOADERS["compressed-tensors"], coverage) == (
        "ran mostly in float16: transformers keeps fused experts and other layers unpacked; "
        "75 % of the weights are not quantized (experts 75 %)"
    )


@pytest.mark.parametrize(("scheme", "limit"), [("W4A16", 1e-6), ("W8A8", 0.06), ("FP8_DYNAMIC", 0.02)])
def test_own_layers_match_the_library_with_unpacked_weights(model_folder, tmp_path, scheme, limit):
    pytest.importorskip("compressed_tensors", reason="compressed-tensors packs the checkpoint")
    folder = compressed(model_folder, tmp_path / "packed", scheme)
    replaced = load(folder, "compressed-tensors", dtype="float32")
    checkpoint = prepare(folder, "compressed-tensors", dtype="float32")
    library = read_model(checkpoint, Target("cpu", "float32"), quantization=packed_switch(checkpoint.quantization))
    assert set(facts_of(replaced).linear_classes) == {"Linear", "Int4Linear" if "W4" in scheme else "ScaledLinear"}
    assert not replaced.model._forward_pre_hooks  # The library's hooks would wrap every module.
    assert distance(replaced, Loaded(library)) < limit


@pytest.mark.parametrize(
    ("capability", "columns", "is_own"), [((9, 0), 256, True), ((8, 9), 256, False), ((9, 0), 192, False)]
)
def test_fp8_block_layers_are_replaced_on_hopper_only(monkeypatch, capability, columns, is_own):
    gpu = TorchGpu("a GPU", capability, nvidia=True)
    monkeypatch.setattr(stored_kernels, "torch_gpu", lambda device: gpu)
    model = torch.nn.Sequential(FP8Linear(columns, 256, block_size=(128, 128)))
    assert has_fp8_blocks(model)
    assert replace_stored(model) == ({"BlockScaledLinear": 1} if is_own else {})
    assert has_fp8_blocks(model) is not is_own


def test_fp8_per_row_is_refused_on_a_gpu_without_fp8(monkeypatch, model_folder):
    fp8 = {"num_bits": 8, "type": "float"}
    groups = {"group_0": {"weights": fp8, "input_activations": {**fp8, "dynamic": True}}}
    model = ModelSpec(id=str(with_quantization(model_folder, quant_method="compressed-tensors", config_groups=groups)))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA A100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    cases = [(model, {}), (ModelSpec(id="qwen3-tiny", load_format="dummy"), {"scheme": "fp8-dynamic"})]
    for source, options in cases:
        with pytest.raises(DeviceError) as caught:
            find_checkpoint(source, QuantSpec(quant="compressed-tensors", options=options), device="cuda:0")
        assert str(caught.value) == (
            "fp8-dynamic: needs an NVIDIA GPU of compute capability 8.9; this is NVIDIA A100 (8.0). "
            "w8a8, and int8-dynamic of the unquantized model, run here"
        )


@pytest.mark.parametrize(("capability", "layers"), [((8, 0), set()), ((8, 9), {"ScaledLinear"})])
def test_fp8_layers_are_replaced_only_on_gpus_with_fp8(monkeypatch, model_folder, tmp_path, capability, layers):
    pytest.importorskip("compressed_tensors", reason="compressed-tensors packs the checkpoint")
    checkpoint = prepare(compressed(model_folder, tmp_path / "packed", "FP8_DYNAMIC"), "compressed-tensors")
    model = read_model(checkpoint, Target("cpu", "float16"), quantization=packed_switch(checkpoint.quantization))
    monkeypatch.setattr(stored_kernels, "torch_gpu", lambda device: TorchGpu("a GPU", capability, nvidia=True))
    assert replace_stored(model).keys() == layers


def test_transformers_fp8_layer_is_replaced_with_equal_outputs():
    layers = pytest.importorskip("transformers.integrations.compressed_tensors")
    if not multiplies_fp8("cpu"):
        pytest.skip("torch has no FP8 product for a CPU")
    library = layers.CompressedTensorsFP8Linear(64, 32, has_bias=True)
    with torch.no_grad():
        library.weight.copy_(torch.randn(32, 64) * 30)
        library.weight_scale.uniform_(0.001, 0.01)
        library.bias.normal_()
    model, hidden = torch.nn.Sequential(library), torch.randn(2, 5, 64)
    expected = library(hidden)
    assert replace_stored(model) == {"ScaledLinear": 1}
    assert torch.allclose(model(hidden), expected, rtol=1e-3, atol=1e-3)


def test_packed_zero_points_are_refused_with_a_remedy(model_folder, tmp_path):
    pytest.importorskip("compressed_tensors", reason="compressed-tensors packs the checkpoint")
    folder = compressed(model_folder, tmp_path / "packed", "W4A16_ASYM")
    with pytest.raises(ModelError, match=r"cannot load packed zero points \(symmetric: false\); use --engine vllm"):
        load(folder, "compressed-tensors")


def compressed(source: Path, folder: Path, scheme: str) -> Path:
    """Save a model quantized by rounding to nearest and packed by compressed-tensors; return the folder."""
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config, preset_name_to_scheme
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
    groups = {"group_0": preset_name_to_scheme(scheme, ["Linear"])}
    apply_quantization_config(model, QuantizationConfig(config_groups=groups, ignore=["lm_head"]))
    for module in model.modules():
        if arguments := getattr(getattr(module, "quantization_scheme", None), "weights", None):
            largest = 448 if arguments.type == "float" else 2 ** (arguments.num_bits - 1) - 1
            rows = module.weight.data.float().reshape(*module.weight_scale.shape, -1)
            module.weight_scale.data = (rows.abs().amax(-1) / largest).to(module.weight_scale.dtype)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(folder)
    compressor.update_config(folder)
    return folder
