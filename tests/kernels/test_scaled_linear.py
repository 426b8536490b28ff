"""W8A8 products on a CPU, compared with the product of the dequantized numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from benchmarker.kernels import scaled_linear
from benchmarker.kernels.scaled_linear import (
    BLOCK,
    BlockScaledLinear,
    ScaledLinear,
    block_product,
    quantized_rows,
    unquantized_activations,
)

INPUTS, OUTPUTS = 64, 32


def linear_of(dtype: torch.dtype, bias: Tensor | None = None) -> ScaledLinear:
    torch.manual_seed(0)
    codes = torch.randn(OUTPUTS, INPUTS) * 30
    return ScaledLinear(codes.round().to(dtype), torch.rand(OUTPUTS, 1) * 0.01, bias)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("rows", [1, 16, 17, 40])
def test_w8a8_product_matches_dequantized_weights(dtype, rows):
    linear = linear_of(dtype, torch.randn(OUTPUTS))
    hidden = torch.randn(2, rows, INPUTS)
    codes, scales = quantized_rows(hidden.view(-1, INPUTS), dtype)
    weight = linear.weight.float() * linear.weight_scale
    expected = (codes.float() * scales) @ weight.t() + linear.bias
    assert torch.allclose(linear(hidden), expected.view(2, rows, OUTPUTS), rtol=1e-4, atol=1e-4)
    assert linear(hidden.half()).dtype == torch.float16


@pytest.mark.parametrize(("dtype", "error"), [(torch.int8, 1 / 254), (torch.float8_e4m3fn, 1 / 16)])
def test_activations_are_quantized_per_row_by_their_largest_value(dtype, error):
    rows = torch.randn(5, INPUTS)
    rows[3] = 0
    rows[4] *= 1000
    codes, scales = quantized_rows(rows, dtype)
    largest = rows.abs().amax(-1, keepdim=True)
    assert bool(((codes.float() * scales - rows).abs() <= error * largest + 1e-6).all())
    assert bool((codes[3].float() == 0).all())
    most = 127 if dtype == torch.int8 else 448
    assert torch.allclose(scales, largest.where(largest > 0, 1.0) / most)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_activations_can_be_multiplied_without_quantization(dtype):
    linear, hidden = linear_of(dtype, torch.randn(OUTPUTS)), torch.randn(2, 3, INPUTS)
    quantized = linear(hidden)
    with unquantized_activations(torch.nn.Sequential(linear)):
        exact = linear(hidden)
    weight = linear.weight.float() * linear.weight_scale
    assert torch.allclose(exact, hidden @ weight.t() + linear.bias, atol=1e-5)
    assert not torch.equal(quantized, exact)
    assert torch.equal(linear(hidden), quantized)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.usefixtures("traced_only")
def test_scaled_linear_compiles_to_one_graph(dtype):
    linear, hidden = linear_of(dtype), torch.randn(1, 20, INPUTS)
    compiled = torch.compile(linear, fullgraph=True)
    assert torch.allclose(compiled(hidden), linear(hidden), rtol=1e-3, atol=1e-3)


def block_linear(outputs: int, bias: Tensor | None = None) -> BlockScaledLinear:
    torch.manual_seed(0)
    weight = (torch.randn(outputs, 3 * BLOCK) * 90).clamp(-448, 448).to(torch.float8_e4m3fn)
    return BlockScaledLinear(weight, torch.rand(-(-outputs // BLOCK), 3) * 1e-3, bias)


@pytest.mark.parametrize("outputs", [128, 320])
def test_block_scaled_product_matches_float64(outputs):
    linear = block_linear(outputs, torch.randn(outputs))
    hidden = torch.randn(2, 5, 3 * BLOCK)
    hidden[0, 0, :BLOCK] *= 1000  # The other blocks of the row keep their accuracy.
    expected = torch.empty(10, outputs, dtype=torch.float64)
    for row, values in enumerate(hidden.view(10, 3, BLOCK)):
        scales = (values.abs().amax(-1, keepdim=True) / 448).float()
        quantized = (values / scales).to(torch.float8_e4m3fn).double() * scales
        for output in range(outputs):
            weights = linear.weight[output].double().view(3, BLOCK) * linear.weight_scale[output // BLOCK, :3, None]
            expected[row, output] = (quantized * weights).sum() + linear.bias[output]
    assert torch.allclose(linear(hidden).double(), expected.view(2, 5, -1), rtol=1e-4, atol=1e-4)
    assert linear(hidden.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize(("dtype", "output"), [("bfloat16", "bfloat16"), ("float16", "float32")])
def test_block_product_passes_scales_in_cublas_layout(monkeypatch, dtype, output):
    calls = []

    def scaled_mm(first, second, scale_a, kind_a, scale_b, kind_b, output_dtype):
        calls.append((scale_a.shape, scale_a.stride(), kind_a.name, scale_b.shape, scale_b.stride(), kind_b.name))
        assert (first.shape, second.shape) == ((5, 384), (256, 384))
        return torch.zeros(5, 256, dtype=output_dtype)

    monkeypatch.setattr(scaled_linear, "_scaled_mm", scaled_mm)
    linear = block_linear(256)
    scales = torch.rand(5, 3)
    codes = torch.zeros(5, 3 * BLOCK).to(torch.float8_e4m3fn)
    product = block_product(codes, scales, linear.weight, linear.weight_scale, getattr(torch, dtype))
    assert calls == [((5, 3), (1, 5), "BlockWise1x128", (4, 2), (1, 4), "BlockWise128x128")]
    assert product.dtype == getattr(torch, dtype)


@pytest.mark.parametrize("rows", [1, 5])
def test_scaled_mm_accepts_the_scale_layout_for_any_number_of_rows(rows):
    linear = block_linear(256).to("meta")
    codes = torch.empty(rows, 3 * BLOCK, dtype=torch.float8_e4m3fn, device="meta")
    scales = torch.empty(rows, 3, device="meta")
    product = block_product(codes, scales, linear.weight, linear.weight_scale, torch.bfloat16)
    assert product.shape == (rows, 256)
