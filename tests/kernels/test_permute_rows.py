"""Permutation of rows for `prefill_gemm`: the CUDA source, compiled for the CPU, compared with torch operators."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

from benchmarker.kernels import permute_rows as module
from benchmarker.kernels.packed_weights import by_lane
from tests.on_processor import run_on_processor


@pytest.fixture
def on_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    run_on_processor(module, monkeypatch)
    monkeypatch.setattr(module, "THREADS", 64)


def random_rows(rows: int, inputs: int, dtype: torch.dtype) -> Tensor:
    torch.manual_seed(0)
    return (2 * torch.randn(rows, inputs)).to(dtype)


by_hand = pytest.mark.by_hand
"""Mark of pairs of pack factor and dtype whose values other pairs cover: each pair compiles another library."""


@pytest.mark.parametrize(
    ("pack_factor", "dtype"),
    [
        (4, torch.float16),
        (8, torch.bfloat16),
        pytest.param(8, torch.float16, marks=by_hand),
        pytest.param(4, torch.bfloat16, marks=by_hand),
    ],
)
# With 3 x 192, the last threads are idle.
@pytest.mark.parametrize(("rows", "inputs"), [(4, 128), (3, 192)])
def test_kernel_permutes_rows_like_torch_operators(
    pack_factor: int, dtype: torch.dtype, rows: int, inputs: int, on_processor: None
) -> None:
    hidden = random_rows(rows, inputs, dtype)
    assert torch.equal(module.launch(hidden, pack_factor), by_lane(hidden, pack_factor))


@pytest.mark.parametrize(
    ("pack_factor", "dtype", "rounding"),
    [
        (8, torch.float16, 2e-3),
        (4, torch.bfloat16, 2e-2),
        pytest.param(4, torch.float16, 2e-3, marks=by_hand),
        pytest.param(8, torch.bfloat16, 2e-2, marks=by_hand),
    ],
)
def test_kernel_computes_permuted_swiglu(
    pack_factor: int, dtype: torch.dtype, rounding: float, on_processor: None
) -> None:
    gate_up = random_rows(3, 2 * 192, dtype)
    gate, up = gate_up.float().chunk(2, -1)
    result, expected = module.launch(gate_up, pack_factor, is_swiglu=True), by_lane(silu(gate) * up, pack_factor)
    assert result.dtype == dtype
    torch.testing.assert_close(result.float(), expected, rtol=rounding, atol=1e-6)


def test_fake_operators_return_the_real_shapes() -> None:
    gate_up = random_rows(3, 2 * 192, torch.float16)
    for operator, rows in ((module.rows_by_lane, gate_up), (module.swiglu_by_lane, gate_up)):
        torch.library.opcheck(operator, (rows, 8))
