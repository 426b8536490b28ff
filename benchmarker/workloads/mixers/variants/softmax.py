"""Softmax attention, in the implementations that the workload `attention` has."""

from __future__ import annotations

from benchmarker.schema.base import DType
from benchmarker.workloads.attention.variants.registry import VARIANTS
from benchmarker.workloads.mixers.demand import softmax_shape
from benchmarker.workloads.mixers.spec import Shape
from benchmarker.workloads.mixers.variants.base import SOFTMAX, Implementation, Operation

ALL_TYPES: tuple[DType, ...] = ("float32", "bfloat16", "float16")


def softmax(name: str, *, writes_scores: bool = False, wide_values: bool = False) -> Implementation:
    """An implementation of attention as a mixer.

    Args:
        name: As the registry of attention has it.
    """
    attention = VARIANTS[name]

    def open_attention(shape: Shape, where: str) -> Operation:
        ready = attention.open(softmax_shape(shape), where)
        return Operation(ready.call, ready.around)

    return Implementation(
        mixer=SOFTMAX,
        source=f"torch, {name}",
        summary=attention.summary,
        open=open_attention,
        kernels=attention.kernels,
        dtypes=tuple(dtype for dtype in ALL_TYPES if dtype in attention.dtypes),
        modules=attention.modules,
        remedy=attention.remedy,
        wide_values=wide_values,
        writes_scores=writes_scores,
    )
