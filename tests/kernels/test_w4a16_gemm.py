"""W4A16 GEMM: tile configs, and the CUDA source compiled for the CPU, compared with float64.

The GPU's instructions are tested on a GPU (tests/kernels/test_quantized_gemm_gpu.py).
"""

from typing import Any

import pytest
import torch

from benchmarker.kernels import gemv_tensor_core, w4a16_gemm
from benchmarker.kernels.dequantize_words import CODEBOOKS
from benchmarker.kernels.gemv_gptq import ALL_EIGHT, unpacked
from benchmarker.kernels.packed_weights import INT4_ZEROS, Packed, is_int4_by_group
from benchmarker.kernels.w4a16_gemm import TileConfig, launch, program_for, tile_configs_for
from tests.on_processor import run_on_processor

QWEN3_4B = ((2560, 6144), (4096, 2560), (2560, 19456), (9728, 2560), (2560, 4096), (2560, 1024), (2560, 9728))
"""Inputs and outputs of the GEMMs of Qwen3-4B, of fused and of single linears."""


@pytest.fixture
def on_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the CUDA source on the CPU."""
    run_on_processor(w4a16_gemm, monkeypatch)


def random_weights(form: str, inputs: int, outputs: int, dtype: torch.dtype) -> tuple[Packed, torch.Tensor]:
    """Return random weights, packed and dequantized, [outputs, inputs]."""
    torch.manual_seed(0)
    if is_int4_by_group(form):
        words = torch.randint(-(2**31), 2**31 - 1, (inputs // 8, outputs), dtype=torch.int32)
        scales = (torch.rand(inputs // 128, outputs) / 30).to(dtype)
        zeros = torch.full((inputs // 128, outputs // 8), ALL_EIGHT, dtype=torch.int32)
        if form == INT4_ZEROS:
            zeros = torch.randint_like(zeros, -(2**31), 2**31 - 1)
        return Packed(form, words, scales, zeros), unpacked(words, zeros, scales.double()).T
    numbers = torch.tensor(CODEBOOKS[form])
    codes, scales = torch.randint(0, 256, (outputs, inputs // 2), dtype=torch.uint8), torch.rand(outputs, inputs // 64)
    both = torch.stack((codes >> 4, codes & 15), 2).view(outputs, inputs).long()
    weights = numbers[both].double() * scales.double().repeat_interleave(64, 1)
    return Packed(form, codes.view(torch.int16), scales, numbers), weights


@pytest.mark.parametrize(
    ("form", "rows", "inputs", "outputs", "config", "dtype"),
    [
        # Several waves of tiles.
        ("int4 by group", 8, 640, 80, TileConfig(2, 1, 1, 1), torch.float16),
        ("nf4", 2, 512, 112, TileConfig(1, 2, 1, 2), torch.float16),
        # Split K with a smaller last split; rows that are no multiple of eight.
        ("int4 by group", 21, 1152, 96, TileConfig(2, 1, 3, 1), torch.bfloat16),
        ("nf4", 19, 1280, 48, TileConfig(3, 1, 2, 2), torch.float16),
        # Split K with more warps than sums to reduce; fewer tiles than a block computes at a time.
        ("fp4", 5, 1792, 32, TileConfig(5, 1, 2, 1), torch.bfloat16),
        ("int4 by group", 64, 256, 16, TileConfig(1, 2, 2, 1), torch.float16),
        # Zero points other than 8; split K; rows that are no multiple of eight; the maximum number of rows.
        (INT4_ZEROS, 64, 384, 32, TileConfig(2, 1, 1, 1), torch.float16),
        (INT4_ZEROS, 21, 1152, 96, TileConfig(2, 1, 3, 2), torch.bfloat16),
        (INT4_ZEROS, 8, 640, 80, TileConfig(2, 1, 1, 1), torch.float16),
    ],
)
@pytest.mark.usefixtures("on_processor")
def test_w4a16_gemm_matches_float64(
    form: str,
    rows: int,
    inputs: int,
    outputs: int,
    config: TileConfig,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counters = torch.zeros(256, dtype=torch.int32)
    monkeypatch.setattr(w4a16_gemm, "arrival_counters", lambda kernel, places, device: counters)
    packed, weights = random_weights(form, inputs, outputs, dtype)
    hidden = torch.randn(rows, inputs).to(dtype)
    expected = hidden.double() @ weights.T
    result = launch(hidden, packed, config).double()
    assert float((result - expected).norm() / expected.norm()) < (4e-3 if dtype == torch.bfloat16 else 7e-4)
    # The counters are zero again, so a second launch returns the same result.
    assert not counters.any()
    assert torch.equal(launch(hidden, packed, config).double(), result)


@pytest.mark.parametrize(("inputs", "outputs"), QWEN3_4B)
@pytest.mark.parametrize("rows", [2, 8, 9, 16, 24, 32, 40, 64])
def test_every_tile_config_fits_a_block(rows: int, inputs: int, outputs: int) -> None:
    words = torch.empty(outputs, inputs // 4, dtype=torch.int16, device="meta")
    packed = Packed("nf4", words, torch.empty(outputs, inputs // 64, device="meta"))
    configs = tile_configs_for(packed, rows, 132)
    assert 3 <= len(configs) == len({config.name for config in configs}) <= 6
    for config in configs:
        program = program_for(packed, rows, torch.float16, config, 132)
        macros = dict(program.macros)
        shares = config.warps * config.split_k
        assert shares * macros["K_STEPS"] >= inputs // 128 > (shares - 1) * macros["K_STEPS"]
        assert macros["K_STEPS"] % config.prefetch == 0
        assert macros["ROW_TILES"] * 8 >= rows > macros["ROW_TILES"] * 8 - 8
        assert config.tiles <= gemv_tensor_core.MAX_TILES_PER_BLOCK
        assert program.threads <= 20 * 32
        assert program.blocks <= 132
        assert program.shared_bytes <= gemv_tensor_core.HOPPERS_SHARED_BYTES
        assert bool(macros["IS_PERSISTENT"]) == (outputs // 16 * config.split_k > program.blocks * config.tiles)


def test_tile_configs_fit_smaller_shared_memory() -> None:
    packed, _ = random_weights("nf4", 2560, 1024, torch.float16)
    least = 99 * 1024
    for config in tile_configs_for(packed, 64, 132, least):
        assert program_for(packed, 64, torch.float16, config, 132).shared_bytes <= least
    assert tile_configs_for(packed, 64, 132, least)


def test_misaligned_float32_or_too_many_rows_raise() -> None:
    packed, _ = random_weights("nf4", 128, 16, torch.float16)
    misaligned = torch.zeros(2 * 128 + 1, dtype=torch.float16)[1:].view(2, 128)
    for hidden in (torch.zeros(2, 128), torch.zeros(65, 128, dtype=torch.float16), misaligned):
        with pytest.raises(ValueError, match="2 to 64 rows of one type of 16 bits"):
            launch(hidden, packed, TileConfig(1, 1, 1, 1))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ("nothing", None),
        ("codes", None),
        ("rows", "fewer than 2 rows or more than 64"),
        ("group", "not GPTQ's words"),
        ("zeros", None),
        ("scales", "scales of another type"),
        ("misaligned", "weights that begin at no multiple of 16 bytes"),
        ("device", "another device"),
    ],
)
def test_unsupported_weights_return_a_reason(changed: str, reason: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    device_reason = "another device" if changed == "device" else None
    monkeypatch.setattr(gemv_tensor_core, "why_not", lambda *_: device_reason)
    rows = 65 if changed == "rows" else 2
    packed, _ = random_weights("nf4" if changed == "codes" else "int4 by group", 256, 32, torch.float16)
    fields: dict[str, Any] = {
        "group": {"scales": torch.zeros(4, 32, dtype=torch.float16)},
        "zeros": {"form": INT4_ZEROS},
        "scales": {"scales": packed.scales.float()},
        # A misaligned view of a larger matrix.
        "misaligned": {"words": torch.zeros(1025, dtype=torch.int32)[1:].view(32, 32)},
    }.get(changed, {})
    packed = Packed(**{**vars(packed), **fields})
    message = w4a16_gemm.why_not(torch.zeros(rows, 256, dtype=torch.float16), packed)
    assert message == reason if reason is None else (message or "").startswith(reason)
