"""Prefill GEMM: packed weights times many rows, for Hopper. `prefill_gemm.cu` describes the algorithm."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from benchmarker.kernels import gemv_tensor_core
from benchmarker.kernels.cuda_source import HOPPER, CudaSourceError, TensorMap, cuda_kernel
from benchmarker.kernels.cuda_source import compile_only as compile_source
from benchmarker.kernels.gemv_tensor_core import HOPPERS_SHARED_BYTES, Program
from benchmarker.kernels.packed_weights import INT4_ZEROS, LANE_CHUNK, Packed

WARP_GROUP = 128  # Threads that issue one wgmma.
REGISTERS = {2: (40, 232), 3: (40, 152)}
"""(registers of a producer thread, of a consumer thread) by number of consumer warp groups. Warp groups exchange
registers (setmaxnreg); a block that starts with fewer than their sum would deadlock."""
EPILOGUE_BYTES = 4 * 1024  # Bytes of shared memory for the epilogue of a warp group.
ZEROS_STRIDE = 128  # Bytes of shared memory for the zero points of a stage, ZEROS_STRIDE in the source.
MAX_STAGES = 8
MAX_SPLIT_TILES = 1024
SCALE_CHUNKS = 8  # Number of chunks whose scales (of codes) are loaded together.
LINE = 32  # 32-bit words per line of a TMA box; the number of GPTQ's outputs must be a multiple.
BLOCKS_STEP = 256  # Inputs must be a multiple of 256 for codes, to align the scales of an output to 16 bytes.
FORMS = {"int8 by row": 8, "int4 by group": 4, INT4_ZEROS: 4, "nf4": 16, "fp4": 16}  # FORM in the source.
FULL_WAVE = 0.75  # Occupied share of the multiprocessors from which the tiles of the last wave are not split.
BLOCKS_PER_TILE = (4, 1)
"""Numbers of blocks per tile that are tried if there are fewer tiles than multiprocessors, in addition to the largest
possible number and one block per multiprocessor."""


@dataclass(frozen=True)
class TileConfig:
    outputs: int  # Outputs per tile: 128, 192 or 256.
    rows: int  # Rows per tile: 32, 64, 128, or 256 with 128 outputs.
    blocks: int  # At most one per multiprocessor.
    split_tiles: int  # Tiles that are split equally among all blocks (stream-K); each other tile is computed by one.

    @property
    def groups(self) -> int:
        """Number of consumer warp groups. One more warp group is the producer."""
        return 3 if self.outputs == 192 else 2

    @property
    def threads(self) -> int:
        return WARP_GROUP * (1 + self.groups)

    @property
    def name(self) -> str:
        """Name in records: `warp groups, 256 outputs, 128 rows, 132 programs, 28 tiles shared`."""
        size = f"{self.outputs} outputs, {self.rows} rows"
        return f"warp groups, {size}, {self.blocks} programs, {self.split_tiles} tiles shared"


def why_not(device: torch.device, dtype: torch.dtype, packed: Packed) -> str | None:
    """Return why this kernel does not support these weights with rows of type `dtype`; None if it does."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) != HOPPER:
        return "not Hopper"
    inputs = packed.length * packed.pack_factor
    return _why_not_weights(dtype, packed, inputs) or gemv_tensor_core.why_not(device, dtype, inputs, [])


def _why_not_weights(dtype: torch.dtype, packed: Packed, inputs: int) -> str | None:
    form, group = FORMS[packed.form], packed.group_words * packed.pack_factor
    if form == 16 and (group != LANE_CHUNK or inputs % BLOCKS_STEP or dtype != torch.float16):
        return "codes not in blocks of 64, inputs that are no multiple of 256, or not float16"
    if form == 4 and (group % LANE_CHUNK or packed.outputs % LINE):
        return "groups that are no multiple of 64, or outputs that are none of 32"
    if packed.scales.dtype not in {4: [dtype], 8: [dtype, torch.float32], 16: [torch.float32]}[form]:
        return "scales of another type"
    if packed.outputs % 8 or not packed.is_aligned:
        return "outputs that are no multiple of 8, or weights that begin at no multiple of 16 bytes"
    return None


def tile_configs_for(packed: Packed, rows: int, sms: int) -> list[TileConfig]:
    """Return the candidates, the most promising first.

    Tiles of 192 outputs help if nearly every multiprocessor then computes one tile: the GEMM of query, key and value of
    Qwen3-4B in GPTQ at 512 rows took 27 us, instead of 29 with the next best 96 tiles of 128 x 256 (H100, 2026-11-25).
    """
    sizes = _sizes(rows)
    tile_rows = min(128, sizes[0][1])
    chunks = packed.length * packed.pack_factor // LANE_CHUNK
    tiles_of_192 = _tiles(packed, rows, 192, tile_rows)
    configs = [TileConfig(192, tile_rows, tiles_of_192, 0)] if FULL_WAVE * sms < tiles_of_192 <= sms else []
    for outputs, size in sizes:
        tiles = _tiles(packed, rows, outputs, size)
        shares = (sms // tiles, *BLOCKS_PER_TILE)
        counts = [sms, *(share * tiles for share in shares if 0 < share * tiles < sms)]
        for blocks in dict.fromkeys(min(count, tiles * chunks) for count in counts):
            configs.append(TileConfig(outputs, size, blocks, _split_tiles(tiles, blocks)))
    return configs


def _sizes(rows: int) -> list[tuple[int, int]]:
    if rows <= 128:
        return [(128, next(size for size in (32, 64, 128) if rows <= size))]
    if rows <= 256:
        return [(256, 128), (128, 128)]
    is_half_empty = -(-rows // 128) % 2 == 1
    return [(128, 256), (256, 128)] if is_half_empty else [(128, 256)]


def _tiles(packed: Packed, rows: int, outputs: int, tile_rows: int) -> int:
    return -(-packed.outputs // outputs) * -(-rows // tile_rows)


def _split_tiles(tiles: int, blocks: int) -> int:
    """Return the number of tiles to split among all blocks (stream-K): tiles % blocks.

    Return 0 if the last wave occupies nearly all blocks, because exchanging partial sums would take longer.
    """
    remainder = tiles % blocks
    return remainder if tiles < blocks or remainder <= FULL_WAVE * blocks else 0


def program_for(packed: Packed, dtype: torch.dtype, config: TileConfig) -> Program:
    form, inputs = FORMS[packed.form], packed.length * packed.pack_factor
    words = config.outputs * LANE_CHUNK // (1 if form == 8 else 2)
    zeros = ZEROS_STRIDE if packed.form == INT4_ZEROS else 0
    stage = config.rows * LANE_CHUNK * 2 + words + (2 * config.outputs if form == 4 else 0) + zeros + 16
    of_codes = gemv_tensor_core.TABLE_BYTES + 2 * config.outputs * SCALE_CHUNKS * 4 if form == 16 else 0
    fixed = EPILOGUE_BYTES * config.groups + of_codes + 4 * 8
    stages = min(MAX_STAGES, (HOPPERS_SHARED_BYTES - fixed) // stage)
    macros = {
        "FORM": form, "HAS_ZEROS": int(packed.form == INT4_ZEROS), "INPUTS": inputs,
        "GROUP": packed.group_words * packed.pack_factor, "TILE_ROWS": config.rows, "CONSUMER_GROUPS": config.groups,
        "BLOCKS": config.outputs // (64 * config.groups), "STAGES": stages,
        "BF16": int(dtype == torch.bfloat16), "HAS_WIDE_SCALES": int(packed.scales.dtype == torch.float32),
        "PRODUCER_REGISTERS": REGISTERS[config.groups][0], "CONSUMER_REGISTERS": REGISTERS[config.groups][1],
    }  # fmt: skip
    return Program(tuple(macros.items()), config.blocks, config.threads, fixed + stages * stage)


def compile_only(hidden: Tensor, packed: Packed, config: TileConfig) -> None:
    compile_source("prefill_gemm", program_for(packed, hidden.dtype, config).macros, hidden.device)


def launch(hidden: Tensor, packed: Packed, config: TileConfig) -> Tensor:
    """Return the product, [rows, outputs], summed in 32 bits.

    Launches share counters and must run one after the other. Blocks wait for each other: all must be resident.
    """
    if not hidden.is_contiguous() or not gemv_tensor_core.supports_vectors(hidden):
        raise ValueError("not contiguous rows of one type of 16 bits that begin at a multiple of 16 bytes")
    assert config.split_tiles <= MAX_SPLIT_TILES
    rows, inputs = len(hidden), packed.length * packed.pack_factor
    program = program_for(packed, hidden.dtype, config)
    of_rows = TensorMap(hidden.view(rows, inputs), (LANE_CHUNK, config.rows), swizzled=True)
    of_words, of_scales, of_zeros = _maps_of(packed, config)
    sums = (config.blocks + config.split_tiles) * config.outputs * config.rows if config.split_tiles else 1
    partial_sums = hidden.new_empty(sums, dtype=torch.float32)
    output = hidden.new_empty((rows, packed.outputs))
    raster_along_rows = hidden.nbytes < packed.words.nbytes
    kernel = cuda_kernel("prefill_gemm", program.macros, program.threads, program.shared_bytes, hidden.device)
    producer_registers, consumer_registers = REGISTERS[config.groups]
    if kernel.registers * program.threads < WARP_GROUP * (producer_registers + consumer_registers * config.groups):
        raise CudaSourceError(f"the compiler gives a thread {kernel.registers} registers, too few to exchange")
    maps = [of_rows, of_words, of_scales or of_rows, of_zeros or of_rows]
    pointers = [packed.scales, packed.zeros, partial_sums, _counts(hidden.device), output]
    kernel(config.blocks, [*maps, *pointers, rows, packed.outputs, config.split_tiles, int(raster_along_rows)])
    return output


def _maps_of(packed: Packed, config: TileConfig) -> tuple[TensorMap, TensorMap | None, TensorMap | None]:
    form = FORMS[packed.form]
    if form == 4:
        lines = packed.words.view(packed.length, -1, LINE).transpose(0, 1)
        words = TensorMap(lines, (LINE, 8, config.outputs // LINE), swizzled=True)
        scales = TensorMap(packed.scales, (config.outputs, 1))
        if packed.form != INT4_ZEROS:
            return words, scales, None
        assert packed.zeros is not None
        return words, scales, TensorMap(packed.zeros, (config.outputs // 8, 1))
    bytes_of_outputs = packed.words.view(torch.uint8).view(packed.outputs, -1)
    if form == 8:
        return TensorMap(bytes_of_outputs, (LANE_CHUNK, config.outputs)), None, None
    words = TensorMap(bytes_of_outputs, (LANE_CHUNK // 2, config.outputs))
    return words, TensorMap(packed.scales, (SCALE_CHUNKS, config.outputs)), None


def prepare(device: torch.device) -> None:
    """Allocate the shared counters before a capture, which would set them to zero only at replay."""
    _counts(device)


@cache
def _counts(device: torch.device) -> Tensor:
    return torch.zeros(MAX_SPLIT_TILES, dtype=torch.int32, device=device)
