"""W8A8 products on a CPU, compared with the product of the dequantized numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from benchmarker.kernels.scaled_linear import ScaledLinear, quantized_rows

INPUTS, OUTPUTS = 64, 32


def linear_of(dtype: torch.dtype, bias: Tensor | None = None) -> ScaledLinear:
    torch.manual_seed(0)
    codes = torch.randn(OUTPUTS, INPUTS) * 30
    return ScaledLinear(codes.round().to(dtype), torch.rand(OUTPUTS, 1) * 0.01, bias)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("rows", [1, 16, 17, 40])
def test_the_product_is_that_of_the_dequantized_numbers(dtype, rows):
    linear = linear_of(dtype, torch.randn(OUTPUTS))
    hidden = torch.randn(2, rows, INPUTS)
    codes, scales = quantized_rows(hidden.view(-1, INPUTS), dtype)
    weight = linear.weight.float() * linear.weight_scale.t()
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


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_the_compiler_traces_it_as_one_graph(dtype):
    linear, hidden = linear_of(dtype), torch.randn(1, 20, INPUTS)
    compiled = torch.compile(linear, fullgraph=True)
    assert torch.allclose(compiled(hidden), linear(hidden), rtol=1e-3, atol=1e-3)
