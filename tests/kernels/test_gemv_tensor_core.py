"""W4A16 GEMVs on tensor cores: tile configs, and the CUDA sources compiled for the CPU, compared with float64.

The GPU's instructions are tested on a GPU (tests/engines/test_engines_gpu.py).
"""

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarker.kernels import cuda_source, gemv_nf4, gemv_tensor_core
from benchmarker.kernels.dequantize_words import CODEBOOKS
from benchmarker.kernels.gemv_fusion import NO_FUSION, GemvFusion
from benchmarker.kernels.gemv_gptq import ALL_EIGHT, Matrix, launch, on_tensor_cores, supports_tensor_cores, unpacked
from benchmarker.kernels.gemv_tensor_core import TileConfig, program_for, tile_config_for
from tests.gemv_sums import with_fusion
from tests.on_processor import run_on_processor


@pytest.fixture
def on_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the CUDA sources on the CPU."""
    run_on_processor(gemv_tensor_core, monkeypatch)


def fusion_of(name: str, inputs: int, outputs: int, dtype: torch.dtype) -> GemvFusion:
    """Return a fusion by name: `normed`, `gated` (with the norm) or `added`."""
    gain = (1 + torch.randn(inputs) / 4).to(dtype)
    residual = torch.randn(outputs).to(dtype)
    fusions = {
        "normed": GemvFusion(gain, 1e-6),
        "gated": GemvFusion(gain, 1e-6, swiglu=True),
        "added": GemvFusion(residual=residual),
    }
    return fusions[name]


@pytest.mark.parametrize(
    ("inputs", "outputs", "fused", "tile", "dtype"),
    [
        # An odd number of chunks, fewer K steps in the last warp, several waves of tiles.
        (640, 80, "normed", TileConfig(2, 1, 1), torch.float16),
        (512, 96, "gated", TileConfig(2, 2, 2), torch.float16),
        (1280, 32, "added", TileConfig(3, 1, 2), torch.bfloat16),
    ],
)
@pytest.mark.usefixtures("on_processor")
def test_nf4_gemv_matches_float64(inputs: int, outputs: int, fused: str, tile: TileConfig, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    hidden, numbers = torch.randn(inputs).to(dtype), torch.tensor(CODEBOOKS["nf4"])
    codes, scales = (
        torch.randint(0, 256, (outputs * inputs // 2, 1), dtype=torch.uint8),
        torch.rand(outputs, inputs // 64),
    )
    both = torch.stack((codes >> 4, codes & 15), 1).view(outputs, inputs).long()
    weights = numbers[both] * scales.repeat_interleave(64, 1)
    fusion = fusion_of(fused, inputs, outputs, dtype)
    result = gemv_nf4.launch(hidden, codes, scales.flatten(), numbers, fusion, tile=tile).double()
    expected = with_fusion(hidden, weights, fusion)
    assert float((result - expected).norm() / expected.norm()) < (4e-3 if dtype == torch.bfloat16 else 7e-4)


@pytest.mark.parametrize(
    ("inputs", "outputs", "fused", "tile", "dtype", "has_zeros"),
    [
        (640, (64, 16, 32), "normed", TileConfig(2, 1, 1), torch.float16, False),
        (512, (48, 48), "gated", TileConfig(4, 2, 1), torch.bfloat16, False),
        (1280, (96,), "added", TileConfig(3, 1, 2), torch.float16, False),
        (640, (64, 16, 32), "normed", TileConfig(2, 1, 1), torch.float16, True),
        (512, (48, 48), "gated", TileConfig(4, 2, 1), torch.bfloat16, True),
        (1280, (96,), "added", TileConfig(3, 1, 2), torch.float16, True),
    ],
)
@pytest.mark.usefixtures("on_processor")
def test_gptq_gemv_matches_float64(
    inputs: int, outputs: tuple[int, ...], fused: str, tile: TileConfig, dtype: torch.dtype, has_zeros: bool
) -> None:
    torch.manual_seed(0)
    hidden, matrices, weights = torch.randn(inputs).to(dtype), [], []
    for count in outputs:
        words = torch.randint(-(2**31), 2**31 - 1, (inputs // 8, count), dtype=torch.int32)
        scales = (torch.rand(inputs // 128, count) / 30).to(dtype)
        zeros = torch.full((inputs // 128, count // 8), ALL_EIGHT, dtype=torch.int32)
        if has_zeros:
            zeros = torch.randint_like(zeros, -(2**31), 2**31 - 1)
        matrices.append(Matrix(words, zeros if has_zeros else None, scales))
        weights.append(unpacked(words, zeros, scales.double()).T)
    fusion = fusion_of(fused, inputs, sum(outputs), dtype)
    result = on_tensor_cores(hidden, matrices, fusion, tile=tile).double()
    expected = with_fusion(hidden, torch.cat(weights), fusion)
    assert float((result - expected).norm() / expected.norm()) < (4e-3 if dtype == torch.bfloat16 else 7e-4)


@pytest.mark.usefixtures("on_processor")
def test_gate_and_up_as_columns_match_separate_matrices() -> None:
    torch.manual_seed(0)
    hidden, gain = torch.randn(512).half(), (1 + torch.randn(512) / 4).half()
    words = torch.randint(-(2**31), 2**31 - 1, (64, 96), dtype=torch.int32)
    scales = (torch.rand(4, 96) / 30).half()
    zeros = torch.randint(-(2**31), 2**31 - 1, (4, 12), dtype=torch.int32)
    columns = [Matrix(*parts) for parts in zip(*(part.chunk(2, 1) for part in (words, zeros, scales)), strict=True)]
    apart = [Matrix(*(part.contiguous() for part in vars(matrix).values())) for matrix in columns]
    result = [on_tensor_cores(hidden, matrices, GemvFusion(gain, 1e-6, swiglu=True)) for matrices in (columns, apart)]
    assert [matrix.pitch for matrix in columns] == [96, 96]
    assert torch.equal(*result)
    assert result[0].isfinite().all()
    # Concatenated outputs require contiguous matrices.
    with pytest.raises(AssertionError):
        launch(hidden, columns)


@pytest.mark.parametrize("max_prefetch", [1, gemv_tensor_core.MAX_PREFETCH])
def test_tile_config_fits_a_block_for_every_number_of_k_steps(max_prefetch: int) -> None:
    for k_steps in range(1, gemv_tensor_core.MAX_INPUTS // gemv_tensor_core.CHUNK + 1):
        program = program_for(
            torch.zeros(k_steps * gemv_tensor_core.CHUNK, dtype=torch.float16), NO_FUSION,
            tile_config_for(k_steps, max_prefetch=max_prefetch),
            k_steps=k_steps, tile_outputs=16, outputs=4096, sms=132,
        )  # fmt: skip
        macros = dict(program.macros)
        assert (
            macros["WARPS_PER_TILE"] * macros["K_STEPS"] >= k_steps > (macros["WARPS_PER_TILE"] - 1) * macros["K_STEPS"]
        )
        assert macros["K_STEPS"] % macros["PREFETCH"] == 0
        assert macros["PREFETCH"] <= max_prefetch
        assert macros["TILES_PER_BLOCK"] <= gemv_tensor_core.MAX_TILES_PER_BLOCK
        assert program.threads <= 20 * 32
        assert program.shared_bytes <= gemv_tensor_core.HOPPERS_SHARED_BYTES
        behind = gemv_tensor_core.INPUT_OFFSET + gemv_tensor_core.input_bytes(k_steps * gemv_tensor_core.CHUNK)
        assert program.shared_bytes <= behind + gemv_tensor_core.MAX_SUMS_BYTES


def test_kernel_is_persistent_if_tiles_exceed_one_wave() -> None:
    def repeated(outputs: int) -> int:
        program = program_for(
            torch.zeros(2560, dtype=torch.float16), NO_FUSION, TileConfig(10, 2, 1), k_steps=10, tile_outputs=8,
            outputs=outputs,
            sms=132,
        )  # fmt: skip
        return dict(program.macros)["IS_PERSISTENT"]

    assert repeated(8 * 132 * 2) == 0
    assert repeated(8 * 132 * 2 + 8) == 1


def test_float32_or_misaligned_vector_raises() -> None:
    packed, scales, numbers = torch.zeros(16 * 64, 1, dtype=torch.uint8), torch.zeros(32), torch.zeros(16)
    for hidden in (torch.zeros(128), torch.zeros(136, dtype=torch.float16)[1:129]):
        with pytest.raises(ValueError, match="one type of 16 bits"):
            gemv_nf4.launch(hidden, packed, scales, numbers)


def test_unsupported_inputs_return_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda", 0)

    def why_not(**changed: Any) -> str | None:
        arguments = {"dtype": torch.float16, "inputs": 2560, "outputs": [1024, 32]} | changed
        return gemv_tensor_core.why_not(device, **arguments)

    assert gemv_tensor_core.why_not(torch.device("cpu"), torch.float16, 2560, [32]) is not None
    properties = SimpleNamespace(shared_memory_per_block_optin=gemv_tensor_core.HOPPERS_SHARED_BYTES)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(gemv_tensor_core, "supports_pdl", lambda device: True)
    for name in ("why_no_source", "why_not_compiled"):
        monkeypatch.setattr(gemv_tensor_core, name, lambda *device: None)
    assert why_not() is None
    assert why_not(dtype=torch.bfloat16) is None
    assert why_not(dtype=torch.float32) == "not of 16 bits"
    for changed in ({"inputs": 2600}, {"inputs": 2 * gemv_tensor_core.MAX_INPUTS}, {"outputs": [1024, 40]}):
        assert "multiple" in (why_not(**changed) or "")
    # With less shared memory, the vector of a large MLP does not fit.
    properties.shared_memory_per_block_optin = 99 * 1024
    assert why_not() is None
    assert "shared memory" in (why_not(inputs=17408) or "")
    monkeypatch.setattr(
        gemv_tensor_core, "why_not_compiled", lambda device: "NVRTC does not compile gemv_nf4.cu: sm_999"
    )
    assert "sm_999" in (why_not() or "")
    monkeypatch.setattr(gemv_tensor_core, "why_no_source", lambda: "no NVRTC of CUDA 13 is found")
    assert why_not() == "no NVRTC of CUDA 13 is found"


def test_unknown_compute_capability_returns_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise cuda_source.CudaSourceError("the driver says CUDA_ERROR_NO_BINARY_FOR_GPU")

    monkeypatch.setattr(gemv_tensor_core, "cuda_kernel", refused)
    gemv_tensor_core.why_not_compiled.cache_clear()
    assert gemv_tensor_core.why_not_compiled(torch.device("cpu")) == "the driver says CUDA_ERROR_NO_BINARY_FOR_GPU"
    gemv_tensor_core.why_not_compiled.cache_clear()


@pytest.mark.parametrize(
    "changed", ["nothing", "zeros", "wide zeros", "group", "scales", "gain", "misaligned", "device"]
)
def test_tensor_cores_support_only_known_layouts(changed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemv_tensor_core, "why_not", lambda *_: "none" if changed == "device" else None)
    words, zeros = torch.zeros(33, 32, dtype=torch.int32), torch.zeros(2, 4, dtype=torch.int32)
    scales = torch.zeros(
        4 if changed == "group" else 2, 32, dtype=torch.float32 if changed == "scales" else torch.float16
    )
    # A misaligned view of a larger matrix.
    words = words.flatten()[1:1025].view(32, 32) if changed == "misaligned" else words[:32]
    gain = torch.zeros(256, dtype=torch.bfloat16 if changed == "gain" else torch.float16)
    zeros = torch.zeros(2, 8, dtype=torch.int32)[:, :4] if changed == "wide zeros" else zeros
    matrix = Matrix(words, zeros if "zeros" in changed else None, scales)
    is_supported = supports_tensor_cores(torch.zeros(256, dtype=torch.float16), [matrix], GemvFusion(gain, 1e-6))
    assert is_supported == (changed in ("nothing", "zeros"))


def test_missing_nvrtc_or_driver_returns_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> ctypes.CDLL:
        raise OSError(name)

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(ctypes, "CDLL", missing)
    for cached in (cuda_source._nvrtc, cuda_source._driver, cuda_source.why_no_source):
        cached.cache_clear()
    assert cuda_source.why_no_source() == "no NVRTC of CUDA 13 is found"
    cuda_source.why_no_source.cache_clear()
    monkeypatch.setattr(cuda_source, "_nvrtc", lambda: None)
    assert cuda_source.why_no_source() == "no libcuda.so.1 is found"
    cuda_source.why_no_source.cache_clear()
