"""W8A8 linear: int8 or FP8 weights with a scale per output, and activations that are quantized per row at run time.

torch multiplies on tensor cores (`torch._int_mm`, `torch.nn.functional.scaled_mm`). Inductor compiles `quantized_rows`
to one kernel, and the scaling of int8 products to another.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

INT8_MOST, FP8_MOST = 127.0, 448.0  # Largest absolute values of codes; -128 is not used.
FEWEST_INT8_ROWS = 17  # Minimum number of rows of cuBLAS's int8 GEMM.


class ScaledLinear(nn.Module):
    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor | None) -> None:
        """Store the tensors without a copy.

        Args:
            weight: [out, in], int8 or float8_e4m3fn.
            scale: Scale of each output.
            bias: [out].
        """
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.register_buffer("weight_scale", scale.float().view(1, -1))
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    def forward(self, hidden: Tensor) -> Tensor:
        scale_of_weight: Any = self.weight_scale
        codes, scales = quantized_rows(hidden.reshape(-1, self.in_features), self.weight.dtype)
        product = scaled_product(codes, scales, self.weight, scale_of_weight, hidden.dtype)
        product = product if self.bias is None else product + self.bias.to(product.dtype)
        return product.view(*hidden.shape[:-1], -1)


def quantized_rows(rows: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Quantize rows of activations, [rows, in]; return codes, [rows, in], and float32 scales, [rows, 1]."""
    values = rows.float()
    most = INT8_MOST if dtype == torch.int8 else FP8_MOST
    largest = values.abs().amax(-1, keepdim=True)
    # Any scale is right for a row of zeros, except 0.
    scales = torch.where(largest > 0, largest, 1.0) / most
    codes = (values / scales).clamp(-most, most)
    return (codes.round() if dtype == torch.int8 else codes).to(dtype), scales


def scaled_product(codes: Tensor, scales: Tensor, weight: Tensor, weight_scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the product of quantized rows and a quantized weight, [rows, out], in `dtype`.

    Args:
        scales: [rows, 1].
        weight_scale: [1, out].
    """
    if weight.dtype == torch.int8:
        count = len(codes)
        padded = functional.pad(codes, (0, 0, 0, FEWEST_INT8_ROWS - count)) if count < FEWEST_INT8_ROWS else codes
        return (torch._int_mm(padded, weight.t())[:count].float() * scales * weight_scale).to(dtype)
    by_row = functional.ScalingType.RowWise
    product: Tensor = functional.scaled_mm(
        codes, weight.t(), scales, by_row, weight_scale, by_row, output_dtype=dtype
    )  # fmt: skip
    return product
