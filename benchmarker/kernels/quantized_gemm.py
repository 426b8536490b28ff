"""Quantized GEMM (W4A16 and W8A16) for several rows: a decode step of several sequences, or a prefill.

Libraries dequantize the whole matrix to 16 bits first, and inductor uses two kernels for int8; both move more bytes
than a 16-bit GEMM. The GEMM here reads weights as the libraries pack them, by the fastest of several kernels
(`gemm_autotune`). README.md has measured times.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarker.kernels import (
    gemv_dense,
    gemv_gptq,
    gemv_nf4,
    gemv_tensor_core,
    permute_rows,
    prefill_gemm,
    quantized_gemm_triton,
    w4a16_gemm,
)
from benchmarker.kernels.dequantize_matrix import unpack
from benchmarker.kernels.dequantize_words import CODEBOOKS
from benchmarker.kernels.gemm_autotune import Candidate, best_candidate
from benchmarker.kernels.launch_support import aligned, supports_pdl
from benchmarker.kernels.packed_weights import (
    FEW_ROWS,
    INT4_ZEROS,
    ONE_TILE,
    Packed,
    by_word_position,
    in_natural_order,
    is_int4_by_group,
    order_of,
    pack_factor,
    packed_of,
    reorder,
)
from benchmarker.kernels.permute_rows import rows_by_lane
from benchmarker.kernels.quantized_gemm_triton import tile_configs_for
from benchmarker.kernels.rewritten_module import RewrittenModule

# No `from __future__ import annotations`: torch reads the operator's types from its annotations.

MAX_ROWS = 16_384  # Maximum number of rows if `prefill_gemm` is a candidate; else `ONE_TILE`.
STEP = 128  # The number of inputs and GPTQ's group size must be multiples of 128.
BLOCK = 64  # bitsandbytes' block size must be a multiple of 64.


def packed_form(linear: Any) -> str | None:
    """Return the `Packed.form` of a linear's weights; None if unsupported. Slow, because it reads the weights."""
    device = getattr(linear, "weight", getattr(linear, "qweight", None))
    if device is None or not supports_pdl(device.device) or linear.in_features % STEP or linear.out_features % 8:
        return None
    if gemv_gptq.why_not(linear) is None:
        if linear.in_features // len(linear.scales) % STEP:
            return None
        return "int4 by group" if bool((linear.qzeros == gemv_gptq.ALL_EIGHT).all()) else INT4_ZEROS
    if gemv_nf4.is_4bit(linear):
        state = linear.weight.quant_state
        if gemv_nf4.layout_reason(linear) is not None or state.blocksize % BLOCK:
            return None
        is_known = torch.equal(state.code.cpu().float(), torch.tensor(CODEBOOKS.get(state.quant_type, ())))
        return str(state.quant_type) if is_known else None
    return "int8 by row" if gemv_dense.is_int8_by_row(linear) else None


def packed_product(hidden: Tensor, linear: Any, form: str) -> Tensor:
    """Return a linear's product without bias, [rows, outputs], for [..., inputs] that `is_supported` supports."""
    rows = hidden.reshape(-1, hidden.shape[-1])
    if uses_permute_kernel(rows.shape[0], linear, form):
        permuted: Tensor = rows_by_lane(rows, pack_factor(form))
    else:
        order = order_of(form, rows.shape[0], has_prefill_gemm=linear.max_packed_rows > ONE_TILE)
        permuted = reorder(rows, pack_factor(form), order)
    return product_of_permuted(permuted, linear, form)


def uses_permute_kernel(rows: int, linear: RewrittenModule, form: str) -> bool:
    """Return True if the kernel `rows_by_lane` permutes the rows, False if code compiled by inductor does.

    For words of four weights, inductor permutes rows inside the previous kernel. For words of eight weights, it needed
    two more kernels per layer (64 rows of Qwen3-4B), so `rows_by_lane` is used from 33 rows on.
    """
    few = ONE_TILE if pack_factor(form) == 4 else FEW_ROWS
    return rows > few and bool(linear.max_packed_rows > ONE_TILE)


def product_of_permuted(permuted: Tensor, linear: Any, form: str) -> Tensor:
    product: Tensor = packed_matmul(permuted, *packed_tensors(linear, form), form, linear.out_features)
    return product


def max_packed_rows(linear: Any, form: str | None) -> int:
    """Return the maximum number of rows of a linear's quantized GEMM; 0 if `form` is None. Slow: call it once."""
    if form is None:
        return 0
    packed = packed_of(*packed_tensors(linear, form), form, linear.out_features)
    if is_int4_by_group(form) or form == "int8 by row":
        # int8 supports any 16-bit type.
        dtype = packed.scales.dtype if packed.scales.dtype in gemv_tensor_core.HALF_TYPES else torch.float16
    else:
        dtype = linear.weight.quant_state.dtype
    if prefill_gemm.why_not(packed.words.device, dtype, packed) is not None:
        return ONE_TILE
    prefill_gemm.prepare(packed.words.device)
    return MAX_ROWS


def is_supported(hidden: Tensor, linear: RewrittenModule) -> bool:
    rows, most = hidden.numel() // hidden.shape[-1], int(linear.max_packed_rows)
    return 1 < rows <= most and hidden.dtype in gemv_tensor_core.HALF_TYPES


def packed_tensors(linear: Any, form: str) -> tuple[Any, Any, Any]:
    if is_int4_by_group(form):
        return linear.qweight, linear.scales, linear.qzeros
    if form == "int8 by row":
        return *gemv_dense.as_rows(linear), None
    state = linear.weight.quant_state
    return linear.weight, state.absmax, state.code


@torch.library.custom_op("benchmarker::packed_matmul", mutates_args=())
def packed_matmul(
    hidden: Tensor, weights: Tensor, scales: Tensor, zeros: Tensor | None, form: str, outputs: int
) -> Tensor:
    """Return rows times packed weights, [rows, outputs], by the fastest candidate, summed in 32 bits."""
    assert not is_int4_by_group(form) or weights.is_contiguous(), "columns of joined words"
    packed, hidden = packed_of(weights, scales, zeros, form, outputs), aligned(hidden)
    return best_candidate(hidden, packed, candidates_for, unpacked_candidate).launch(hidden, packed)


@packed_matmul.register_fake
def _shape(
    hidden: Tensor,
    weights: Tensor,  # noqa: ARG001
    scales: Tensor,  # noqa: ARG001
    zeros: Tensor | None,  # noqa: ARG001
    form: str,  # noqa: ARG001
    outputs: int,
) -> Tensor:
    # Not `len`, which would make the compiler specialize on the number of rows.
    return hidden.new_empty((hidden.shape[0], outputs))


UNPACKED = "unpacked to 16 bit, then cuBLAS"
MIN_PREFILL_GEMM_ROWS = 9
"""Number of rows from which `prefill_gemm` is a candidate in addition to `w4a16_gemm`. For the GEMMs of a layer of
Qwen3-4B (H100), `w4a16_gemm` takes 60 to 61 us with 8 rows, 84 to 88 with 32; `prefill_gemm` 65 to 76 with 64."""


def candidates_for(hidden: Tensor, packed: Packed) -> list[Candidate]:
    """Return the candidates for rows that are ordered by `packed_weights.order_of`, the most promising first."""
    device, rows = hidden.device, len(hidden)
    sms = gemv_tensor_core.sm_count(device) if hidden.is_cuda else 1
    has_prefill_gemm = prefill_gemm.why_not(device, hidden.dtype, packed) is None
    if hidden.dim() == 4:
        configs = prefill_gemm.tile_configs_for(packed, rows, sms) if has_prefill_gemm else []
        return [*map(_prefill_candidate, configs), unpacked_candidate]
    candidates: list[Candidate] = []
    has_w4a16_gemm = hidden.dim() == 2 and w4a16_gemm.why_not(hidden, packed) is None
    if has_w4a16_gemm:
        max_shared_bytes = gemv_tensor_core.max_shared_bytes(device)
        candidates += map(_w4a16_candidate, w4a16_gemm.tile_configs_for(packed, rows, sms, max_shared_bytes))
    # Triton tiles took 1.2 to 3 times as long as `w4a16_gemm` on an H100: GEMMs of Qwen3-4B, 2 to 16 rows (2026-11-25).
    # At 32 rows `w4a16_gemm` was faster too.
    if rows <= ONE_TILE and not (has_w4a16_gemm and has_prefill_gemm):
        candidates += map(_triton_candidate, tile_configs_for(packed, rows, sms))
    if hidden.dim() == 2 and rows >= MIN_PREFILL_GEMM_ROWS and has_prefill_gemm:
        candidates += map(_permute_and_prefill_candidate, prefill_gemm.tile_configs_for(packed, rows, sms))
    return [*candidates, unpacked_candidate]


# The time of a candidate includes the permutation of the rows.


def _triton_candidate(tile: quantized_gemm_triton.TileConfig) -> Candidate:
    return Candidate(tile.name, partial(_compile_triton, tile=tile), partial(_launch_triton, tile=tile))


def _compile_triton(hidden: Tensor, packed: Packed, tile: quantized_gemm_triton.TileConfig) -> object:
    permuted = hidden.new_empty((len(hidden), packed.pack_factor, packed.length))
    return quantized_gemm_triton.compile_only(permuted, packed, tile)


def _launch_triton(hidden: Tensor, packed: Packed, tile: quantized_gemm_triton.TileConfig) -> Tensor:
    permuted = hidden if hidden.dim() == 3 else by_word_position(in_natural_order(hidden), packed.pack_factor)
    return quantized_gemm_triton.launch(permuted, packed, tile)


def _w4a16_candidate(config: w4a16_gemm.TileConfig) -> Candidate:
    return Candidate(
        config.name, partial(w4a16_gemm.compile_only, config=config), partial(_launch_w4a16, config=config)
    )


def _launch_w4a16(hidden: Tensor, packed: Packed, config: w4a16_gemm.TileConfig) -> Tensor:
    return w4a16_gemm.launch(in_natural_order(hidden), packed, config)


def _prefill_candidate(config: prefill_gemm.TileConfig) -> Candidate:
    return Candidate(
        config.name, partial(prefill_gemm.compile_only, config=config), partial(prefill_gemm.launch, config=config)
    )


def _permute_and_prefill_candidate(config: prefill_gemm.TileConfig) -> Candidate:
    def launch(hidden: Tensor, packed: Packed) -> Tensor:
        return prefill_gemm.launch(permute_rows.launch(hidden, packed.pack_factor), packed, config)

    return Candidate(f"{config.name}, rows ordered before", partial(prefill_gemm.compile_only, config=config), launch)


def unpacked_product(hidden: Tensor, packed: Packed) -> Tensor:
    """Dequantize the matrix to 16 bits and multiply by cuBLAS, for rows in any order."""
    if hidden.dim() == 4:
        return hidden.view(len(hidden), -1) @ unpack(packed, hidden.dtype, by_lane_order=True)
    rows = in_natural_order(hidden)
    return rows @ unpack(packed, rows.dtype)


unpacked_candidate = Candidate(UNPACKED, lambda hidden, packed: None, unpacked_product)
