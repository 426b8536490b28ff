"""Repacking of AWQ's and compressed-tensors' weights to GPTQ's order keeps codes and number of bytes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from benchmarker.kernels.gemv_gptq import ALL_EIGHT, layout_reason, unpacked
from benchmarker.kernels.int4_linear import Int4Linear, from_compressed, repack_awq

INPUTS, OUTPUTS, GROUP = 256, 48, 64
GROUPS = INPUTS // GROUP


def random_words(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.int32).random_(-(2**31), 2**31)


def random_scales(*shape: int) -> Tensor:
    return (torch.rand(shape) * 0.01 + 0.001).half()


def bytes_of(*tensors: Tensor) -> int:
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


def awq_linear(bias: Tensor | None = None) -> nn.Module:
    linear = nn.Module()
    linear.in_features, linear.out_features, linear.bits = INPUTS, OUTPUTS, 4
    linear.register_buffer("qweight", random_words(INPUTS, OUTPUTS // 8))
    linear.register_buffer("qzeros", random_words(GROUPS, OUTPUTS // 8))
    linear.register_buffer("scales", random_scales(GROUPS, OUTPUTS))
    linear.register_buffer("bias", bias)
    return linear


def test_repacked_awq_weights_equal_gptqmodel_in_values_and_bytes():
    library = pytest.importorskip("gptqmodel.quantization.awq.utils.packing_utils")
    linear = awq_linear(torch.randn(OUTPUTS).half())
    expected = library.dequantize_gemm(linear.qweight, linear.qzeros, linear.scales, 4, GROUP)
    before = bytes_of(*linear.buffers())
    repack_awq(linear)
    assert type(linear) is Int4Linear
    assert torch.equal(unpacked(linear.qweight, linear.qzeros, linear.scales), expected)
    assert bytes_of(*linear.buffers()) == before
    assert layout_reason(linear) is None
    hidden = torch.randn(2, 3, INPUTS).half()
    assert torch.equal(linear(hidden), hidden @ expected + linear.bias)


@pytest.mark.parametrize("symmetric", [True, False])
def test_compressed_tensors_weights_equal_the_library_in_values_and_bytes(symmetric):
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    weights = QuantizationArgs(num_bits=4, strategy="group", group_size=GROUP, symmetric=symmetric)
    stored = {
        "weight_packed": random_words(OUTPUTS, INPUTS // 8),
        "weight_scale": random_scales(OUTPUTS, GROUPS),
        "weight_shape": torch.tensor([OUTPUTS, INPUTS]),
    }
    if not symmetric:
        stored["weight_zero_point"] = random_words(OUTPUTS // 8, GROUPS)
    compressor = BaseCompressor.get_value_from_registry("pack-quantized")
    scheme = QuantizationScheme(targets=["Linear"], weights=weights)
    expected = compressor.decompress(stored, scheme)["weight"]
    zeros = stored.get("weight_zero_point")
    linear = from_compressed(stored["weight_packed"], stored["weight_scale"], zeros, None)
    assert torch.equal(unpacked(linear.qweight, linear.qzeros, linear.scales).t(), expected)
    own = sum(tensor.nbytes for name, tensor in stored.items() if name != "weight_shape")
    assert bytes_of(linear.qweight, linear.scales, linear.qzeros) == own + (4 if symmetric else 0)
    assert bool((linear.qzeros == ALL_EIGHT).all()) == symmetric
