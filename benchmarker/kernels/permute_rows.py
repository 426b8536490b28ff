"""Many rows brought into the order of `prefill_gemm`, and SwiGLU on the way, for NVIDIA's Hopper.

`packed_weights.by_lane` says the same in torch's operators. Of these torch's compiler makes kernels that read number by
number: at 512 rows SwiGLU and the order of its 9,728 outputs took 25 to 27 us on one H100, SwiGLU alone 8 us
(2026-11-25). How this kernel works is written in `permute_rows.cu`. On a CPU the operators are used.
"""

import torch
from torch import Tensor

from benchmarker.kernels.cuda_source import cuda_kernel
from benchmarker.kernels.launch_support import aligned
from benchmarker.kernels.packed_weights import LANE_CHUNK, by_lane

# No `from __future__ import annotations` here: torch reads the operators' types from its annotations.

THREADS = 256
EIGHT = 8
"""Inputs that a thread takes."""


@torch.library.custom_op("benchmarker::rows_by_lane", mutates_args=())
def rows_by_lane(hidden: Tensor, in_word: int) -> Tensor:
    """Rows, [rows, inputs], in the order of `packed_weights.by_lane`: [rows, inputs / 64, 4, 16].

    Args:
        hidden: Of 16 bits; its inputs a multiple of 64.
        in_word: Weights of a word of the matrix, 4 or 8.
    """
    return launch(hidden, in_word) if hidden.is_cuda else by_lane(hidden, in_word)


@torch.library.custom_op("benchmarker::swiglu_by_lane", mutates_args=())
def swiglu_by_lane(gate_up: Tensor, in_word: int) -> Tensor:
    """silu(gate) * up of each row, in the order of `packed_weights.by_lane`: [rows, width / 64, 4, 16].

    Args:
        gate_up: [rows, 2 * width], of 16 bits: the gate of a row and behind it its up; the width a multiple of 64.
        in_word: Weights of a word of the matrix that multiplies the result, 4 or 8.
    """
    if gate_up.is_cuda:
        return launch(gate_up, in_word, is_gated=True)
    gate, up = gate_up.chunk(2, -1)
    return by_lane(torch.nn.functional.silu(gate) * up, in_word)


@rows_by_lane.register_fake
def _rows(hidden: Tensor, in_word: int) -> Tensor:  # noqa: ARG001
    return _empty(hidden, hidden.shape[1])


@swiglu_by_lane.register_fake
def _gated_rows(gate_up: Tensor, in_word: int) -> Tensor:  # noqa: ARG001
    return _empty(gate_up, gate_up.shape[1] // 2)


def _empty(like: Tensor, width: int) -> Tensor:
    return like.new_empty((like.shape[0], width // LANE_CHUNK, 4, LANE_CHUNK // 4))


def launch(rows: Tensor, in_word: int, *, is_gated: bool = False) -> Tensor:
    """As `rows_by_lane`, or with `is_gated` as `swiglu_by_lane`, by the kernel."""
    rows = aligned(rows)
    placed = _empty(rows, rows.shape[1] // (2 if is_gated else 1))
    macros = {"IN_WORD": in_word, "GATED": int(is_gated), "BF16": int(rows.dtype == torch.bfloat16), "THREADS": THREADS}
    kernel = cuda_kernel("permute_rows", tuple(macros.items()), THREADS, 0, rows.device)
    eights = placed.numel() // EIGHT
    kernel(-(-eights // THREADS), [rows, placed, eights // len(rows), eights])
    return placed
