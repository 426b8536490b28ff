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
from benchmarker.kernels.launch_support import can_start_early, is_aligned

WARP = 32
CHUNK = 128  # Inputs per step of a warp, CHUNK in the CUDA sources. The number of inputs must be a multiple.
OUTPUTS_STEP = 16  # The number of outputs of each matrix must be a multiple of 16.
MOST_INPUTS = 32768  # Maximum number of inputs: the vector must fit in shared memory.
TABLE_BYTES = 256 * 256  # Bytes of the pair table (`pair_table.cuh`) at the start of shared memory.
VECTOR_AT = TABLE_BYTES + 512  # Offset of the vector in shared memory, after table and zeros.
SUMS_BYTES = 2 * 4 * 20 * 2 * 16
"""Maximum bytes of sums in shared memory: two buffers of float32 for 20 warps, two matrices and 16 outputs."""
HOPPERS_SHARED_BYTES = 227 * 1024  # Shared memory per block on Hopper; old versions of torch do not report it.
MOST_GROUPS = 15  # Maximum number of groups: a block has 15 barriers.
MOST_HELD = 5  # Maximum number of input parts in a lane's registers.
TYPES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Tile:
    split: int  # Warps among which the inputs of a tile are divided.
    groups: int  # Groups of `split` warps per program.
    held: int  # Input parts that a warp reads ahead.


def why_not(device: torch.device, dtype: torch.dtype, inputs: int, outputs: Sequence[int]) -> str | None:
    """Return why these kernels do not support this type and size; None if they do. `outputs`: one number per matrix."""
    if not can_start_early(device):
        return "needs NVIDIA's Hopper or newer, and a Triton that is not 3.4"
    if dtype not in TYPES:
        return "not of 16 bits"
    if inputs % CHUNK or inputs > MOST_INPUTS or any(count % OUTPUTS_STEP for count in outputs):
        return "inputs that are no multiple of 128, or outputs that are none of 16"
    if VECTOR_AT + vector_bytes(inputs) + SUMS_BYTES > most_shared_bytes(device):
        return "too many inputs for the shared memory of this card"
    return why_no_source() or why_not_compiled(device)


def most_shared_bytes(device: torch.device) -> int:
    properties: Any = torch.cuda.get_device_properties(device)
    return int(getattr(properties, "shared_memory_per_block_optin", HOPPERS_SHARED_BYTES))


def processors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@cache
def why_not_compiled(device: torch.device) -> str | None:
    """Return why the smallest GEMV does not compile or load on this GPU; None if it does."""
    hidden = torch.zeros(CHUNK, dtype=torch.float16, device=device)
    program = program_for(hidden, NO_FUSION, Tile(1, 1, 1), units=1, tile_outputs=8, outputs=8, multiprocessors=1)
    try:
        cuda_kernel("gemv_nf4", program.macros, program.threads, program.shared_bytes, device)
    except CudaSourceError as error:
        return str(error)
    return None


def vector_bytes(inputs: int) -> int:
    """Return the bytes of a vector in shared memory, padded to a multiple of two chunks."""
    return 2 * -(-inputs // (2 * CHUNK)) * 2 * CHUNK


def takes_vectors(hidden: Tensor, *others: Tensor | None) -> bool:
    """Return True if all vectors have the same 16-bit type and are aligned to 16 bytes."""
    given = [hidden, *(vector for vector in others if vector is not None)]
    return hidden.dtype in TYPES and all(
        vector.dtype == hidden.dtype and vector.is_contiguous() and is_aligned(vector) for vector in given
    )


def tile_for(units: int, *, most_held: int = MOST_HELD) -> Tile:
    """Return the tile for `units` input parts, by measurements of all GEMVs of Qwen3-4B on an H100."""
    each = -(-units // (20 if most_held == 1 else 19))
    if each > 3 and most_held > 1:
        each = -(-units // (16 * most_held)) * most_held
    split = -(-units // each)
    return Tile(split, min(MOST_GROUPS, max(1, 20 // split)), min(each, most_held))


@dataclass(frozen=True)
class Program:
    macros: tuple[tuple[str, int], ...]
    blocks: int
    threads: int
    shared_bytes: int


def program_for(
    hidden: Tensor, ends: GemvFusion, tile: Tile, *, units: int, tile_outputs: int, outputs: int, multiprocessors: int,
    zeroed: bool = False,
) -> Program:  # fmt: skip
    inputs, matrices = len(hidden), 2 if ends.swiglu else 1
    tiles = outputs // tile_outputs
    blocks = min(-(-tiles // tile.groups), multiprocessors)
    each = -(-units // (tile.split * tile.held)) * tile.held
    macros = {
        "INPUTS": inputs, "WARPS_PER_TILE": tile.split, "TILES_PER_BLOCK": tile.groups, "K_STEPS": each,
        "PREFETCH": tile.held, "IS_PERSISTENT": blocks * tile.groups < tiles, "HAS_NORM": ends.gain is not None,
        "SWIGLU": ends.swiglu, "HAS_RESIDUAL": ends.residual is not None, "HAS_ZEROS": zeroed,
        "BF16": hidden.dtype == torch.bfloat16,
    }  # fmt: skip
    sums = max(2 * tile.groups * tile.split * tile_outputs * matrices, tile.groups * tile.split)
    return Program(
        tuple((name, int(value)) for name, value in macros.items()),
        blocks,
        WARP * tile.split * tile.groups,
        VECTOR_AT + vector_bytes(inputs) + 4 * sums,
    )


def launch(
    name: str, hidden: Tensor, weights: Sequence[Tensor | None], sizes: Sequence[int], ends: GemvFusion, *,
    units: int, tile_outputs: int, outputs: int, tile: Tile | None = None, zeroed: bool = False,
) -> Tensor:  # fmt: skip
    """Run one kernel for the GEMV and its fused operations.

    Args:
        name: File name without `.cu`.
        hidden: [in]. `hidden` and the vectors of `ends` must satisfy `takes_vectors`.
        weights: Tensor arguments of the kernel before the norm's weight.
        sizes: Integer arguments of the kernel after the output.
        units: Number of input parts, which are divided among warps.
        zeroed: The weights have zero points other than 8.
    """
    if not takes_vectors(hidden, ends.gain, ends.residual):
        raise ValueError("vectors that are not all of one type of 16 bits, or that begin at no multiple of 16 bytes")
    output, device = hidden.new_empty(outputs), hidden.device
    program = program_for(
        hidden, ends, tile or tile_for(units), units=units, tile_outputs=tile_outputs, outputs=outputs,
        multiprocessors=processors(device), zeroed=zeroed,
    )  # fmt: skip
    kernel = cuda_kernel(name, program.macros, program.threads, program.shared_bytes, device)
    kernel(program.blocks, [hidden, *weights, ends.gain, ends.residual, output, *sizes, float(ends.epsilon)])
    return output
