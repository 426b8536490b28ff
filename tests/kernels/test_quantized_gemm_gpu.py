"""Quantized GEMM on a GPU: results of every candidate, and storage of the choice."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarker.kernels import gemm_autotune, prefill_gemm, w4a16_gemm
from benchmarker.kernels.dequantize_matrix import unpack
from benchmarker.kernels.dequantize_words import CODEBOOKS
from benchmarker.kernels.gemm_autotune import Candidate, best_candidate, difference
from benchmarker.kernels.gemv_gptq import ALL_EIGHT
from benchmarker.kernels.packed_weights import (
    INT4_ZEROS,
    Packed,
    by_lane,
    by_word_position,
    is_int4_by_group,
    order_of,
    reorder,
)
from benchmarker.kernels.permute_rows import rows_by_lane, swiglu_by_lane
from benchmarker.kernels.quantized_gemm import candidates_for, unpacked_candidate, unpacked_product
from benchmarker.kernels.quantized_gemm_triton import launch, tile_configs_for
from tests.kernels.test_w4a16_gemm import QWEN3_4B

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")]
FORMS = ("int8 by row", "int4 by group", INT4_ZEROS, "nf4", "fp4")


def packed(form: str, outputs: int = 1160, inputs: int = 2560) -> Packed:
    """Return random weights of a form with the magnitude of a model's weights."""
    torch.manual_seed(0)

    def words(*shape: int, kind: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.randint(-(2**31), 2**31 - 1, shape, dtype=torch.int64, device="cuda").to(kind)

    def scales(*shape: int, kind: torch.dtype = torch.float16) -> torch.Tensor:
        return (torch.rand(shape, device="cuda") * 1e-2 + 1e-3).to(kind)

    if form == "int8 by row":
        return Packed(form, words(outputs, inputs // 4), scales(outputs))
    if form in CODEBOOKS:
        table = torch.tensor(CODEBOOKS[form], device="cuda")
        codes = words(outputs, inputs // 4, kind=torch.int16)
        return Packed(form, codes, scales(outputs, inputs // 64, kind=torch.float32), table)
    zeros = words(inputs // 128, outputs // 8)
    if form == "int4 by group":
        zeros = torch.full_like(zeros, ALL_EIGHT)
    return Packed(form, words(inputs // 8, outputs), scales(inputs // 128, outputs), zeros)


def matrix_of(weights: Packed) -> torch.Tensor:
    """Return the dequantized weights, [inputs, outputs]."""
    every_input = torch.eye(weights.length * weights.pack_factor, device="cuda", dtype=torch.float16)
    return unpacked_product(every_input, weights)


def skip_if(reason: str | None) -> None:
    """Skip the test if a kernel returns a reason."""
    if reason is not None:
        pytest.skip(reason)


def check_candidates(
    candidates: list[Candidate], hidden: torch.Tensor, weights: Packed, expected: torch.Tensor
) -> None:
    """Check that each candidate returns the expected product, bit-identical in four runs."""
    for candidate in candidates:
        result = candidate.launch(hidden, weights)
        assert difference(result, expected) < 1e-3, candidate.name
        # Blocks that split a tile end in any order, but partial sums are added in a fixed order.
        assert all(torch.equal(candidate.launch(hidden, weights), result) for _ in range(3)), candidate.name


@pytest.mark.parametrize("rows", [2, 8, 64, 128])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_triton_tiles_match_float64(form: str, rows: int, dtype: torch.dtype) -> None:
    weights = packed(form)
    hidden = torch.randn(rows, 2560, device="cuda", dtype=dtype)
    expected = hidden.double() @ matrix_of(weights).double()
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    tiles = tile_configs_for(weights, rows, processors)
    assert tiles
    for tile in tiles:
        result = launch(by_word_position(hidden, weights.pack_factor), weights, tile)
        assert difference(result, expected.float()) < (1e-3 if dtype == torch.float16 else 8e-3), tile


@pytest.mark.parametrize("rows", [2, 8, 21, 64])
@pytest.mark.parametrize(("inputs", "outputs"), QWEN3_4B)
@pytest.mark.parametrize("form", ["int4 by group", INT4_ZEROS, "nf4"])
def test_w4a16_candidates_are_correct_and_deterministic(form: str, inputs: int, outputs: int, rows: int) -> None:
    weights = packed(form, outputs, inputs)
    hidden = torch.randn(rows, inputs, device="cuda", dtype=torch.float16)
    skip_if(w4a16_gemm.why_not(hidden, weights))
    expected = hidden.float() @ matrix_of(weights).float()
    configs = [one for one in candidates_for(hidden, weights) if one.name.startswith("table, ")]
    assert len(configs) >= 3
    check_candidates(configs, hidden, weights, expected)


@pytest.mark.parametrize("form", ["int4 by group", INT4_ZEROS, "nf4", "fp4"])
def test_w4a16_gemm_supports_bfloat16(form: str) -> None:
    weights = packed(form, 2560, 4096)
    if is_int4_by_group(form):
        weights = Packed(form, weights.words, weights.scales.bfloat16(), weights.zeros)
    hidden = torch.randn(20, 4096, device="cuda", dtype=torch.bfloat16)
    skip_if(w4a16_gemm.why_not(hidden, weights))
    expected = hidden.float() @ matrix_of(weights).float()
    for config in w4a16_gemm.tile_configs_for(weights, 20, 132):
        assert difference(w4a16_gemm.launch(hidden, weights, config), expected) < 8e-3, config


@pytest.mark.parametrize("rows", [33, 64, 100, 512, 2100])
@pytest.mark.parametrize(("inputs", "outputs"), [(2560, 6144), (9728, 2560), (768, 200)])
@pytest.mark.parametrize("form", FORMS)
def test_prefill_candidates_are_correct_and_deterministic(form: str, inputs: int, outputs: int, rows: int) -> None:
    weights = packed(form, outputs, inputs)
    hidden = torch.randn(rows, inputs, device="cuda", dtype=torch.float16)
    skip_if(prefill_gemm.why_not(hidden.device, hidden.dtype, weights))
    expected, permuted = hidden.float() @ matrix_of(weights).float(), by_lane(hidden, weights.pack_factor)
    candidates = [one for one in candidates_for(permuted, weights) if one.name.startswith("warp groups, ")]
    assert candidates
    check_candidates(candidates, permuted, weights, expected)


@pytest.mark.parametrize("rows", [9, 20, 32])
@pytest.mark.parametrize("form", ["int4 by group", "nf4", "fp4"])
def test_prefill_candidates_with_permutation_are_correct_and_deterministic(form: str, rows: int) -> None:
    weights = packed(form, 6144, 2560)
    hidden = torch.randn(rows, 2560, device="cuda", dtype=torch.float16)
    skip_if(prefill_gemm.why_not(hidden.device, hidden.dtype, weights))
    candidates = [one for one in candidates_for(hidden, weights) if one.name.endswith(", rows ordered before")]
    assert candidates
    check_candidates(candidates, hidden, weights, hidden.float() @ matrix_of(weights).float())


@pytest.mark.parametrize("rows", [20, 64, 200])
@pytest.mark.parametrize("form", ["int8 by row", "int4 by group", INT4_ZEROS])
def test_prefill_gemm_supports_bfloat16(form: str, rows: int) -> None:
    weights = packed(form, 2560, 4096)
    weights = Packed(form, weights.words, weights.scales.bfloat16(), weights.zeros)
    hidden = torch.randn(rows, 4096, device="cuda", dtype=torch.bfloat16)
    skip_if(prefill_gemm.why_not(hidden.device, hidden.dtype, weights))
    expected = hidden.float() @ matrix_of(weights).float()
    for config in prefill_gemm.tile_configs_for(weights, rows, 132):
        assert (
            difference(prefill_gemm.launch(by_lane(hidden, weights.pack_factor), weights, config), expected) < 8e-3
        ), config


@pytest.mark.parametrize("pack_factor", [4, 8])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_permute_kernels_match_torch_operators(pack_factor: int, dtype: torch.dtype) -> None:
    gate_up = 4 * torch.randn(513, 2 * 9728, device="cuda")
    gate, up = gate_up.to(dtype).float().chunk(2, -1)
    assert torch.equal(rows_by_lane(gate_up.to(dtype), pack_factor), by_lane(gate_up.to(dtype), pack_factor))
    result, expected = (
        swiglu_by_lane(gate_up.to(dtype), pack_factor),
        by_lane(torch.nn.functional.silu(gate) * up, pack_factor),
    )
    torch.testing.assert_close(result.float(), expected, rtol=2e-3 if dtype == torch.float16 else 2e-2, atol=1e-6)


def on_processor(weights: Packed) -> Packed:
    zeros = None if weights.zeros is None else weights.zeros.cpu()
    return Packed(weights.form, weights.words.cpu(), weights.scales.cpu(), zeros)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("inputs", [128, 2560])
@pytest.mark.parametrize("by_lane_order", [False, True])
def test_dequantization_kernels_match_torch_operators(
    form: str, dtype: torch.dtype, inputs: int, by_lane_order: bool
) -> None:
    weights = packed(form, inputs=inputs)
    result, expected = (unpack(each, dtype, by_lane_order=by_lane_order) for each in (weights, on_processor(weights)))
    assert result.stride() == expected.stride()
    assert torch.equal(result.cpu(), expected)


@pytest.mark.parametrize("form", ["int8 by row", "int4 by group", "nf4"])
def test_dequantized_matrix_may_exceed_2_to_the_31_elements(form: str) -> None:
    if torch.cuda.get_device_properties(0).total_memory < 16 << 30:
        pytest.skip("needs 16 GiB")
    weights = packed(form, outputs=2**19, inputs=4224)
    result = unpack(weights, torch.float16)
    assert result.numel() > 2**31
    if form == "int4 by group":
        assert weights.zeros is not None
        end, result = Packed(form, weights.words[-16:], weights.scales[-1:], weights.zeros[-1:]), result[-128:]
    else:
        end, result = Packed(form, weights.words[-64:], weights.scales[-64:], weights.zeros), result[:, -64:]
    assert torch.equal(result.cpu(), unpack(on_processor(end), torch.float16))


@pytest.mark.parametrize("form", ["int8 by row", "int4 by group", "nf4"])
def test_choice_is_measured_once_per_machine(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, weights = tmp_path / "products.json", packed(form, 1024)
    monkeypatch.setattr(gemm_autotune, "file_for", lambda device: path)
    monkeypatch.setattr(gemm_autotune, "_choices", {})
    rows = torch.randn(8, 2560, device="cuda", dtype=torch.float16)
    hidden = reorder(rows, weights.pack_factor, order_of(form, 8, has_prefill_gemm=False))
    first = best_candidate(hidden, weights, candidates_for, unpacked_candidate)
    (choice,) = gemm_autotune.choices()
    assert choice.refused == {}
    assert choice.way == first.name
    assert path.exists()
    monkeypatch.setattr(gemm_autotune, "_choices", {})
    monkeypatch.setattr(gemm_autotune, "measure", lambda *_: pytest.fail("it was measured again"))
    assert best_candidate(hidden, weights, candidates_for, unpacked_candidate).name == first.name
