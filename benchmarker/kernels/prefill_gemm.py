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
from benchmarker.kernels.packed_weights import LANE_CHUNK, ZEROED, Packed

WARP_GROUP = 128  # Threads that issue one wgmma.
REGISTERS = {2: (40, 232), 3: (40, 152)}
"""(registers of a copying thread, of a multiplying thread) by number of multiplying warp groups. Threads exchange
registers; a program that starts with fewer than their sum would deadlock."""
STAGED_BYTES = 4 * 1024  # Bytes of shared memory for the results of a warp group.
ZEROS_STEP = 128  # Bytes of shared memory for the zero points of a stage, ZEROS_STEP in the source.
MOST_STAGES = 8
MOST_SHARED = 1024
SCALED = 8  # Number of chunks whose scales (of codes) are copied together.
LINE = 32  # 32-bit words that are copied together; the number of GPTQ's outputs must be a multiple.
BLOCKS_STEP = 256  # Inputs must be a multiple of 256 for codes, to align the scales of an output to 16 bytes.
FORMS = {"int8 by row": 8, "int4 by group": 4, ZEROED: 4, "nf4": 16, "fp4": 16}  # FORM in the source.
NEARLY_ALL = 0.75  # Share of the multiprocessors from which each remaining tile is computed by one multiprocessor.
SHARES = (4, 1)
"""Numbers of programs per tile that are tried if there are fewer tiles than multiprocessors, in addition to the largest
possible number and one program per multiprocessor."""


@dataclass(frozen=True)
class Cut:
    outputs: int  # Outputs per tile: 128, 192 or 256.
    rows: int  # Rows per tile: 32, 64, 128, or 256 with 128 outputs.
    programs: int  # Number of programs, at most one per multiprocessor.
    shared: int  # Number of tiles that are divided equally among all programs; each other tile has one program.

    @property
    def groups(self) -> int:
        """Number of warp groups that multiply. One more warp group copies."""
        return 3 if self.outputs == 192 else 2

    @property
    def threads(self) -> int:
        return WARP_GROUP * (1 + self.groups)

    @property
    def name(self) -> str:
        """Name in records: `warp groups, 256 outputs, 128 rows, 132 programs, 28 tiles shared`."""
        size = f"{self.outputs} outputs, {self.rows} rows"
        return f"warp groups, {size}, {self.programs} programs, {self.shared} tiles shared"


def why_not(device: torch.device, dtype: torch.dtype, packed: Packed) -> str | None:
    """Return why this kernel does not support these weights with rows of type `dtype`; None if it does."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) != HOPPER:
        return "not Hopper"
    inputs = packed.length * packed.in_word
    return _why_not_weights(dtype, packed, inputs) or gemv_tensor_core.why_not(device, dtype, inputs, [])


def _why_not_weights(dtype: torch.dtype, packed: Packed, inputs: int) -> str | None:
    form, group = FORMS[packed.form], packed.in_group * packed.in_word
    if form == 16 and (group != LANE_CHUNK or inputs % BLOCKS_STEP or dtype != torch.float16):
        return "codes not in blocks of 64, inputs that are no multiple of 256, or not float16"
    if form == 4 and (group % LANE_CHUNK or packed.outputs % LINE):
        return "groups that are no multiple of 64, or outputs that are none of 32"
    if packed.scales.dtype not in {4: [dtype], 8: [dtype, torch.float32], 16: [torch.float32]}[form]:
        return "scales of another type"
    if packed.outputs % 8 or not packed.is_in_place:
        return "outputs that are no multiple of 8, or weights that begin at no multiple of 16 bytes"
    return None


def cuts_for(packed: Packed, rows: int, processors: int) -> list[Cut]:
    """Return the cuts to time, the most promising first.

    Tiles of 192 outputs help if nearly every multiprocessor then computes one tile: the GEMM of query, key and value of
    Qwen3-4B in GPTQ at 512 rows took 27 us, instead of 29 with the next best 96 tiles of 128 x 256 (H100, 2026-11-25).
    """
    sizes = _sizes(rows)
    tile_rows = min(128, sizes[0][1])
    chunks = packed.length * packed.in_word // LANE_CHUNK
    of_192 = _tiles(packed, rows, 192, tile_rows)
    cuts = [Cut(192, tile_rows, of_192, 0)] if NEARLY_ALL * processors < of_192 <= processors else []
    for outputs, size in sizes:
        tiles = _tiles(packed, rows, outputs, size)
        shares = (processors // tiles, *SHARES)
        counts = [processors, *(share * tiles for share in shares if 0 < share * tiles < processors)]
        for programs in dict.fromkeys(min(count, tiles * chunks) for count in counts):
            cuts.append(Cut(outputs, size, programs, _shared_tiles(tiles, programs)))
    return cuts


def _sizes(rows: int) -> list[tuple[int, int]]:
    if rows <= 128:
        return [(128, next(size for size in (32, 64, 128) if rows <= size))]
    if rows <= 256:
        return [(256, 128), (128, 128)]
    is_half_empty = -(-rows // 128) % 2 == 1
    return [(128, 256), (256, 128)] if is_half_empty else [(128, 256)]


def _tiles(packed: Packed, rows: int, outputs: int, tile_rows: int) -> int:
    return -(-packed.outputs // outputs) * -(-rows // tile_rows)


def _shared_tiles(tiles: int, programs: int) -> int:
    """Return the number of tiles to divide among all programs: tiles % programs.

    Return 0 if the remaining tiles occupy nearly all programs, because exchanging sums would take longer.
    """
    left = tiles % programs
    return left if tiles < programs or left <= NEARLY_ALL * programs else 0


def program_for(packed: Packed, dtype: torch.dtype, cut: Cut) -> Program:
    form, inputs = FORMS[packed.form], packed.length * packed.in_word
    words = cut.outputs * LANE_CHUNK // (1 if form == 8 else 2)
    zeros = ZEROS_STEP if packed.form == ZEROED else 0
    stage = cut.rows * LANE_CHUNK * 2 + words + (2 * cut.outputs if form == 4 else 0) + zeros + 16
    of_codes = gemv_tensor_core.TABLE_BYTES + 2 * cut.outputs * SCALED * 4 if form == 16 else 0
    fixed = STAGED_BYTES * cut.groups + of_codes + 4 * 8
    stages = min(MOST_STAGES, (HOPPERS_SHARED_BYTES - fixed) // stage)
    macros = {
        "FORM": form, "HAS_ZEROS": int(packed.form == ZEROED), "INPUTS": inputs,
        "GROUP": packed.in_group * packed.in_word, "TILE_ROWS": cut.rows, "CONSUMER_GROUPS": cut.groups,
        "BLOCKS": cut.outputs // (64 * cut.groups), "STAGES": stages,
        "BF16": int(dtype == torch.bfloat16), "HAS_WIDE_SCALES": int(packed.scales.dtype == torch.float32),
        "PRODUCER_REGISTERS": REGISTERS[cut.groups][0], "CONSUMER_REGISTERS": REGISTERS[cut.groups][1],
    }  # fmt: skip
    return Program(tuple(macros.items()), cut.programs, cut.threads, fixed + stages * stage)


def compile_only(hidden: Tensor, packed: Packed, cut: Cut) -> None:
    compile_source("prefill_gemm", program_for(packed, hidden.dtype, cut).macros, hidden.device)


def launch(hidden: Tensor, packed: Packed, cut: Cut) -> Tensor:
    """Return the product, [rows, outputs], summed in 32 bits.

    Launches share counters and must run one after the other. Programs wait for each other: all must be resident.
    """
    if not hidden.is_contiguous() or not gemv_tensor_core.takes_vectors(hidden):
        raise ValueError("not contiguous rows of one type of 16 bits that begin at a multiple of 16 bytes")
    assert cut.shared <= MOST_SHARED
    rows, inputs = len(hidden), packed.length * packed.in_word
    program = program_for(packed, hidden.dtype, cut)
    of_rows = TensorMap(hidden.view(rows, inputs), (LANE_CHUNK, cut.rows), swizzled=True)
    of_words, of_scales, of_zeros = _maps_of(packed, cut)
    sums = (cut.programs + cut.shared) * cut.outputs * cut.rows if cut.shared else 1
    left = hidden.new_empty(sums, dtype=torch.float32)
    output = hidden.new_empty((rows, packed.outputs))
    are_rows_first = hidden.nbytes < packed.words.nbytes
    kernel = cuda_kernel("prefill_gemm", program.macros, program.threads, program.shared_bytes, hidden.device)
    of_bringer, of_multiplier = REGISTERS[cut.groups]
    if kernel.registers * program.threads < WARP_GROUP * (of_bringer + of_multiplier * cut.groups):
        raise CudaSourceError(f"the compiler gives a thread {kernel.registers} registers, too few to exchange")
    maps = [of_rows, of_words, of_scales or of_rows, of_zeros or of_rows]
    pointers = [packed.scales, packed.zeros, left, _counts(hidden.device), output]
    kernel(cut.programs, [*maps, *pointers, rows, packed.outputs, cut.shared, int(are_rows_first)])
    return output


def _maps_of(packed: Packed, cut: Cut) -> tuple[TensorMap, TensorMap | None, TensorMap | None]:
    form = FORMS[packed.form]
    if form == 4:
        lines = packed.words.view(packed.length, -1, LINE).transpose(0, 1)
        words = TensorMap(lines, (LINE, 8, cut.outputs // LINE), swizzled=True)
        scales = TensorMap(packed.scales, (cut.outputs, 1))
        if packed.form != ZEROED:
            return words, scales, None
        assert packed.zeros is not None
        return words, scales, TensorMap(packed.zeros, (cut.outputs // 8, 1))
    bytes_of_outputs = packed.words.view(torch.uint8).view(packed.outputs, -1)
    if form == 8:
        return TensorMap(bytes_of_outputs, (LANE_CHUNK, cut.outputs)), None, None
    words = TensorMap(bytes_of_outputs, (LANE_CHUNK // 2, cut.outputs))
    return words, TensorMap(packed.scales, (SCALED, cut.outputs)), None


def prepare(device: torch.device) -> None:
    """Allocate the shared counters before a capture, which would set them to zero only at replay."""
    _counts(device)


@cache
def _counts(device: torch.device) -> Tensor:
    return torch.zeros(MOST_SHARED, dtype=torch.int32, device=device)
