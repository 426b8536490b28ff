"""4-bit weights times several rows: the source, compiled for a processor, against sums in 64 bit, and how it is config.

What the GPU's own instructions make of it is tested on a GPU (tests/kernels/test_quantized_gemm_gpu.py).
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
"""Inputs and outputs of its products, of joined linears and of single ones."""


@pytest.fixture
def on_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products are made by the kernel's source on the processor."""
    run_on_processor(w4a16_gemm, monkeypatch)


def random_weights(form: str, inputs: int, outputs: int, dtype: torch.dtype) -> tuple[Packed, torch.Tensor]:
    """Packed, and as numbers, [outputs, inputs]."""
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
        # More tiles than groups.
        ("int4 by group", 8, 640, 80, TileConfig(2, 1, 1, 1), torch.float16),
        ("nf4", 2, 512, 112, TileConfig(1, 2, 1, 2), torch.float16),
        # Parts, the last of which has less; rows that are not all of a tensor core's.
        ("int4 by group", 21, 1152, 96, TileConfig(2, 1, 3, 1), torch.bfloat16),
        ("nf4", 19, 1280, 48, TileConfig(3, 1, 2, 2), torch.float16),
        # More warps than sums, in parts; fewer tiles than groups.
        ("fp4", 5, 1792, 32, TileConfig(5, 1, 2, 1), torch.bfloat16),
        ("int4 by group", 64, 256, 16, TileConfig(1, 2, 2, 1), torch.float16),
        # Zero points other than 8; parts, and rows that are not all of a tensor core's.
        (INT4_ZEROS, 21, 1152, 96, TileConfig(2, 1, 3, 2), torch.bfloat16),
        (INT4_ZEROS, 8, 640, 80, TileConfig(2, 1, 1, 1), torch.float16),
    ],
)
@pytest.mark.usefixtures("on_processor")
def test_weights_times_rows(
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
    right = hidden.double() @ weights.T
    made = launch(hidden, packed, config).double()
    assert float((made - right).norm() / right.norm()) < (4e-3 if dtype == torch.bfloat16 else 7e-4)
    # The counts are as they were, and so the next product is the same.
    assert not counters.any()
    assert torch.equal(launch(hidden, packed, config).double(), made)


@pytest.mark.parametrize(("inputs", "outputs"), QWEN3_4B)
@pytest.mark.parametrize("rows", [2, 8, 9, 16, 24, 32, 40, 64])
def test_every_cut_is_one_that_a_block_can_run(rows: int, inputs: int, outputs: int) -> None:
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


def test_a_card_with_less_shared_memory_gets_other_cuts() -> None:
    packed, _ = random_weights("nf4", 2560, 1024, torch.float16)
    least = 99 * 1024
    for config in tile_configs_for(packed, 64, 132, least):
        assert program_for(packed, 64, torch.float16, config, 132).shared_bytes <= least
    assert tile_configs_for(packed, 64, 132, least)


def test_rows_of_another_kind_are_refused() -> None:
    packed, _ = random_weights("nf4", 128, 16, torch.float16)
    off_its_place = torch.zeros(2 * 128 + 1, dtype=torch.float16)[1:].view(2, 128)
    for hidden in (torch.zeros(2, 128), torch.zeros(65, 128, dtype=torch.float16), off_its_place):
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
        ("place", "weights that begin at no multiple of 16 bytes"),
        ("card", "another card"),
    ],
)
def test_what_the_kernel_does_not_take_is_said(
    changed: str, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    why = "another card" if changed == "card" else None
    monkeypatch.setattr(gemv_tensor_core, "why_not", lambda *asked: why)
    rows = 65 if changed == "rows" else 2
    packed, _ = random_weights("nf4" if changed == "codes" else "int4 by group", 256, 32, torch.float16)
    fields: dict[str, Any] = {
        "group": {"scales": torch.zeros(4, 32, dtype=torch.float16)},
        "zeros": {"form": INT4_ZEROS},
        "scales": {"scales": packed.scales.float()},
        # Of a larger matrix from its second number on.
        "place": {"words": torch.zeros(1025, dtype=torch.int32)[1:].view(32, 32)},
    }.get(changed, {})
    asked = Packed(**{**vars(packed), **fields})
    said = w4a16_gemm.why_not(torch.zeros(rows, 256, dtype=torch.float16), asked)
    assert said == reason if reason is None else (said or "").startswith(reason)
