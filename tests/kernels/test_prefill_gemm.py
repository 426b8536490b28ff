"""Prefill GEMM: tile configs, and the CUDA source compiled for the CPU, compared with float32.

The GPU's instructions are tested on a GPU.
"""

from ctypes import CDLL
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from benchmarker.kernels import permute_rows, prefill_gemm
from benchmarker.kernels.cuda_source import CudaSourceError
from benchmarker.kernels.packed_weights import INT4_ZEROS, by_lane
from benchmarker.kernels.prefill_gemm import TileConfig, launch, tile_configs_for
from benchmarker.kernels.quantized_gemm import candidates_for
from tests.benchmarks.gemm_times import weights_of
from tests.on_processor import OnProcessorKernel, run_on_processor

FORMS = {8: "int8 by row", 4: "int4 by group", 16: "nf4"}


@dataclass(frozen=True)
class Case:
    """A product and its tile config."""

    form: int
    rows: int
    inputs: int
    outputs: int
    config: TileConfig
    stages: int
    dtype: torch.dtype = torch.float16
    are_scales_wide: bool = False
    has_zeros: bool = False


def by_hand(case: Case) -> Any:
    """Mark a case whose features other cases cover."""
    return pytest.param(case, marks=pytest.mark.by_hand)


@pytest.mark.parametrize(
    "case",
    [
        # Fewer tiles than blocks: tiles are split. The last tiles of outputs and rows are incomplete.
        Case(8, 40, 256, 136, TileConfig(128, 32, 7, 4), stages=2, are_scales_wide=True),
        Case(4, 1, 768, 96, TileConfig(256, 32, 5, 1), stages=3),
        by_hand(Case(16, 33, 768, 64, TileConfig(128, 32, 4, 2), stages=3)),
        # More tiles than blocks: some are whole, others split.
        by_hand(Case(8, 150, 320, 400, TileConfig(128, 32, 6, 2), stages=4, dtype=torch.bfloat16)),
        Case(4, 70, 384, 224, TileConfig(128, 32, 4, 2), stages=3),
        Case(4, 97, 640, 288, TileConfig(256, 64, 3, 1), stages=2, dtype=torch.bfloat16),
        by_hand(Case(16, 100, 768, 304, TileConfig(256, 32, 3, 2), stages=4)),
        by_hand(Case(4, 70, 256, 160, TileConfig(128, 32, 4, 6), stages=2)),
        # Fewer chunks in split tiles than blocks.
        Case(8, 128, 256, 384, TileConfig(128, 32, 11, 1), stages=2, are_scales_wide=True),
        # Equal numbers of whole tiles per block.
        Case(8, 128, 448, 256, TileConfig(256, 128, 1, 0), stages=3),
        by_hand(Case(16, 140, 512, 312, TileConfig(128, 128, 2, 0), stages=2)),
        # Three consumer warp groups.
        Case(4, 70, 384, 352, TileConfig(192, 32, 4, 2), stages=3),
        by_hand(Case(16, 64, 512, 200, TileConfig(192, 64, 3, 2), stages=2)),
        # Tiles of 256 rows.
        by_hand(Case(8, 300, 256, 160, TileConfig(128, 256, 3, 1), stages=2)),
        by_hand(Case(4, 520, 384, 256, TileConfig(128, 256, 4, 2), stages=3, dtype=torch.bfloat16)),
        Case(16, 257, 512, 136, TileConfig(128, 256, 7, 4), stages=2),
        # The last wave is incomplete and not split: some blocks have one tile less.
        Case(4, 70, 384, 160, TileConfig(128, 32, 4, 0), stages=3),
        # Zero points other than 8; the last tiles are incomplete.
        Case(4, 70, 384, 352, TileConfig(192, 32, 4, 2), stages=3, has_zeros=True),
        Case(4, 97, 640, 288, TileConfig(128, 64, 3, 1), stages=2, dtype=torch.bfloat16, has_zeros=True),
        by_hand(Case(4, 300, 384, 256, TileConfig(256, 128, 3, 1), stages=3, has_zeros=True)),
        # As many stages as chunks whose scales are loaded together.
        Case(16, 30, 1280, 384, TileConfig(128, 32, 7, 3), stages=8),
    ],
    ids=str,
)
def test_prefill_gemm_matches_float32(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    run_on_processor(prefill_gemm, monkeypatch)
    monkeypatch.setattr(prefill_gemm, "MAX_STAGES", case.stages)
    packed, matrix = weights_of(INT4_ZEROS if case.has_zeros else FORMS[case.form], case.inputs, case.outputs, "cpu")
    if case.form != 16:
        packed = replace(packed, scales=packed.scales.to(torch.float32 if case.are_scales_wide else case.dtype))
    hidden = torch.randn(case.rows, case.inputs).to(case.dtype)
    result, expected = (
        launch(by_lane(hidden, packed.pack_factor), packed, case.config).float(),
        hidden.float() @ matrix.float().T,
    )
    assert float((result - expected).norm() / expected.norm()) < (8e-3 if case.dtype == torch.bfloat16 else 1e-3)
    assert not prefill_gemm._counts(hidden.device).any()


@pytest.mark.parametrize("form", ["int4 by group", "nf4"])
def test_prefill_gemm_permutes_few_rows_of_4_bit_weights(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    for module in (prefill_gemm, permute_rows):
        run_on_processor(module, monkeypatch)
    monkeypatch.setattr(prefill_gemm, "why_not", lambda *_: None)
    packed, matrix = weights_of(form, 512, 160, "cpu")
    hidden = torch.randn(20, 512).half()
    candidates = [one for one in candidates_for(hidden, packed) if one.name.endswith(", rows ordered before")]
    expected = hidden.float() @ matrix.float().T
    # The other candidates differ only in their tile config.
    candidate = candidates[0]
    assert float((candidate.launch(hidden, packed).float() - expected).norm() / expected.norm()) < 1e-3, candidate.name


def test_last_wave_of_tiles_is_split_unless_nearly_full() -> None:
    def shared(outputs: int, rows: int) -> list[int]:
        packed, _ = weights_of("int8 by row", 64, outputs, "cpu")
        return [
            config.split_tiles
            for config in tile_configs_for(packed, rows, 132)
            if config.outputs == 256 and config.blocks == 132
        ]

    # Two row tiles per 256 outputs: 132 tiles, one per block.
    assert shared(256 * 66, 256) == [0]
    # Each block computes a whole tile and a segment of the remaining tiles.
    assert shared(256 * 100, 256) == [68]
    assert shared(256 * 137, 256) == [10]
    # The last wave is nearly full: only four of 132 blocks are idle.
    assert shared(256 * 130, 256) == [0]


def test_several_grid_sizes_are_candidates_if_tiles_do_not_fill_the_gpu() -> None:
    packed, _ = weights_of("int8 by row", 256, 2560, "cpu")
    grids = [
        (config.blocks, config.split_tiles) for config in tile_configs_for(packed, 64, 132) if config.outputs == 128
    ]
    # 132 blocks, and 6, 4 and 1 blocks for each of 20 tiles; but no block without a chunk.
    assert grids == [(80, 20), (20, 0)]
    packed, _ = weights_of("int8 by row", 2560, 2560, "cpu")
    grids = [
        (config.blocks, config.split_tiles) for config in tile_configs_for(packed, 64, 132) if config.outputs == 128
    ]
    assert grids == [(132, 20), (120, 20), (80, 20), (20, 0)]


@pytest.mark.parametrize("form", FORMS.values())
@pytest.mark.parametrize("rows", [9, 33, 64, 100, 512, 4096])
def test_every_tile_config_fits_a_multiprocessor(form: str, rows: int) -> None:
    packed, _ = weights_of(form, 2560, 6144, "cpu")
    configs = tile_configs_for(packed, rows, 132)
    assert configs
    for config in configs:
        program = prefill_gemm.program_for(packed, torch.float16, config)
        assert dict(program.macros)["STAGES"] >= 2
        assert program.shared_bytes <= 227 * 1024
        assert config.blocks <= 132


@pytest.mark.parametrize(
    ("rows", "sizes"),
    [
        (9, {(128, 32)}),
        (33, {(128, 64)}),
        (128, {(128, 128)}),
        (200, {(256, 128), (128, 128)}),
        (384, {(128, 256), (256, 128)}),
        (512, {(192, 128), (128, 256)}),
        (640, {(128, 256), (256, 128)}),
        (2048, {(128, 256)}),
    ],
)
def test_tile_size_grows_with_the_number_of_rows(rows: int, sizes: set[tuple[int, int]]) -> None:
    packed, _ = weights_of("int8 by row", 64, 6144, "cpu")
    assert {(config.outputs, config.rows) for config in tile_configs_for(packed, rows, 132)} == sizes


@pytest.mark.parametrize(("rows", "tiles"), [(256, None), (384, None), (512, 128), (2048, None)])
def test_tiles_of_192_outputs_are_a_candidate_for_one_nearly_full_wave(rows: int, tiles: int | None) -> None:
    packed, _ = weights_of("int8 by row", 64, 6144, "cpu")
    configs = [config for config in tile_configs_for(packed, rows, 132) if config.outputs == 192]
    assert configs == ([TileConfig(192, 128, tiles, 0)] if tiles else [])


def test_too_few_registers_per_thread_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    # The kernel would deadlock in setmaxnreg.
    packed, _ = weights_of("int8 by row", 256, 128, "cpu")
    monkeypatch.setattr(prefill_gemm, "cuda_kernel", lambda *_: OnProcessorKernel("prefill_gemm", CDLL(None), 160))
    with pytest.raises(CudaSourceError, match="gives a thread 160 registers, too few to exchange"):
        launch(by_lane(torch.randn(40, 256).half(), packed.pack_factor), packed, TileConfig(128, 32, 1, 0))
