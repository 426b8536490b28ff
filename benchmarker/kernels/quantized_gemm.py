"""Products of packed weights with several vectors, of sequences in a decode step or of a prompt.

torch's compiler makes int8's product of two kernels, gptqmodel and bitsandbytes unpack the whole matrix to 16 bits
first: all of them move more bytes than a product in 16 bits would. Here packed weights are read as the libraries keep
them, in the fastest of several ways (`quantized_gemm`), which a measurement at set-up finds (`gemm_autotune`).

The four products of a layer of Qwen3-4B, linears of one input joined (`fuse_qkv_gate_up`), us on one H100 (2026-11-25):

| rows | fp16 by cuBLAS | int8 | NF4 | GPTQ | by |
| --: | --: | --: | --: | --: | :-- |
| 2 | 105 | - | 59 | 57 | `w4a16_gemm` |
| 8 | 101 to 104 | - | 59 | 58 | `w4a16_gemm` |
| 16 | 102 to 104 | - | 65 | 58 | `prefill_gemm`; query, key and value, and NF4's o, `w4a16_gemm` |
| 32 | 102 to 107 | - | 69 | 60 | `prefill_gemm`; NF4's query, key and value `w4a16_gemm` |
| 64 | 100 to 104 | 80 | 76 | 65 | `prefill_gemm` |
| 512 | 167 to 171 | 188 | 193 | 183 | `prefill_gemm` |
| 2,048 | 561 to 578 | 592 | 599 | 581 | `prefill_gemm`; o unpacked first |
| 4,096 | 1,155 to 1,185 | 1,156 | 1,141 | 1,131 | `prefill_gemm`; o, and int8's down, unpacked first |

Each is the fastest of its ways, and cuBLAS was timed beside each form, for 4,096 rows on another card.

Up to 64 rows packed weights are faster, since there is less to read. With hundreds of rows all forms wait for the
tensor cores. What is left at 512 rows are mostly sums of tiles that programs share: query, key and value share none and
take as long as cuBLAS's; gate and up take 8 to 11 us longer, o 4 to 8, and down at most 4.

Layouts, and what `packed_matmul`, which multiplies int8 by 2 to 32 rows, reached on one H200 (2026-11-23):

| form | bytes a weight, scales included | layout | GB/s of 19456 x 2560 at 8 rows (fp16: 2,800) |
| :-- | --: | :-- | --: |
| int8 | 1 + 2 / inputs | [outputs, inputs], a scale of 16 or 32 bits for each output | 2,170 |
| GPTQ | 0.5 + 2.5 / group | [inputs / 8, outputs] words of 32 bits; scales and zeros for groups of inputs | 860 |
| NF4, FP4 | 0.5 + 4 / block | [outputs, inputs / 2] bytes; scales of 32 bits for blocks of inputs | 830 |

Everywhere here the last cache was overwritten before each product.
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
from benchmarker.kernels.dequantize_words import NUMBERS
from benchmarker.kernels.gemm_autotune import Way, chosen
from benchmarker.kernels.launch_support import aligned, can_start_early
from benchmarker.kernels.packed_weights import (
    FEW_ROWS,
    ONE_TILE,
    Packed,
    as_they_are,
    by_place,
    in_word,
    is_int4_by_group,
    order_of,
    ordered,
    packed_of,
)
from benchmarker.kernels.permute_rows import rows_by_lane
from benchmarker.kernels.quantized_gemm_triton import tiles_for

# No `from __future__ import annotations` here: torch reads the operator's types from its annotations.

MOST_ROWS = 16_384
"""Most vectors of a product where `prefill_gemm` is one of its ways; elsewhere those of a tile of `packed_matmul`."""
STEP = 128
"""Inputs of a step of the kernel, and of the smallest group with scales of GPTQ's."""
BLOCK = 64
"""The smallest block of bitsandbytes' that the kernel takes."""
ALL_EIGHT = -0x77777778
"""A word of eight zero points that are 8, as an int32."""


def packed_form(linear: Any) -> str | None:
    """The form of a linear's weights as `Packed.form` names it; None for what this kernel does not take.

    Read once, before the model runs: it looks at the numbers.
    """
    device = getattr(linear, "weight", getattr(linear, "qweight", None))
    if device is None or not can_start_early(device.device) or linear.in_features % STEP or linear.out_features % 8:
        return None
    if gemv_gptq.supports(linear) is None:
        if len(linear.g_idx) // len(linear.scales) % STEP:
            return None
        return "int4 by group" if bool((linear.qzeros == ALL_EIGHT).all()) else "int4 by group, zeros"
    if gemv_nf4.is_4bit(linear):
        state = linear.weight.quant_state
        if gemv_nf4.layout_reason(linear) is not None or state.blocksize % BLOCK:
            return None
        is_known = torch.equal(state.code.cpu().float(), torch.tensor(NUMBERS.get(state.quant_type, ())))
        return str(state.quant_type) if is_known else None
    return "int8 by row" if gemv_dense.is_int8_by_row(linear.weight) else None


def packed_product(hidden: Tensor, linear: Any, form: str) -> Tensor:
    """A linear's product without its bias.

    Args:
        hidden: [..., inputs], as many vectors as `takes_rows`, float16 or bfloat16.
        form: `packed_form` of the linear.

    Returns:
        [vectors, outputs].
    """
    rows = hidden.reshape(-1, hidden.shape[-1])
    if are_ordered_by_kernel(rows.shape[0], linear, form):
        placed: Tensor = rows_by_lane(rows, in_word(form))
    else:
        order = order_of(form, rows.shape[0], has_prompt_kernel=linear.most_packed_rows > ONE_TILE)
        placed = ordered(rows, in_word(form), order)
    return product_of_placed(placed, linear, form)


def are_ordered_by_kernel(rows: int, linear: Any, form: str) -> bool:
    """Whether `rows_by_lane` brings so many rows into the order of the linear's product.

    The compiler orders fewer: where words have four weights, in the kernel that makes the rows. Where they have eight,
    it made two more kernels a layer for that (64 rows of Qwen3-4B), so that ours does it from 33 rows on.
    """
    few = ONE_TILE if in_word(form) == 4 else FEW_ROWS
    return rows > few and bool(linear.most_packed_rows > ONE_TILE)


def product_of_placed(placed: Tensor, linear: Any, form: str) -> Tensor:
    """As `packed_product`, of rows in one of the orders of `packed_weights.order_of`."""
    product: Tensor = packed_matmul(placed, *packed_tensors(linear, form), form, linear.out_features)
    return product


def most_packed_rows(linear: Any, form: str | None) -> int:
    """Vectors that a product of the linear's packed weights takes at most: 0 of another form, `packed_form`.

    Read once, before the model runs.
    """
    if form is None:
        return 0
    packed = packed_of(*packed_tensors(linear, form), form, linear.out_features)
    if is_int4_by_group(form) or form == "int8 by row":
        # int8 in any type of 16 bits.
        dtype = packed.scales.dtype if packed.scales.dtype in gemv_tensor_core.TYPES else torch.float16
    else:
        dtype = linear.weight.quant_state.dtype
    if prefill_gemm.why_not(packed.words.device, dtype, packed) is not None:
        return ONE_TILE
    prefill_gemm.prepare(packed.words.device)
    return MOST_ROWS


def takes_rows(hidden: Tensor, linear: Any) -> bool:
    """Whether there are as many vectors as the linear's product takes, of a type that it takes."""
    rows, most = hidden.numel() // hidden.shape[-1], int(linear.most_packed_rows)
    return 1 < rows <= most and hidden.dtype in gemv_tensor_core.TYPES


def packed_tensors(linear: Any, form: str) -> tuple[Any, Any, Any]:
    """A linear's weights, scales and zeros as `packed_of` takes them."""
    if is_int4_by_group(form):
        return linear.qweight, linear.scales, linear.qzeros
    if form == "int8 by row":
        return *gemv_dense.as_rows(linear.weight), None
    state = linear.weight.quant_state
    return linear.weight, state.absmax, state.code


@torch.library.custom_op("benchmarker::packed_matmul", mutates_args=())
def packed_matmul(
    hidden: Tensor,
    weights: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    form: str,
    outputs: int,
) -> Tensor:
    """The product of packed weights with rows, in the way that is fastest for its shape on this device.

    The caller must wait for weights that were written just before on the same device: the kernel does not.

    Args:
        hidden: The rows in one of the orders of `packed_weights.order_of`.
        weights: As `packed_weights.packed_of` takes them; so are `scales`, `zeros`, `form` and `outputs`.

    Returns:
        [rows, outputs], of the type of `hidden`; summed in 32 bits.
    """
    assert not is_int4_by_group(form) or weights.is_contiguous(), "columns of joined words"
    packed, hidden = packed_of(weights, scales, zeros, form, outputs), aligned(hidden)
    return chosen(hidden, packed, ways_for, unpacked_way).launch(hidden, packed)


@packed_matmul.register_fake
def _shape(
    hidden: Tensor,
    weights: Tensor,  # noqa: ARG001
    scales: Tensor,  # noqa: ARG001
    zeros: Tensor | None,  # noqa: ARG001
    form: str,  # noqa: ARG001
    outputs: int,
) -> Tensor:
    # `len` would make a number of the rows of any prompt.
    return hidden.new_empty((hidden.shape[0], outputs))


UNPACKED = "unpacked to 16 bit, then cuBLAS"
ORDERED_FROM = 9
"""Rows from which `prefill_gemm` is timed beside `w4a16_gemm`.

On an H100 the latter takes 60 to 61 us for the products of a layer of Qwen3-4B and 8 rows, and 84 to 88 for 32;
`prefill_gemm` takes 65 to 76 for 64."""


def ways_for(hidden: Tensor, packed: Packed) -> list[Way]:
    """The candidates for a product, the likeliest first.

    Args:
        hidden: The rows in one of the orders of `packed_weights.order_of`.
    """
    device, rows = hidden.device, len(hidden)
    processors = gemv_tensor_core.processors(device) if hidden.is_cuda else 1
    has_warp_groups = prefill_gemm.why_not(device, hidden.dtype, packed) is None
    if hidden.dim() == 4:
        cuts = prefill_gemm.cuts_for(packed, rows, processors) if has_warp_groups else []
        return [*map(_by_warp_groups, cuts), unpacked_way]
    ways: list[Way] = []
    by_table = hidden.dim() == 2 and w4a16_gemm.why_not(hidden, packed) is None
    if by_table:
        most_shared_bytes = gemv_tensor_core.most_shared_bytes(device)
        ways += map(_by_cut, w4a16_gemm.cuts_for(packed, rows, processors, most_shared_bytes))
    # Tiles took 1.2 to 3 times as long as the table on an H100: Qwen3-4B's products, 2 to 16 rows (2026-11-25). For 32
    # rows the table was faster too.
    if rows <= ONE_TILE and not (by_table and has_warp_groups):
        ways += map(_by_tile, tiles_for(packed, rows, processors))
    if hidden.dim() == 2 and rows >= ORDERED_FROM and has_warp_groups:
        ways += map(_by_warp_groups_in_order, prefill_gemm.cuts_for(packed, rows, processors))
    return [*ways, unpacked_way]


# Bringing rows into the order of a way is part of what the product takes.


def _by_tile(tile: quantized_gemm_triton.Tile) -> Way:
    return Way(tile.name, partial(_compile_tile, tile=tile), partial(_launch_tile, tile=tile))


def _compile_tile(hidden: Tensor, packed: Packed, tile: quantized_gemm_triton.Tile) -> object:
    return quantized_gemm_triton.compile_only(
        hidden.new_empty((len(hidden), packed.in_word, packed.length)), packed, tile
    )


def _launch_tile(hidden: Tensor, packed: Packed, tile: quantized_gemm_triton.Tile) -> Tensor:
    placed = hidden if hidden.dim() == 3 else by_place(as_they_are(hidden), packed.in_word)
    return quantized_gemm_triton.launch(placed, packed, tile)


def _by_cut(cut: w4a16_gemm.Cut) -> Way:
    return Way(cut.name, partial(w4a16_gemm.compile_only, cut=cut), partial(_launch_cut, cut=cut))


def _launch_cut(hidden: Tensor, packed: Packed, cut: w4a16_gemm.Cut) -> Tensor:
    return w4a16_gemm.launch(as_they_are(hidden), packed, cut)


def _by_warp_groups(cut: prefill_gemm.Cut) -> Way:
    return Way(cut.name, partial(prefill_gemm.compile_only, cut=cut), partial(prefill_gemm.launch, cut=cut))


def _by_warp_groups_in_order(cut: prefill_gemm.Cut) -> Way:
    def launch(hidden: Tensor, packed: Packed) -> Tensor:
        return prefill_gemm.launch(permute_rows.launch(hidden, packed.in_word), packed, cut)

    return Way(f"{cut.name}, rows ordered before", partial(prefill_gemm.compile_only, cut=cut), launch)


def unpacked_product(hidden: Tensor, packed: Packed) -> Tensor:
    """The same product with the matrix unpacked to 16 bits first, to the numbers that the libraries make.

    Args:
        hidden: The rows in one of their orders.
    """
    if hidden.dim() == 4:
        return hidden.view(len(hidden), -1) @ unpack(packed, hidden.dtype, is_by_lane=True)
    rows = as_they_are(hidden)
    return rows @ unpack(packed, rows.dtype)


unpacked_way = Way(UNPACKED, lambda hidden, packed: None, unpacked_product)
