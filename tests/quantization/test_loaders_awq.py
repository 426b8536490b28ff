"""Test loading AWQ checkpoints with gptqmodel on a random two-layer Qwen3 that the test itself packs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from benchmarker.core.errors import BenchmarkerError, DeviceError, ModelError
from benchmarker.quantization import awq
from benchmarker.quantization.base import Loaded
from benchmarker.quantization.gptqmodel_kernels import linear_class_of
from benchmarker.quantization.load import find_checkpoint
from benchmarker.schema.model import ModelSpec
from benchmarker.workloads.generation.spec import VariantSpec
from tests.loading import EMBEDDING, LINEARS, NORMS, PARAMETERS, ROPE_BYTES, distance, facts_of, load, prepare

GROUP = 64
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Index of the output, of eight neighbours, in each nibble of a word from the lowest (AutoAWQ's order)."""
CONFIG = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}


def test_awq_has_4_bits():
    assert awq.LOADER.bits == (4,)
    assert awq.LOADER.has_low_bits


def pack_codes(codes: Tensor) -> Tensor:
    """Pack eight codes per word: [rows, columns] to [rows, columns / 8]."""
    eights = codes.to(torch.int64).view(len(codes), -1, 8)
    words = sum(eights[:, :, output] << (4 * nibble) for nibble, output in enumerate(AWQ_ORDER))
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32).contiguous()


def quantize(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Return AWQ's tensors of a weight, [out, in], and the dequantized weight."""
    groups = weight.float().view(len(weight), -1, GROUP)
    low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
    scales = ((high - low) / 15).half().float()
    zeros = (-low / scales).round().clamp(0, 15)
    codes = ((groups / scales[..., None]).round() + zeros[..., None]).clamp(0, 15)
    values = ((codes - zeros[..., None]) * scales[..., None]).view_as(weight)
    tensors = {
        "qweight": pack_codes(codes.view_as(weight).t()),
        "qzeros": pack_codes(zeros.t()),
        "scales": scales.t().half().contiguous(),
    }
    return tensors, values


@pytest.fixture
def folders(model_folder: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Return the folders of an AWQ checkpoint and of its dequantized weights."""
    dequantized, config = tmp_path / "plain", json.loads((model_folder / "config.json").read_text())
    dequantized.mkdir()
    (dequantized / "config.json").write_text(json.dumps(config))
    stored, values = {}, {}
    for name, weight in load_file(model_folder / "model.safetensors").items():
        stored[name] = values[name] = weight.half()
        if name.endswith("_proj.weight"):
            tensors, values[name] = quantize(weight)
            values[name] = values[name].half()
            del stored[name]
            stored |= {name.replace("weight", kind): tensor for kind, tensor in tensors.items()}
    save_file(stored, model_folder / "model.safetensors", {"format": "pt"})
    save_file(values, dequantized / "model.safetensors", {"format": "pt"})
    (model_folder / "config.json").write_text(json.dumps(config | {"quantization_config": CONFIG}))
    return model_folder, dequantized


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "linear"), [("auto", "TorchAtenAwqLinear"), ("torch", "AwqTorchLinear")])
def test_awq_checkpoint_matches_its_dequantized_weights(folders, kernel, linear):
    loaded = load(folders[0], "awq", kernel=kernel)
    facts = facts_of(loaded)
    assert facts.linear_classes == {"Linear": 1, linear: 14}
    assert facts.notes == (f"kernel {kernel}: {linear}",)
    assert facts.parameters == PARAMETERS
    assert facts.quantized_fraction == pytest.approx(LINEARS / PARAMETERS)
    if kernel == "torch":
        groups = LINEARS // GROUP
        packed_bytes = LINEARS // 2 + groups * 2 + groups // 2
        assert facts.weight_bytes == packed_bytes + 2 * (EMBEDDING + NORMS) + ROPE_BYTES
    assert distance(loaded, load(folders[1], "fp16")) < 0.02


@pytest.mark.slow
def test_kernel_other_than_the_requested_one_raises(folders):
    loaded = load(folders[0], "awq", kernel="torch")
    with pytest.raises(DeviceError, match="awq: requested the marlin kernel, gptqmodel used 14 AwqTorchLinear"):
        linear_class_of("awq", loaded.model, kernel="marlin", expected="AwqMarlinLinear")


@pytest.mark.slow
def test_random_awq_weights_have_the_models_deviation_and_zero_mean(shape_folder):
    from gptqmodel.quantization.awq.utils.packing_utils import dequantize_gemm

    loaded: Loaded = load(shape_folder, "awq", dummy=True, kernel="torch")
    linear = loaded.model.model.layers[0].mlp.up_proj
    weights = dequantize_gemm(linear.qweight, linear.qzeros, linear.scales, 4, 128).float()
    assert float(weights.std()) == pytest.approx(0.2, rel=0.02)
    assert abs(float(weights.mean())) < 0.02 * float(weights.std())


@pytest.mark.parametrize(
    ("model", "dtype", "options", "line"),
    [
        ("awq", "float32", {}, "awq: computes in float16 or bfloat16, not float32; use --dtype float16 or bfloat16"),
        ("awq", "float16", {"kernel": "marlin"}, "awq: the marlin kernel needs a GPU; this is the CPU."),
        (
            "plain",
            "float16",
            {},
            "not an AWQ checkpoint, which --quant awq reads; AutoAWQ or gptqmodel make one",
        ),
    ],
)
def test_unsupported_dtype_kernel_or_checkpoint_is_refused(folders, model, dtype, options, line):
    with pytest.raises(BenchmarkerError) as caught:
        prepare(folders[model == "plain"], "awq", dtype=dtype, **options)
    assert line in str(caught.value)


def test_bfloat16_on_a_gpu_is_refused():
    with pytest.raises(BenchmarkerError, match="transformers runs it in float16 on a GPU; use --dtype float16"):
        awq.check(awq.AWQOptions(), awq.Target("cuda:0", "bfloat16"))


def test_external_engines_may_load_awq_in_bfloat16(folders):
    model = ModelSpec(id=str(folders[0]), dtype="bfloat16")
    variant = VariantSpec(name="awq", quant="awq", engine="vllm")
    assert find_checkpoint(model, variant, device="cuda:0", is_external=True).folder == folders[0]
    with pytest.raises(BenchmarkerError, match="use --dtype float16"):
        find_checkpoint(model, variant, device="cuda:0")


def test_other_quantizations_of_an_awq_checkpoint_are_refused_with_a_remedy(folders):
    with pytest.raises(ModelError, match=r"quantized already .awq., which --quant int8 cannot take; use --quant awq"):
        prepare(folders[0], "int8")
