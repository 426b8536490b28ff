"""W4A16 GEMV for bitsandbytes' NF4 and FP4 codes in blocks of 64, in 16 bits on Hopper and newer (`gemv_nf4.cu`)."""

from typing import Any

import torch
from torch import Tensor, nn

from benchmarker.kernels import gemv_tensor_core
from benchmarker.kernels.gemv_fusion import NO_FUSION, GemvFusion
from benchmarker.kernels.launch_support import is_aligned

# No `from __future__ import annotations`: torch reads the operator's types from its annotations.

BLOCK = 64  # Weights per scale that this kernel supports.
BLOCK_SIZES = (32, 64, 128)  # Weights per scale that other kernels of this package support.
TILE_OUTPUTS = 8  # Outputs per tile; for SwiGLU, per tile and matrix.


def why_not(linear: Any) -> str | None:
    """Return why this kernel is not used for a linear; None if it is used."""
    if not is_4bit(linear):
        return "not bitsandbytes' Linear4bit"
    if reason := layout_reason(linear):
        return reason
    state = linear.weight.quant_state
    if state.blocksize != BLOCK or not is_aligned(linear.weight):
        return f"blocks of another size than {BLOCK}, or codes that begin at no multiple of 16 bytes"
    return gemv_tensor_core.why_not(linear.weight.device, state.dtype, linear.in_features, [linear.out_features])


def is_4bit(module: nn.Module) -> bool:
    """Return True if a module is bitsandbytes' Linear4bit, not a wrapper of the same name."""
    return type(module).__name__ == "Linear4bit" and isinstance(module, nn.Linear)


def layout_reason(linear: Any) -> str | None:
    """Return the property of the linear's packing by bitsandbytes that no kernel supports; None if supported."""
    state = linear.weight.quant_state
    if state is None:
        return "weights that are not quantized yet"
    if linear.weight.dtype != torch.uint8:
        return "codes that are not kept in bytes"
    if state.absmax.dtype != torch.float32 or state.nested:
        return "scales that are quantized themselves (double_quant)"
    if tuple(state.shape) != (linear.out_features, linear.in_features):
        return "weights of another shape than the linear's"
    has_blocks = state.blocksize in BLOCK_SIZES and linear.in_features % state.blocksize == 0
    return None if has_blocks else "blocks of another size than 32, 64 or 128, or that do not end with a row"


def launch(
    hidden: Tensor, packed: Tensor, scales: Tensor, codebook: Tensor, fusion: GemvFusion = NO_FUSION, *,
    tile: gemv_tensor_core.TileConfig | None = None,
) -> Tensor:  # fmt: skip
    """Run one kernel for the GEMV and its fused operations. Arguments: `gemv_nf4` and `gemv_tensor_core.launch`."""
    outputs = 2 * packed.numel() // len(hidden) // (2 if fusion.swiglu else 1)
    return gemv_tensor_core.launch(
        "gemv_nf4", hidden, [packed, scales, codebook], [outputs], fusion, tile=tile, outputs=outputs,
        tile_outputs=TILE_OUTPUTS, k_steps=-(-len(hidden) // gemv_tensor_core.CHUNK // (1 if fusion.swiglu else 2)),
    )  # fmt: skip


@torch.library.custom_op("benchmarker::gemv_nf4", mutates_args=())
def gemv_nf4(hidden: Tensor, packed: Tensor, scales: Tensor, codebook: Tensor) -> Tensor:
    """Return weight @ hidden, summed in 32 bits.

    Args:
        hidden: [in], 16 bits.
        packed: [out * in / 2, 1], uint8: two codes per byte, the earlier input in the upper four bits.
        scales: Scales of the blocks of 64 inputs, [out * in / 64], float32, row by row.
        codebook: Value of each code before its scale, [16], float32.
    """
    return launch(hidden.contiguous(), packed, scales, codebook)


@gemv_nf4.register_fake
def _shape(hidden: Tensor, packed: Tensor, scales: Tensor, codebook: Tensor) -> Tensor:  # noqa: ARG001
    return hidden.new_empty(2 * packed.numel() // hidden.shape[0])
