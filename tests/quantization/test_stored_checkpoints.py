"""Test that a small random checkpoint of each stored format is measured in its format on a CPU, or refused."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from benchmarker.checkpoints.base import Target
from benchmarker.checkpoints.cache import has_random_weights
from benchmarker.core.errors import BenchmarkerError, ModelError, SpecError
from benchmarker.execution.jobs import make_job
from benchmarker.quantization.base import Loaded
from benchmarker.quantization.coverage import coverage_after_forward, refusal
from benchmarker.quantization.load import load_quantized
from benchmarker.quantization.registry import LOADERS, loader_options
from benchmarker.quantization.save_checkpoint import check_new, save_checkpoint
from benchmarker.quantization.stored_formats import unpacked_words
from benchmarker.schema.model import ModelSpec
from tests.loading import facts_of, prepare

UNPACKED = "ran in bfloat16: transformers unpacked the checkpoint, "
MEASURED = [
    ("compressed-tensors", {"scheme": "w4a16"}, "w4a16 {}", "Int4Linear"),
    ("compressed-tensors", {"scheme": "w8a8"}, "w8a8 {}", "ScaledLinear"),
    ("compressed-tensors", {"scheme": "fp8-dynamic"}, "fp8-dynamic {}", "ScaledLinear"),
    ("awq", {}, "awq {}", "TorchAtenAwqLinear"),
    ("gptq", {}, "gptq {}", "TorchAtenLinear"),
    ("gptq", {"bits": 8}, "gptq bits=8 {}", "TorchLinear"),
    ("gptq", {"bits": 8, "sym": False}, "gptq bits=8 sym=False {}", "TorchLinear"),
    ("gptq", {"desc_act": True}, "gptq desc_act=True {}", "TorchAtenLinear"),
]
REFUSED = [
    ("compressed-tensors", {"scheme": "w8a16"}, "w8a16 {}", UNPACKED),
    ("compressed-tensors", {"scheme": "nvfp4"}, "nvfp4 {}", UNPACKED),
    ("fp8-checkpoint", {}, "fp8 {}", UNPACKED),
]


SAVED = [
    ("bnb4", {"quant_type": "nf4"}, "bnb4 {}", "Linear4bit"),
    ("bnb8", {}, "bnb8 {}", "Linear8bitLt"),
    ("int8", {}, "int8 {}", "Linear"),
    ("int8-dynamic", {}, "int8-dynamic {}", "Linear"),
]


def packed_checkpoint(shape: Path, folder: Path, quant: str, **options: object) -> Path:
    if quant == "compressed-tensors" and find_spec("compressed_tensors") is None:
        pytest.skip("compressed-tensors computes names, shapes and types")
    return Path(shutil.copytree(prepare(shape, quant, dummy=True, **options).folder, folder / "packed"))


def load_without_quant(folder: Path, name: str, dtype: str = "bfloat16") -> Loaded:
    """Load a folder without --quant."""
    variant = make_job({"subject.model.id": str(folder)}).variant
    assert variant.name == name.format(folder.name)
    checkpoint = prepare(folder, variant.quant, dtype=dtype, **variant.options)
    return load_quantized(variant.quant, checkpoint, loader_options(variant), Target("cpu", dtype))


@pytest.mark.parametrize(("quant", "options", "name", "linear"), SAVED)
def test_saved_checkpoint_matches_quantization_at_load(shape_folder, tmp_path, quant, options, name, linear):
    loader, target = LOADERS[quant], Target("cpu", "bfloat16")
    unquantized = prepare(shape_folder, quant, dummy=True, dtype="bfloat16", **options)
    save_checkpoint(quant, unquantized, loader.options(**options), target, tmp_path / "saved")
    loaded = load_without_quant(tmp_path / "saved", name)
    # Taken before a forward, in which bitsandbytes repacks 4-bit weights on some CPUs.
    facts = facts_of(loaded)
    assert has_random_weights(ModelSpec(id=str(tmp_path / "saved")))
    with pytest.raises(SpecError, match="random weights have no quality to lose"):
        make_job({"subject.model.id": str(tmp_path / "saved"), "subject.quality.size": "quick"})
    assert refusal(loader, coverage_after_forward(loaded.model)) is None
    expected = facts_of(load_quantized(quant, unquantized, loader.options(**options), target))
    assert (facts.linear_classes, facts.weight_bytes) == (expected.linear_classes, expected.weight_bytes)
    assert facts.linear_classes[linear] >= 14


def test_nonempty_folder_is_not_overwritten(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(SpecError, match="exists already; give a new folder"):
        check_new(tmp_path)


@pytest.mark.parametrize(("quant", "options", "name", "linear"), MEASURED)
def test_packed_checkpoint_has_the_weight_bytes_of_its_file(shape_folder, tmp_path, quant, options, name, linear):
    folder = packed_checkpoint(shape_folder, tmp_path, quant, **options)
    loaded = load_without_quant(folder, name)
    coverage = coverage_after_forward(loaded.model)
    assert refusal(LOADERS[quant], coverage) is None
    facts = facts_of(loaded)
    assert facts.linear_classes == {"Linear": 1, linear: 14}
    file_bytes = (folder / "model.safetensors").stat().st_size
    assert facts.weight_bytes == pytest.approx(file_bytes, rel=0.02)
    assert facts.bits_per_weight == pytest.approx(8 * file_bytes / facts.parameters, rel=0.02)


@pytest.mark.parametrize(("quant", "options", "name", "reason"), REFUSED)
def test_checkpoint_unpacked_by_transformers_is_refused_as_16_bit(shape_folder, tmp_path, quant, options, name, reason):
    loaded = load_without_quant(packed_checkpoint(shape_folder, tmp_path, quant, **options), name)
    coverage = coverage_after_forward(loaded.model)
    assert refusal(LOADERS[quant], coverage)
    assert unpacked_words(LOADERS[quant], coverage).startswith(reason)


@pytest.mark.parametrize(
    ("quant", "options", "missing"),
    [
        ("compressed-tensors", {"scheme": "fp8-dynamic"}, "model.layers.1.mlp.up_proj.weight"),
        ("gptq", {}, "model.layers.1.mlp.up_proj.qweight"),
        ("awq", {}, "model.layers.1.mlp.up_proj.qzeros"),
    ],
)
def test_checkpoint_without_a_quantized_tensor_is_refused(shape_folder, tmp_path, quant, options, missing):
    folder = packed_checkpoint(shape_folder, tmp_path, quant, **options)
    tensors = load_file(folder / "model.safetensors")
    del tensors[missing]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    variant = make_job({"subject.model.id": str(folder)}).variant
    with pytest.raises(ModelError, match=f"lacks 1 .* such as {missing}|--verbose shows the libraries' messages"):
        load_without_quant(folder, variant.name, dtype="float16")


def test_contradictory_awq_config_is_refused(shape_folder, tmp_path):
    folder = packed_checkpoint(shape_folder, tmp_path, "awq")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["version"] = "gemv"
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"its quantized weights cannot be loaded .ValueError: No valid quant linear."):
        load_without_quant(folder, "awq {}", dtype="float16")


def test_nvfp4_in_float16_is_refused_before_loading(shape_folder, tmp_path):
    folder = packed_checkpoint(shape_folder, tmp_path, "compressed-tensors", scheme="nvfp4")
    with pytest.raises(
        BenchmarkerError,
        match="nvfp4: transformers unpacks it to bfloat16, so that it is not measured; use --engine vllm",
    ):
        load_without_quant(folder, "nvfp4 {}", dtype="float16")
