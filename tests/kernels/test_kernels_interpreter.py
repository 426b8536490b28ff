"""Triton kernels in Triton's interpreter, compared with float64.

Inline PTX and programmatic dependent launch are tested on a GPU.
"""

import importlib.util

import pytest

from tests.interpreter import run_in_interpreter

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")

START = "import torch\ntorch.manual_seed(0)\n"
PACKED = """
from benchmarker.kernels.quantized_gemm_triton import TileConfig, launch
from benchmarker.kernels.packed_weights import Packed, by_word_position
from benchmarker.kernels.quantized_gemm import candidates_for
outputs, inputs, hidden = 136, 512, torch.randn(20, 512).half()
def checked(hidden, packed, words):
    product = launch(by_word_position(hidden, packed.pack_factor), packed, TileConfig(64, 32, words, 3, 4, 4))
    if packed.form != "int8 by row":
        likeliest = candidates_for(hidden, packed)[0].launch(hidden, packed)
        assert float((likeliest - product).norm() / product.norm()) < 5e-4
    return product
"""
CASES = {
    "gemv_dense": """
from benchmarker.kernels.gemv_dense import gemv_dense
rows, hidden = torch.randn(70, 1040), torch.randn(1040)
result, expected = gemv_dense(hidden, rows, None), rows.double() @ hidden.double()
""",
    "gemv_dense of int8": """
from benchmarker.kernels.gemv_dense import gemv_dense
rows, hidden = torch.randint(-128, 128, (70, 1040), dtype=torch.int8), torch.randn(1040)
scales = torch.rand(70, 1)
result, expected = gemv_dense(hidden, rows, scales), rows.double() @ hidden.double() * scales.double().flatten()
""",
    "gemv_swiglu": """
from benchmarker.kernels.gemv_dense import gemv_swiglu
rows, hidden = torch.randn(2 * 70, 1040) / 30, torch.randn(1040)
both = rows.double() @ hidden.double()
result, expected = gemv_swiglu(hidden, rows, None), torch.nn.functional.silu(both[:70]) * both[70:]
""",
    "gemv_gptq": """
from benchmarker.kernels.gemv_gptq import gemv_gptq
inputs, outputs, group = 640, 72, 64
codes, zeros = torch.randint(0, 16, (inputs, outputs)), torch.randint(0, 16, (inputs // group, outputs))
scales, hidden = torch.rand(inputs // group, outputs), torch.randn(inputs)
def packed(numbers):
    shifted = numbers.view(-1, 8, numbers.shape[1]) << 4 * torch.arange(8).view(1, 8, 1)
    return shifted.sum(1).to(torch.int32)
weights = (codes - zeros.repeat_interleave(group, 0)).double() * scales.double().repeat_interleave(group, 0)
expected = hidden.double() @ weights
result = gemv_gptq(hidden, packed(codes), packed(zeros.T.contiguous()).T.contiguous(), scales)
""",
    "decode_attention": """
from benchmarker.kernels.decode_attention import decode_attention
query, key, value = torch.randn(2, 8, 16), torch.randn(2, 300, 2, 16), torch.randn(2, 300, 2, 16)
lengths = torch.tensor([1, 270], dtype=torch.int32)
result = decode_attention(query, key, value, lengths, 0.25)
expected = torch.stack([
    torch.nn.functional.scaled_dot_product_attention(
        query[at].double().unsqueeze(1),
        *(cache[at, :length].double().transpose(0, 1).repeat_interleave(4, 0) for cache in (key, value)),
        scale=0.25,
    ).squeeze(1)
    for at, length in enumerate(lengths.tolist())
])
""",
    "packed_matmul of int8": PACKED
    + """
weights = torch.randint(-128, 128, (outputs, inputs), dtype=torch.int8)
scales = torch.rand(outputs) / 100
packed = Packed("int8 by row", weights.view(torch.int32), scales)
result = checked(hidden, packed, 32)
expected = hidden.double() @ (weights.double() * scales.double()[:, None]).T
""",
    "packed_matmul of GPTQ's words": PACKED
    + """
codes, zeros = torch.randint(0, 16, (inputs, outputs)), torch.randint(0, 16, (inputs // 128, outputs))
scales, shifts = torch.rand(inputs // 128, outputs), 4 * torch.arange(8)
words = (codes.view(-1, 8, outputs) << shifts.view(1, 8, 1)).sum(1).to(torch.int32)
packed_zeros = (zeros.view(len(zeros), -1, 8) << shifts).sum(2).to(torch.int32)
packed = Packed("int4 by group, zeros", words, scales, packed_zeros)
result = checked(hidden, packed, 16)
weights = (codes - zeros.repeat_interleave(128, 0)).double() * scales.double().repeat_interleave(128, 0)
expected = hidden.double() @ weights
""",
    "unpack_matrix of GPTQ's words": """
from benchmarker.kernels.packed_weights import Packed
from benchmarker.kernels.dequantize_matrix import launch, unpack
inputs, outputs, group = 640, 72, 64
codes, zeros = torch.randint(0, 16, (inputs, outputs)), torch.randint(0, 16, (inputs // group, outputs))
scales, shifts = torch.rand(inputs // group, outputs), 4 * torch.arange(8)
words = (codes.view(-1, 8, outputs) << shifts.view(1, 8, 1)).sum(1).to(torch.int32)
packed_zeros = (zeros.view(len(zeros), -1, 8) << shifts).sum(2).to(torch.int32)
packed = Packed("int4 by group, zeros", words, scales, packed_zeros)
result = launch(packed, torch.float32)
assert torch.equal(launch(packed, torch.float32, by_lane_order=True), unpack(packed, torch.float32, by_lane_order=True))
expected = (codes - zeros.repeat_interleave(group, 0)).double() * scales.double().repeat_interleave(group, 0)
""",
    "unpack_matrix of int8": """
from benchmarker.kernels.packed_weights import packed_of
from benchmarker.kernels.dequantize_matrix import launch, unpack
weights, scales = torch.randint(-128, 128, (72, 640), dtype=torch.int8), torch.rand(72, 1) / 100
packed = packed_of(weights, scales, None, "int8 by row", 72)
result, expected = launch(packed, torch.float16), weights.T.double() * scales.flatten().double()
assert torch.equal(result, unpack(packed, torch.float16))
assert torch.equal(launch(packed, torch.float16, by_lane_order=True), unpack(packed, torch.float16, by_lane_order=True))
""",
    "unpack_matrix of bitsandbytes' codes": """
from benchmarker.kernels.packed_weights import packed_of
from benchmarker.kernels.dequantize_matrix import launch, unpack
from benchmarker.kernels.dequantize_words import CODEBOOKS
codes, scales, table = torch.randint(0, 16, (72, 640)), torch.rand(72 * 10), torch.tensor(CODEBOOKS["fp4"])
both = (codes[:, 0::2] << 4 | codes[:, 1::2]).to(torch.uint8)
packed = packed_of(both.view(-1, 1), scales, table, "fp4", 72)
result = launch(packed, torch.float16)
expected = (table[codes].double() * scales.double().view(72, 10).repeat_interleave(64, 1)).T
assert torch.equal(result, unpack(packed, torch.float16))
assert torch.equal(launch(packed, torch.float16, by_lane_order=True), unpack(packed, torch.float16, by_lane_order=True))
""",
    "packed_matmul of bitsandbytes' codes": PACKED
    + """
from benchmarker.kernels.dequantize_words import CODEBOOKS
codes, scales = torch.randint(0, 16, (outputs, inputs)), torch.rand(outputs, inputs // 64)
words = (codes[:, 0::2] << 4 | codes[:, 1::2]).to(torch.uint8).view(torch.int16)
table = torch.tensor(CODEBOOKS["nf4"])
packed = Packed("nf4", words, scales, table)
result = checked(hidden, packed, 16)
expected = hidden.double() @ (table.half().double()[codes] * scales.double().repeat_interleave(64, 1)).T
""",
}
END = """
error = float((result.double() - expected).norm() / expected.norm())
assert error < (1e-5 if result.dtype == torch.float32 else 5e-4), error
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_kernel_matches_float64_in_the_interpreter(name: str) -> None:
    run_in_interpreter(START + CASES[name] + END)
