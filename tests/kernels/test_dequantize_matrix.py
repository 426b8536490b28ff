"""Dequantized matrices equal those of the libraries, rounding included.

The kernels need a GPU, or Triton's interpreter (`test_kernels_interpreter.py`); these tests run the torch operators.
"""

from typing import Any

import pytest
import torch

from benchmarker.kernels import gemv_gptq, quantized_gemm
from benchmarker.kernels.dequantize_matrix import unpack_matrix
from benchmarker.kernels.dequantize_words import CODEBOOKS
from benchmarker.kernels.packed_weights import by_lane, packed_of
from benchmarker.kernels.quantized_gemm import unpacked_product

OUTPUTS, INPUTS = 48, 256
TYPES = [torch.float16, torch.bfloat16]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", TYPES)
def test_dequantized_int8_equals_torchao(dtype: torch.dtype) -> None:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    linear: Any = torch.nn.Linear(INPUTS, OUTPUTS, dtype=dtype)
    quantize_(torch.nn.Sequential(linear), Int8WeightOnlyConfig(version=2, set_inductor_config=False))
    tensors = quantized_gemm.packed_tensors(linear, "int8 by row")
    assert torch.equal(unpack_matrix(*tensors, "int8 by row", OUTPUTS, dtype).T, linear.weight.dequantize())


@pytest.mark.slow
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("form", "block"), [("nf4", 64), ("fp4", 128)])
def test_dequantized_codes_equal_bitsandbytes(form: str, block: int, dtype: torch.dtype) -> None:
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    codes, state = quantize_4bit(torch.randn(OUTPUTS, INPUTS).to(dtype), blocksize=block, quant_type=form)
    result = unpack_matrix(codes, state.absmax, state.code, form, OUTPUTS, dtype)
    assert torch.equal(result.T, dequantize_4bit(codes, state))


def tensors_of(form: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Return random weights, scales and zero points of a format in the library's layout."""
    if form == "int8 by row":
        return torch.randint(-128, 128, (OUTPUTS, INPUTS), dtype=torch.int8), torch.rand(OUTPUTS, 1), None
    if form == "nf4":
        codes = torch.randint(0, 256, (OUTPUTS * INPUTS // 2, 1), dtype=torch.uint8)
        return codes, torch.rand(OUTPUTS * INPUTS // 64), torch.tensor(CODEBOOKS["nf4"])
    words, zeros = (
        torch.randint(-(2**31), 2**31, shape, dtype=torch.int32)
        for shape in ((INPUTS // 8, OUTPUTS), (INPUTS // 64, OUTPUTS // 8))
    )
    return words, torch.rand(INPUTS // 64, OUTPUTS).half(), zeros


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("form", ["int8 by row", "int4 by group, zeros", "nf4"])
def test_fake_unpack_matrix_returns_the_real_shape_and_strides(form: str, dtype: torch.dtype) -> None:
    arguments = (*tensors_of(form), form, OUTPUTS, dtype)
    torch.library.opcheck(unpack_matrix, arguments, test_utils=("test_schema", "test_faketensor"))
    result = unpack_matrix(*arguments)
    assert (result.shape, result.dtype) == ((INPUTS, OUTPUTS), dtype)
    # The layout in memory is that of the packed weights.
    assert (result if form == "int4 by group, zeros" else result.T).is_contiguous()


def test_gptq_weights_are_rounded_in_the_dtype_of_their_scales() -> None:
    words, scales, zeros = tensors_of("int4 by group, zeros")
    assert zeros is not None
    result = unpack_matrix(words, scales, zeros, "int4 by group, zeros", OUTPUTS, torch.bfloat16)
    assert torch.equal(result, gemv_gptq.unpacked(words, zeros, scales).bfloat16())


@pytest.mark.parametrize("form", ["int8 by row", "int4 by group, zeros", "nf4"])
def test_permuted_rows_and_matrix_give_the_same_product(form: str) -> None:
    packed = packed_of(*tensors_of(form), form, OUTPUTS)
    hidden = torch.randn(40, INPUTS, dtype=torch.float64)
    torch.testing.assert_close(
        unpacked_product(by_lane(hidden, packed.pack_factor), packed), unpacked_product(hidden, packed)
    )
