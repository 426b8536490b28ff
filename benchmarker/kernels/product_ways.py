"""The ways to make a product of packed weights with several rows: those that `product_choice` measures."""

from functools import partial

from torch import Tensor

from benchmarker.kernels import matmul_4bit, packed_matmul, prompt_matmul, rows_by_lane, tensor_gemv
from benchmarker.kernels.packed_tiles import tiles_for
from benchmarker.kernels.packed_weights import ONE_TILE, Packed, as_they_are, by_place
from benchmarker.kernels.product_choice import Way
from benchmarker.kernels.unpack_matrix import unpack

UNPACKED = "unpacked to 16 bit, then cuBLAS"
ORDERED_FROM = 9
"""Rows from which `prompt_matmul` is timed beside `matmul_4bit`.

On an H100 the latter takes 60 to 61 us for the products of a layer of Qwen3-4B and 8 rows, and 84 to 88 for 32;
`prompt_matmul` takes 65 to 76 for 64."""


def ways_for(hidden: Tensor, packed: Packed) -> list[Way]:
    """The candidates for a product, the likeliest first.

    Args:
        hidden: The rows in one of the orders of `packed_weights.order_of`.
    """
    device, rows = hidden.device, len(hidden)
    processors = tensor_gemv.processors(device) if hidden.is_cuda else 1
    has_warp_groups = prompt_matmul.why_not(device, hidden.dtype, packed) is None
    if hidden.dim() == 4:
        cuts = prompt_matmul.cuts_for(packed, rows, processors) if has_warp_groups else []
        return [*map(_by_warp_groups, cuts), unpacked_way]
    ways: list[Way] = []
    by_table = hidden.dim() == 2 and matmul_4bit.why_not(hidden, packed) is None
    if by_table:
        most_shared_bytes = tensor_gemv.most_shared_bytes(device)
        ways += map(_by_cut, matmul_4bit.cuts_for(packed, rows, processors, most_shared_bytes))
    # Tiles took 1.2 to 3 times as long as the table on an H100: Qwen3-4B's products, 2 to 16 rows (2026-11-25). For 32
    # rows the table was faster too.
    if rows <= ONE_TILE and not (by_table and has_warp_groups):
        ways += map(_by_tile, tiles_for(packed, rows, processors))
    if hidden.dim() == 2 and rows >= ORDERED_FROM and has_warp_groups:
        ways += map(_by_warp_groups_in_order, prompt_matmul.cuts_for(packed, rows, processors))
    return [*ways, unpacked_way]


# Bringing rows into the order of a way is part of what the product takes.


def _by_tile(tile: packed_matmul.Tile) -> Way:
    return Way(tile.name, partial(_compile_tile, tile=tile), partial(_launch_tile, tile=tile))


def _compile_tile(hidden: Tensor, packed: Packed, tile: packed_matmul.Tile) -> object:
    return packed_matmul.compile_only(hidden.new_empty((len(hidden), packed.in_word, packed.length)), packed, tile)


def _launch_tile(hidden: Tensor, packed: Packed, tile: packed_matmul.Tile) -> Tensor:
    placed = hidden if hidden.dim() == 3 else by_place(as_they_are(hidden), packed.in_word)
    return packed_matmul.launch(placed, packed, tile)


def _by_cut(cut: matmul_4bit.Cut) -> Way:
    return Way(cut.name, partial(matmul_4bit.compile_only, cut=cut), partial(_launch_cut, cut=cut))


def _launch_cut(hidden: Tensor, packed: Packed, cut: matmul_4bit.Cut) -> Tensor:
    return matmul_4bit.launch(as_they_are(hidden), packed, cut)


def _by_warp_groups(cut: prompt_matmul.Cut) -> Way:
    return Way(cut.name, partial(prompt_matmul.compile_only, cut=cut), partial(prompt_matmul.launch, cut=cut))


def _by_warp_groups_in_order(cut: prompt_matmul.Cut) -> Way:
    def launch(hidden: Tensor, packed: Packed) -> Tensor:
        return prompt_matmul.launch(rows_by_lane.launch(hidden, packed.in_word), packed, cut)

    return Way(f"{cut.name}, rows ordered before", partial(prompt_matmul.compile_only, cut=cut), launch)


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
