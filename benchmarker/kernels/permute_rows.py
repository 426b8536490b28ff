"""Permutation of rows to the order of `prefill_gemm`, optionally with SwiGLU, for Hopper.

`packed_weights.by_lane` does the same with torch operators, for which inductor's kernels read single numbers: SwiGLU
and permutation of 512 rows of 9,728 numbers took 25 to 27 us, SwiGLU without permutation 8 us (H100, 2026-11-25).
`permute_rows.cu` describes the algorithm.
"""

import torch
from torch import Tensor

from benchmarker.kernels.cuda_source import cuda_kernel
from benchmarker.kernels.launch_support import aligned
from benchmarker.kernels.packed_weights import LANE_CHUNK, by_lane

# No `from __future__ import annotations`: torch reads the operators' types from its annotations.

THREADS = 256
VECTOR = 8  # Inputs per thread.


@torch.library.custom_op("benchmarker::rows_by_lane", mutates_args=())
def rows_by_lane(hidden: Tensor, pack_factor: int) -> Tensor:
    """Return 16-bit rows, [rows, inputs], in the order of `packed_weights.by_lane`."""
    return launch(hidden, pack_factor) if hidden.is_cuda else by_lane(hidden, pack_factor)


@torch.library.custom_op("benchmarker::swiglu_by_lane", mutates_args=())
def swiglu_by_lane(gate_up: Tensor, pack_factor: int) -> Tensor:
    """Return silu(gate) * up in the order of `packed_weights.by_lane`. gate_up: [rows, 2 * inputs], gate first."""
    if gate_up.is_cuda:
        return launch(gate_up, pack_factor, is_swiglu=True)
    gate, up = gate_up.chunk(2, -1)
    return by_lane(torch.nn.functional.silu(gate) * up, pack_factor)


@rows_by_lane.register_fake
def _rows(hidden: Tensor, pack_factor: int) -> Tensor:  # noqa: ARG001
    return _empty(hidden, hidden.shape[1])


@swiglu_by_lane.register_fake
def _gated_rows(gate_up: Tensor, pack_factor: int) -> Tensor:  # noqa: ARG001
    return _empty(gate_up, gate_up.shape[1] // 2)


def _empty(like: Tensor, width: int) -> Tensor:
    return like.new_empty((like.shape[0], width // LANE_CHUNK, 4, LANE_CHUNK // 4))


def launch(rows: Tensor, pack_factor: int, *, is_swiglu: bool = False) -> Tensor:
    rows = aligned(rows)
    permuted = _empty(rows, rows.shape[1] // (2 if is_swiglu else 1))
    is_bf16 = rows.dtype == torch.bfloat16
    macros = {"PACK_FACTOR": pack_factor, "SWIGLU": int(is_swiglu), "BF16": int(is_bf16), "THREADS": THREADS}
    kernel = cuda_kernel("permute_rows", tuple(macros.items()), THREADS, 0, rows.device)
    vectors = permuted.numel() // VECTOR
    kernel(-(-vectors // THREADS), [rows, permuted, vectors // len(rows), vectors])
    return permuted
