"""W4A16 GEMV on tensor cores, for Hopper and newer: tiles and launch of `gemv_nf4.cu` and `gemv_gptq.cu`.

`gemv_tensor_core.cuh` describes the algorithm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from benchmarker.kernels.cuda_source import CudaSourceError, cuda_kernel, why_no_source
from benchmarker.kernels.gemv_fusion import NO_FUSION, GemvFusion
from benchmarker.kernels.launch_support import is_aligned, supports_pdl

WARP = 32
CHUNK = 128  # CHUNK in the CUDA sources. The number of inputs must be a multiple.
OUTPUTS_STEP = 16  # The number of outputs of each matrix must be a multiple of 16.
MAX_INPUTS = 32768  # Maximum number of inputs: the vector must fit in shared memory.
TABLE_BYTES = 256 * 256  # Bytes of the pair table (`pair_table.cuh`) at the start of shared memory.
INPUT_OFFSET = TABLE_BYTES + 512  # Offset of the input vector in shared memory, after table and zeros.
MAX_SUMS_BYTES = 2 * 4 * 20 * 2 * 16
"""Maximum bytes of sums in shared memory: two buffers of float32 for 20 warps, two matrices and 16 outputs."""
HOPPERS_SHARED_BYTES = 227 * 1024  # Shared memory per block on Hopper; old versions of torch do not report it.
MAX_TILES_PER_BLOCK = 15  # A block has 15 named barriers, one per tile.
MAX_PREFETCH = 5  # Maximum number of K steps in a lane's registers.
HALF_TYPES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class TileConfig:
    warps: int  # Warps per tile, among which the inputs are divided.
    tiles: int  # Tiles that a block computes at a time.
    prefetch: int  # K steps whose weights a warp loads ahead.


def why_not(device: torch.device, dtype: torch.dtype, inputs: int, outputs: Sequence[int]) -> str | None:
    """Return why these kernels do not support this type and size; None if they do. `outputs`: one number per matrix."""
    if not supports_pdl(device):
        return "needs NVIDIA's Hopper or newer, and a Triton that is not 3.4"
    if dtype not in HALF_TYPES:
        return "not of 16 bits"
    if inputs % CHUNK or inputs > MAX_INPUTS or any(count % OUTPUTS_STEP for count in outputs):
        return "inputs that are no multiple of 128, or outputs that are none of 16"
    if INPUT_OFFSET + input_bytes(inputs) + MAX_SUMS_BYTES > max_shared_bytes(device):
        return "too many inputs for the shared memory of this card"
    return why_no_source() or why_not_compiled(device)


def max_shared_bytes(device: torch.device) -> int:
    properties: Any = torch.cuda.get_device_properties(device)
    return int(getattr(properties, "shared_memory_per_block_optin", HOPPERS_SHARED_BYTES))


def sm_count(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@cache
def why_not_compiled(device: torch.device) -> str | None:
    """Return why the smallest GEMV does not compile or load on this GPU; None if it does."""
    hidden = torch.zeros(CHUNK, dtype=torch.float16, device=device)
    program = program_for(hidden, NO_FUSION, TileConfig(1, 1, 1), k_steps=1, tile_outputs=8, outputs=8, sms=1)
    try:
        cuda_kernel("gemv_nf4", program.macros, program.threads, program.shared_bytes, device)
    except CudaSourceError as error:
        return str(error)
    return None


def input_bytes(inputs: int) -> int:
    """Return the bytes of a vector in shared memory, padded to a multiple of two chunks."""
    return 2 * -(-inputs // (2 * CHUNK)) * 2 * CHUNK


def supports_vectors(hidden: Tensor, *others: Tensor | None) -> bool:
    """Return True if all vectors have the same 16-bit type and are aligned to 16 bytes."""
    vectors = [hidden, *(vector for vector in others if vector is not None)]
    return hidden.dtype in HALF_TYPES and all(
        vector.dtype == hidden.dtype and vector.is_contiguous() and is_aligned(vector) for vector in vectors
    )


def tile_config_for(k_steps: int, *, max_prefetch: int = MAX_PREFETCH) -> TileConfig:
    """Return the tile for a number of K steps, by measurements of all GEMVs of Qwen3-4B on an H100."""
    steps = -(-k_steps // (20 if max_prefetch == 1 else 19))
    if steps > 3 and max_prefetch > 1:
        steps = -(-k_steps // (16 * max_prefetch)) * max_prefetch
    warps = -(-k_steps // steps)
    return TileConfig(warps, min(MAX_TILES_PER_BLOCK, max(1, 20 // warps)), min(steps, max_prefetch))


@dataclass(frozen=True)
class Program:
    macros: tuple[tuple[str, int], ...]
    blocks: int
    threads: int
    shared_bytes: int


def program_for(
    hidden: Tensor, fusion: GemvFusion, tile: TileConfig, *, k_steps: int, tile_outputs: int, outputs: int, sms: int,
    has_zeros: bool = False,
) -> Program:  # fmt: skip
    inputs, matrices = len(hidden), 2 if fusion.swiglu else 1
    tiles = outputs // tile_outputs
    blocks = min(-(-tiles // tile.tiles), sms)
    steps = -(-k_steps // (tile.warps * tile.prefetch)) * tile.prefetch
    macros = {
        "INPUTS": inputs, "WARPS_PER_TILE": tile.warps, "TILES_PER_BLOCK": tile.tiles, "K_STEPS": steps,
        "PREFETCH": tile.prefetch, "IS_PERSISTENT": blocks * tile.tiles < tiles, "HAS_NORM": fusion.gain is not None,
        "SWIGLU": fusion.swiglu, "HAS_RESIDUAL": fusion.residual is not None, "HAS_ZEROS": has_zeros,
        "BF16": hidden.dtype == torch.bfloat16,
    }  # fmt: skip
    sums = max(2 * tile.tiles * tile.warps * tile_outputs * matrices, tile.tiles * tile.warps)
    return Program(
        tuple((name, int(value)) for name, value in macros.items()),
        blocks,
        WARP * tile.warps * tile.tiles,
        INPUT_OFFSET + input_bytes(inputs) + 4 * sums,
    )


def launch(
    name: str, hidden: Tensor, weights: Sequence[Tensor | None], sizes: Sequence[int], fusion: GemvFusion, *,
    k_steps: int, tile_outputs: int, outputs: int, tile: TileConfig | None = None, has_zeros: bool = False,
) -> Tensor:  # fmt: skip
    """Run one kernel for the GEMV and its fused operations.

    Args:
        name: File name without `.cu`.
        hidden: [in]. `hidden` and the vectors of `fusion` must satisfy `supports_vectors`.
        weights: Tensor arguments of the kernel before the norm's weight.
        sizes: Integer arguments of the kernel after the output.
        k_steps: Number of K steps of a tile, which are divided among its warps.
        has_zeros: The weights have zero points other than 8.
    """
    if not supports_vectors(hidden, fusion.gain, fusion.residual):
        raise ValueError("vectors that are not all of one type of 16 bits, or that begin at no multiple of 16 bytes")
    output, device = hidden.new_empty(outputs), hidden.device
    program = program_for(
        hidden, fusion, tile or tile_config_for(k_steps), k_steps=k_steps, tile_outputs=tile_outputs, outputs=outputs,
        sms=sm_count(device), has_zeros=has_zeros,
    )  # fmt: skip
    kernel = cuda_kernel(name, program.macros, program.threads, program.shared_bytes, device)
    kernel(program.blocks, [hidden, *weights, fusion.gain, fusion.residual, output, *sizes, float(fusion.epsilon)])
    return output
