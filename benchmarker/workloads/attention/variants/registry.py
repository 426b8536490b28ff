"""Implementations of attention by name. A new one is an entry here and an opener in `torch_attention` or its own file.

Kernel names on NVIDIA are those of torch 2.11 with cuDNN 9.19. On AMD, torch's flash and efficient backends both run
AOTriton's kernels. A CPU build has only the math and flash backends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarker.core.errors import SpecError, did_you_mean
from benchmarker.workloads.attention.spec import AttentionShape
from benchmarker.workloads.attention.variants.torch_attention import (
    open_flash_library,
    open_flex,
    open_naive,
    open_sdpa,
)
from benchmarker.workloads.attention.variants.user_function import is_import_path, open_user_function
from benchmarker.workloads.operation.implementation import ANY_KERNEL, Implementation, Kind
from benchmarker.workloads.operation.record import SeenKernel

HALF = ("bfloat16", "float16")
_SOFTMAX = r"(?i)softmax"
_AOTRITON = r"attn_fwd"
_TEMPLATE = r"triton.*flex|triton_tem_"


@dataclass(frozen=True, kw_only=True)
class AttentionImplementation(Implementation):
    max_head_dim: int | None = None
    takes_window: bool = True

    def wrong_shape(self, shape: AttentionShape) -> str | None:
        reason = super().wrong_shape(shape)
        if reason is None and self.max_head_dim is not None and shape.head_dim > self.max_head_dim:
            reason = f"takes a head_dim of {self.max_head_dim} at most, not {shape.head_dim}"
        if reason is None and shape.window is not None and not self.takes_window:
            reason = "takes no window"
        return reason


VARIANTS: dict[str, AttentionImplementation] = {
    "naive": AttentionImplementation(
        summary="product, softmax and product in separate operators: the scores go through memory",
        open=open_naive,
        kernels={"cuda": _SOFTMAX, "rocm": _SOFTMAX, "cpu": r"aten::_softmax"},
    ),
    "math": AttentionImplementation(
        summary="torch's scaled_dot_product_attention, math backend: separate operators, 16-bit types in float32",
        open=open_sdpa("MATH"),
        kernels={"cuda": _SOFTMAX, "rocm": _SOFTMAX, "cpu": r"_scaled_dot_product_attention_math"},
    ),
    "flash": AttentionImplementation(
        summary="torch's flash backend: FlashAttention 2",
        open=open_sdpa("FLASH_ATTENTION"),
        kernels={"cuda": r"flash_fwd", "rocm": _AOTRITON, "cpu": r"_scaled_dot_product_flash_attention_for_cpu"},
        max_head_dim=256,
        takes_window=False,
    ),
    "efficient": AttentionImplementation(
        summary="torch's efficient backend: xFormers' memory-efficient kernel",
        open=open_sdpa("EFFICIENT_ATTENTION"),
        kernels={"cuda": r"fmha_cutlass", "rocm": _AOTRITON},
    ),
    "cudnn": AttentionImplementation(
        summary="torch's cudnn backend",
        open=open_sdpa("CUDNN_ATTENTION"),
        kernels={"cuda": r"(?i)cudnn.*(sdpa|attention|flash|fmha)|fort_native_sdpa"},
        dtypes=HALF,
        max_head_dim=256,
    ),
    "flex": AttentionImplementation(
        summary="torch's flex_attention, compiled",
        open=open_flex,
        kernels={"cuda": _TEMPLATE, "rocm": _TEMPLATE, "cpu": r"flex_attention|CompiledFxGraph"},
    ),
    "auto": AttentionImplementation(
        summary="torch's scaled_dot_product_attention with torch's choice of the backend, which the table names",
        open=open_sdpa(None),
        kernels=ANY_KERNEL,
    ),
    "fa3": AttentionImplementation(
        summary="FlashAttention 3 in torch's flash backend",
        open=open_flash_library("FA3"),
        kernels={"cuda": r"(?i)flash_?attn_?fwd_?sm|enable_sm90"},
        dtypes=HALF,
        max_head_dim=256,
        takes_window=False,
        modules=("flash_attn_interface",),
        remedy="build it from the folder hopper/ of the flash-attention repository",
    ),
    "fa4": AttentionImplementation(
        summary="FlashAttention 4 in torch's flash backend",
        open=open_flash_library("FA4"),
        kernels={"cuda": r"(?i)flash_?(attn|attention)?_?(fwd|forward).*sm\d|flash_attn_?cute"},
        dtypes=HALF,
        max_head_dim=256,
        takes_window=False,
        modules=("flash_attn.cute.interface",),
        remedy="pip install flash-attn-4",
    ),
}


def implementation_of(name: str) -> AttentionImplementation:
    """Return the entry of a name, or an entry for a user's `module:function`. Raises SpecError."""
    if name in VARIANTS:
        return VARIANTS[name]
    if is_import_path(name):
        return AttentionImplementation(
            summary=f"{name}, a function of your own", open=open_user_function(name), kernels=ANY_KERNEL
        )
    raise SpecError(f"no attention variant '{name}'{did_you_mean(name, VARIANTS)}; your own is module:function")


def variants_with_kernel(kernels: Sequence[SeenKernel], kind: Kind) -> tuple[str, ...]:
    """Return the variants that these kernels may belong to; `naive` and `math` only if no fused one matches."""
    matching = [
        name
        for name, implementation in VARIANTS.items()
        if implementation.kernels.get(kind) and implementation.matches((kernel.name for kernel in kernels), kind)
    ]
    fused = [name for name in matching if name not in ("naive", "math")]
    return tuple(fused or matching)
