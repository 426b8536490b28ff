"""W8A8 linear: int8 or FP8 weights with a scale per output, and activations that are quantized per row at run time.

torch multiplies on tensor cores (`torch._int_mm`, `_scaled_mm_v2`). Inductor compiles `quantized_rows` to one kernel,
and the scaling of int8 products to another. `linear_dispatch` multiplies few rows by other kernels.

`BlockScaledLinear` has the format of DeepSeek's FP8 checkpoints: a scale per 128 x 128 weights, and one per 128
activations of a row. torch multiplies it on Hopper (compute capability 9.0); that call has not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

INT8_MAX, FP8_MAX = 127.0, 448.0  # Largest absolute values of codes; -128 is not used.
MIN_INT8_ROWS = 17  # Minimum number of rows of cuBLAS's int8 GEMM.
BLOCK = 128  # Rows and columns of weights that share a scale.
SCALES_MULTIPLE = 4  # cuBLAS reads the scales of a row of blocks in groups of this many.


class ScaledLinear(nn.Module):
    quantizes = True  # False if activations are multiplied without quantization (`unquantized_activations`).

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
        self.register_buffer("weight_scale", scale.float().view(-1, 1))
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    def forward(self, hidden: Tensor) -> Tensor:
        scale_of_weight: Any = self.weight_scale
        if not self.quantizes:
            return functional.linear(hidden, (self.weight.float() * scale_of_weight).to(hidden.dtype), self.bias)
        codes, scales = quantized_rows(hidden.reshape(-1, self.in_features), self.weight.dtype)
        product = scaled_product(codes, scales, self.weight, scale_of_weight.view(1, -1), hidden.dtype)
        product = product if self.bias is None else product + self.bias.to(product.dtype)
        return product.view(*hidden.shape[:-1], -1)


@contextmanager
def unquantized_activations(model: nn.Module) -> Iterator[None]:
    """Make the model's `ScaledLinear`s multiply activations without quantizing them.

    Two programs that compute a model differ by rounding, which moves codes: one layer differs by 2 to 5 %, as much as
    a wrong layer may. Without quantization, their difference shows whether they compute the same.
    """
    linears = [module for module in model.modules() if isinstance(module, ScaledLinear)]
    for linear in linears:
        linear.quantizes = False
    try:
        yield
    finally:
        for linear in linears:
            del linear.quantizes


def multiplies_fp8(device: str) -> bool:
    """Return True if torch has an FP8 product for the device, "cpu" or "cuda". torch 2.11 has none for a CPU."""
    return torch._C._dispatch_has_kernel_for_dispatch_key("aten::_scaled_mm_v2", device.upper())


def quantized_rows(rows: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Quantize rows of activations, [rows, in]; return codes, [rows, in], and float32 scales, [rows, 1]."""
    values = rows.float()
    most = INT8_MAX if dtype == torch.int8 else FP8_MAX
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
        padded = functional.pad(codes, (0, 0, 0, MIN_INT8_ROWS - count)) if count < MIN_INT8_ROWS else codes
        return (torch._int_mm(padded, weight.t())[:count].float() * scales * weight_scale).to(dtype)
    by_row = functional.ScalingType.RowWise
    return _scaled_mm(codes, weight, scales, by_row, weight_scale, by_row, dtype, fast=True)


def _scaled_mm(
    codes: Tensor, weight: Tensor, scales: Tensor, by: Any, weight_scale: Tensor, weight_by: Any, dtype: torch.dtype, *,
    fast: bool = False,
) -> Tensor:  # fmt: skip
    """Call torch's product of FP8 numbers. torch 2.11 cannot trace its public name, `torch.nn.functional.scaled_mm`.

    Args:
        fast: Accumulate on Hopper as vLLM and torchao do: in fewer bits than 32.
    """
    product: Tensor = torch.ops.aten._scaled_mm_v2(
        codes, weight.t(), [scales], [by.value], [], [weight_scale], [weight_by.value], [], None, dtype, (), fast
    )  # fmt: skip
    return product


class BlockScaledLinear(nn.Module):
    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor | None) -> None:
        """Keep the weights without a copy.

        Args:
            weight: [out, in], float8_e4m3fn; `in` is a multiple of BLOCK.
            scale: [out / BLOCK, in / BLOCK], rounded up, in 32 bits.
            bias: [out].
        """
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.register_buffer("weight_scale", functional.pad(scale, (0, -scale.shape[1] % SCALES_MULTIPLE)))
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    def forward(self, hidden: Tensor) -> Tensor:
        scale_of_weight: Any = self.weight_scale
        groups, scales = quantized_rows(hidden.reshape(-1, BLOCK), self.weight.dtype)
        codes, scales = groups.view(-1, self.in_features), scales.view(-1, self.in_features // BLOCK)
        multiply = block_product if hidden.is_cuda else dequantized_product
        product = multiply(codes, scales, self.weight, scale_of_weight, hidden.dtype)
        product = product if self.bias is None else product + self.bias.to(product.dtype)
        return product.view(*hidden.shape[:-1], -1)


def block_product(codes: Tensor, scales: Tensor, weight: Tensor, weight_scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the product of quantized rows with a weight, [rows, out], on a GPU of compute capability 9.0.

    Args:
        scales: [rows, in / BLOCK].
        weight_scale: [out / BLOCK, in / BLOCK], with columns up to a multiple of SCALES_MULTIPLE.
    """
    kinds = functional.ScalingType
    # Consecutive rows are adjacent in memory. torch also checks the stride of a dimension of size 1.
    by_column = scales.t().contiguous().as_strided(scales.shape, (1, len(scales)))
    # The kernel has no output in float16.
    output = torch.bfloat16 if dtype == torch.bfloat16 else torch.float32
    return _scaled_mm(
        codes, weight, by_column, kinds.BlockWise1x128, weight_scale.t(), kinds.BlockWise128x128, output
    ).to(dtype)  # fmt: skip


def dequantized_product(
    codes: Tensor, scales: Tensor, weight: Tensor, weight_scale: Tensor, dtype: torch.dtype
) -> Tensor:
    """Compute `block_product` with dequantized numbers in 32 bits: its specification, on any device."""
    by_block = weight_scale.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    dequantized = weight.float() * by_block[: weight.shape[0], : weight.shape[1]]
    return ((codes.float() * scales.repeat_interleave(BLOCK, 1)) @ dequantized.t()).to(dtype)
