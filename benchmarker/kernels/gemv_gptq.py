"""W4A16 GEMV over GPTQ-packed weights: a matrix of 4-bit numbers times a vector, each word of eight read once.

On NVIDIA's Hopper and newer, in 16 bit and for the usual groups of 128 with zero points of 8, on tensor cores
(`gemv_gptq.cu`); else by `gemv_gptq_triton`. torch's compiler launches no kernel early, so it is given an operator that
it does not look into.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarker.kernels import gemv_gptq_triton, gemv_tensor_core
from benchmarker.kernels.gemv_fusion import NO_FUSION, GemvFusion
from benchmarker.kernels.launch_support import is_aligned

# No `from __future__ import annotations` here: torch reads the operator's types from its annotations.

IN_A_WORD = 8
TENSOR_TILE_OUTPUTS = 16
"""Outputs of a tile of `gemv_gptq.cu`, of each matrix."""
LARGEST_GROUP = 512


def supports(linear: Any) -> str | None:
    """Why this kernel cannot multiply by a linear's weights; None where it can."""
    if type(linear).__name__ != "TorchLinear" or linear.bits != 4:
        return "not gptqmodel's TorchLinear in 4 bit"
    if not linear.qweight.is_cuda:
        return "not on a GPU"
    return layout_reason(linear)


def layout_reason(linear: Any) -> str | None:
    """What of a linear's packing by gptqmodel this kernel does not know; None where it knows all."""
    if linear.qzero_format() != 2 or getattr(linear, "adapter", None) is not None or linear.out_features % IN_A_WORD:
        return "zeros in an older format, an adapter, or outputs that are no multiple of 8"
    group = len(linear.g_idx) // len(linear.scales)
    if group % IN_A_WORD or group & (group - 1) or group > LARGEST_GROUP:
        return "groups of a size that is no power of two from 8 to 512"
    if bool((linear.g_idx == linear.g_idx.new_tensor(range(len(linear.g_idx))) // group).all()):
        return None
    return "groups that do not follow one another (desc_act)"


@dataclass(frozen=True)
class Matrix:
    """One linear's packed weights.

    For SwiGLU they may be columns of a larger matrix, all three alike.
    """

    words: Tensor
    """[in / 8, out], int32: eight consecutive inputs each, from the lowest bits up."""
    zeros: Tensor | None
    """The zero points, [groups, out / 8], int32: eight consecutive outputs each; None where all are 8."""
    scales: Tensor
    """[groups, out], 16 or 32 bits."""

    @property
    def pitch(self) -> int:
        """Words from a row to the next: the outputs of the matrix that these are columns of, or their own."""
        return self.words.stride(0)


def launch(hidden: Tensor, matrices: Sequence[Matrix], ends: GemvFusion = NO_FUSION) -> Tensor:
    """One kernel for the product and its ends.

    The caller must wait for weights that were written just before on the same device: the kernel does not.

    Args:
        hidden: [in].
        matrices: One; two of the same pitch for SwiGLU; or three whose outputs follow one another, each but the last
            with a multiple of 32.

    Returns:
        [outputs of all], or [outputs of one] for SwiGLU; of the vector's type, summed in 32 bits.
    """
    assert ends.swiglu or all(matrix.words.is_contiguous() for matrix in matrices)
    if takes_tensor_cores(hidden, matrices, ends):
        return on_tensor_cores(hidden, matrices, ends)
    return gemv_gptq_triton.launch(hidden, matrices, ends)


def takes_tensor_cores(hidden: Tensor, matrices: Sequence[Matrix], ends: GemvFusion) -> bool:
    """Whether `gemv_gptq.cu` is for this product."""
    sizes = [size for matrix in matrices for size in (len(matrix.scales[0]), matrix.pitch)]
    return (
        gemv_tensor_core.why_not(hidden.device, hidden.dtype, len(hidden), sizes) is None
        and gemv_tensor_core.takes_vectors(hidden, ends.gain, ends.residual)
        and all(
            matrix.zeros is None
            and len(matrix.scales) * gemv_tensor_core.CHUNK == len(hidden)
            and matrix.scales.dtype == hidden.dtype
            and is_aligned(matrix.words)
            for matrix in matrices
        )
    )


def on_tensor_cores(
    hidden: Tensor, matrices: Sequence[Matrix], ends: GemvFusion, *, tile: gemv_tensor_core.Tile | None = None
) -> Tensor:
    """As `launch`, by `gemv_gptq.cu`."""
    three = [*matrices, matrices[-1], matrices[-1]][:3]
    counts, units = [len(matrix.scales[0]) for matrix in matrices], len(hidden) // gemv_tensor_core.CHUNK
    outputs = counts[0] if ends.swiglu else sum(counts)
    tile = tile or gemv_tensor_core.tile_for(units, most_held=1 if ends.swiglu else gemv_tensor_core.MOST_HELD)
    return gemv_tensor_core.launch(
        "gemv_gptq", hidden, [tensor for matrix in three for tensor in (matrix.words, matrix.scales)],
        [*(matrix.pitch for matrix in three), outputs], ends, tile=tile, outputs=outputs,
        tile_outputs=TENSOR_TILE_OUTPUTS, units=units,
    )  # fmt: skip


@torch.library.custom_op("benchmarker::gemv_gptq", mutates_args=())
def gemv_gptq(hidden: Tensor, words: Tensor, zeros: Tensor | None, scales: Tensor) -> Tensor:
    """hidden @ ((numbers - zeros) * scales).

    Args:
        hidden: [in].
        words: As in `Matrix`; so are `zeros` and `scales`.

    Returns:
        [out], of the vector's type; summed in 32 bits.
    """
    return launch(hidden, [Matrix(words, zeros, scales)])


@gemv_gptq.register_fake
def _shape(hidden: Tensor, words: Tensor, zeros: Tensor | None, scales: Tensor) -> Tensor:  # noqa: ARG001
    return hidden.new_empty(scales.shape[1])


def unpacked(words: Tensor, zeros: Tensor, scales: Tensor) -> Tensor:
    """The unpacked matrix, [in, out] in the type of the scales, by torch's operators; on a GPU see `unpack_matrix`."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=words.device)
    groups, outputs = scales.shape
    numbers = (words.unsqueeze(1) >> shifts.view(1, -1, 1)) & 15
    zero = ((zeros.unsqueeze(2) >> shifts) & 15).view(groups, 1, outputs)
    weights = (numbers.view(groups, -1, outputs) - zero).to(scales.dtype) * scales.unsqueeze(1)
    return weights.view(-1, outputs)
