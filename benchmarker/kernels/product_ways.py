"""The ways to make a product of packed weights with several rows: those that `product_choice` measures."""

from functools import partial

from torch import Tensor

from benchmarker.kernels import matmul_4bit, packed_matmul, tensor_gemv
from benchmarker.kernels.packed_tiles import tiles_for
from benchmarker.kernels.packed_weights import Packed, by_place
from benchmarker.kernels.product_choice import Way
from benchmarker.kernels.unpack_matrix import unpack

UNPACKED = "unpacked to 16 bit, then cuBLAS"


def ways_for(hidden: Tensor, packed: Packed) -> list[Way]:
    """The candidates for a product, the likeliest tile of `packed_matmul` first.

    Args:
        hidden: [rows, inputs]; or [rows, in_word, length], then all candidates but `matmul_4bit`'s.
    """
    processors = tensor_gemv.processors(hidden.device) if hidden.is_cuda else 1
    ways = [_by_tile(tile) for tile in tiles_for(packed, len(hidden), processors)]
    if hidden.dim() == 2 and matmul_4bit.why_not(hidden, packed) is None:
        most_shared_bytes = tensor_gemv.most_shared_bytes(hidden.device)
        ways += [_by_cut(cut) for cut in matmul_4bit.cuts_for(packed, len(hidden), processors, most_shared_bytes)]
    return [*ways, unpacked_way]


def _by_tile(tile: packed_matmul.Tile) -> Way:
    return Way(tile.name, partial(_compile_tile, tile=tile), partial(_launch_tile, tile=tile))


def _compile_tile(hidden: Tensor, packed: Packed, tile: packed_matmul.Tile) -> object:
    placed = hidden.new_empty((len(hidden), packed.in_word, packed.length)) if hidden.dim() == 2 else hidden
    return packed_matmul.compile_only(placed, packed, tile)


def _launch_tile(hidden: Tensor, packed: Packed, tile: packed_matmul.Tile) -> Tensor:
    # Bringing rows into the tile's order is part of what the product takes.
    placed = by_place(hidden, packed.in_word) if hidden.dim() == 2 else hidden
    return packed_matmul.launch(placed, packed, tile)


def _by_cut(cut: matmul_4bit.Cut) -> Way:
    return Way(cut.name, partial(matmul_4bit.compile_only, cut=cut), partial(matmul_4bit.launch, cut=cut))


def unpacked_product(hidden: Tensor, packed: Packed) -> Tensor:
    """The same product with the matrix unpacked to 16 bits first, to the numbers that the libraries make.

    Args:
        hidden: [rows, inputs] or [rows, in_word, length].
    """
    rows = hidden if hidden.dim() == 2 else hidden.transpose(1, 2).reshape(len(hidden), -1)
    return rows @ unpack(packed, rows.dtype)


unpacked_way = Way(UNPACKED, lambda hidden, packed: None, unpacked_product)
