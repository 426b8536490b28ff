"""W4A16 GEMV for GPTQ weights.

`gemv_gptq.cu` uses tensor cores of Hopper and newer, in 16 bits, for groups of 128 inputs. All other cases use
`gemv_gptq_triton`. The GEMV is an opaque operator, because inductor does not use programmatic dependent
launch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarker.kernels import gemv_gptq_triton, gemv_tensor_core
from benchmarker.kernels.gemv_fusion import NO_FUSION, GemvFusion
from benchmarker.kernels.launch_support import is_aligned

# No `from __future__ import annotations`: torch reads the operator's types from its annotations.

PACK_FACTOR = 8
ALL_EIGHT = -0x77777778  # Word of eight zero points of 8, as int32.
TENSOR_TILE_OUTPUTS = 16  # Outputs per tile and matrix in `gemv_gptq.cu`.
LARGEST_GROUP = 512


def why_not(linear: Any) -> str | None:
    """Return why this kernel is not used for a linear; None if it is used."""
    if type(linear).__name__ not in ("TorchLinear", "Int4Linear") or linear.bits != 4:
        return "not gptqmodel's TorchLinear in 4 bit"
    if not linear.qweight.is_cuda:
        return "not on a GPU"
    return layout_reason(linear)


def layout_reason(linear: Any) -> str | None:
    """Return the unsupported property of the linear's packing by gptqmodel; None if it is supported."""
    if linear.qzero_format() != 2 or getattr(linear, "adapter", None) is not None or linear.out_features % PACK_FACTOR:
        return "zeros in an older format, an adapter, or outputs that are no multiple of 8"
    group = linear.in_features // len(linear.scales)
    if group % PACK_FACTOR or group & (group - 1) or group > LARGEST_GROUP:
        return "groups of a size that is no power of two from 8 to 512"
    if not hasattr(linear, "g_idx") or bool(
        (linear.g_idx == linear.g_idx.new_tensor(range(len(linear.g_idx))) // group).all()
    ):
        return None
    return "groups that do not follow one another (desc_act)"


@dataclass(frozen=True)
class Matrix:
    """Packed weights of one linear; for SwiGLU they may be columns of a larger matrix."""

    words: Tensor  # [in / 8, out], int32: eight consecutive inputs, lowest bits first.
    zeros: Tensor | None  # Zero points, [groups, out / 8], int32: eight outputs per word. None if all are 8.
    scales: Tensor  # [groups, out], 16 or 32 bits.

    @property
    def pitch(self) -> int:
        """Words from the start of a row to the start of the next row."""
        return self.words.stride(0)


def launch(hidden: Tensor, matrices: Sequence[Matrix], fusion: GemvFusion = NO_FUSION) -> Tensor:
    """Run one kernel for the GEMV and its fused operations; return the outputs, summed in 32 bits.

    Args:
        hidden: [in].
        matrices: One matrix; gate and up of equal pitch for SwiGLU; or three matrices with concatenated outputs, of
            which all but the last have a multiple of 32 outputs.
    """
    assert fusion.swiglu or all(matrix.words.is_contiguous() for matrix in matrices)
    if supports_tensor_cores(hidden, matrices, fusion):
        return on_tensor_cores(hidden, matrices, fusion)
    return gemv_gptq_triton.launch(hidden, matrices, fusion)


def supports_tensor_cores(hidden: Tensor, matrices: Sequence[Matrix], fusion: GemvFusion) -> bool:
    sizes = [size for matrix in matrices for size in (len(matrix.scales[0]), matrix.pitch)]
    return (
        gemv_tensor_core.why_not(hidden.device, hidden.dtype, len(hidden), sizes) is None
        and gemv_tensor_core.supports_vectors(hidden, fusion.gain, fusion.residual)
        and len({matrix.zeros is None for matrix in matrices}) == 1
        and all(
            len(matrix.scales) * gemv_tensor_core.CHUNK == len(hidden)
            and matrix.scales.dtype == hidden.dtype
            and is_aligned(matrix.words)
            and (matrix.zeros is None or PACK_FACTOR * matrix.zeros.stride(0) == matrix.pitch)
            for matrix in matrices
        )
    )


def on_tensor_cores(
    hidden: Tensor, matrices: Sequence[Matrix], fusion: GemvFusion, *, tile: gemv_tensor_core.TileConfig | None = None
) -> Tensor:
    three = [*matrices, matrices[-1], matrices[-1]][:3]
    counts, k_steps = [len(matrix.scales[0]) for matrix in matrices], len(hidden) // gemv_tensor_core.CHUNK
    outputs = counts[0] if fusion.swiglu else sum(counts)
    max_prefetch = 1 if fusion.swiglu else gemv_tensor_core.MAX_PREFETCH
    tile = tile or gemv_tensor_core.tile_config_for(k_steps, max_prefetch=max_prefetch)
    return gemv_tensor_core.launch(
        "gemv_gptq", hidden, [tensor for matrix in three for tensor in (matrix.words, matrix.zeros, matrix.scales)],
        [*(matrix.pitch for matrix in three), outputs], fusion, tile=tile, outputs=outputs,
        tile_outputs=TENSOR_TILE_OUTPUTS, k_steps=k_steps, has_zeros=matrices[0].zeros is not None,
    )  # fmt: skip


@torch.library.custom_op("benchmarker::gemv_gptq", mutates_args=())
def gemv_gptq(hidden: Tensor, words: Tensor, zeros: Tensor | None, scales: Tensor) -> Tensor:
    """Return hidden @ ((numbers - zeros) * scales). `Matrix` describes the arguments."""
    return launch(hidden, [Matrix(words, zeros, scales)])


@gemv_gptq.register_fake
def _shape(hidden: Tensor, words: Tensor, zeros: Tensor | None, scales: Tensor) -> Tensor:  # noqa: ARG001
    return hidden.new_empty(scales.shape[1])


def unpacked(words: Tensor, zeros: Tensor, scales: Tensor) -> Tensor:
    """Dequantize to [in, out] with torch operators; `dequantize_matrix` has a GPU kernel."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=words.device)
    groups, outputs = scales.shape
    numbers = (words.unsqueeze(1) >> shifts.view(1, -1, 1)) & 15
    zero = ((zeros.unsqueeze(2) >> shifts) & 15).view(groups, 1, outputs)
    weights = (numbers.view(groups, -1, outputs) - zero).to(scales.dtype) * scales.unsqueeze(1)
    return weights.view(-1, outputs)
