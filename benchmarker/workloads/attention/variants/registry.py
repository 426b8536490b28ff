"""The implementations by name. A new one is a line here, and a file beside this one where it is more than a line.

Kernel names on NVIDIA as torch 2.11 with cuDNN 9.19 shows them; on AMD, torch's flash and efficient backends both run
AOTriton's kernels. A CPU build has the math and the flash backend alone.
"""

from __future__ import annotations

from importlib.util import find_spec

from benchmarker.core.errors import SpecError, did_you_mean
from benchmarker.workloads.attention.variants.base import HALF, Implementation
from benchmarker.workloads.attention.variants.flash_library import open_flash_library
from benchmarker.workloads.attention.variants.flex import open_flex
from benchmarker.workloads.attention.variants.naive import open_naive
from benchmarker.workloads.attention.variants.sdpa import open_sdpa
from benchmarker.workloads.attention.variants.user_function import is_import_path, user_function

_SOFTMAX = r"(?i)softmax"
_AOTRITON = r"attn_fwd"
_TEMPLATE = r"triton.*flex|triton_tem_"

VARIANTS: dict[str, Implementation] = {
    "naive": Implementation(
        "product, softmax and product in separate operators: the scores go through memory",
        open_naive,
        {"cuda": _SOFTMAX, "rocm": _SOFTMAX, "cpu": r"aten::_softmax"},
    ),
    "math": Implementation(
        "torch's scaled_dot_product_attention, math backend: separate operators, 16-bit types computed in float32",
        open_sdpa("MATH"),
        {"cuda": _SOFTMAX, "rocm": _SOFTMAX, "cpu": r"_scaled_dot_product_attention_math"},
    ),
    "flash": Implementation(
        "torch's flash backend: FlashAttention 2",
        open_sdpa("FLASH_ATTENTION"),
        {"cuda": r"flash_fwd", "rocm": _AOTRITON, "cpu": r"_scaled_dot_product_flash_attention_for_cpu"},
        longest_head_dim=256,
        takes_window=False,
    ),
    "efficient": Implementation(
        "torch's efficient backend: xFormers' memory-efficient kernel",
        open_sdpa("EFFICIENT_ATTENTION"),
        {"cuda": r"fmha_cutlass", "rocm": _AOTRITON},
    ),
    "cudnn": Implementation(
        "torch's cudnn backend",
        open_sdpa("CUDNN_ATTENTION"),
        {"cuda": r"(?i)cudnn.*(sdpa|attention|flash|fmha)|fort_native_sdpa"},
        dtypes=HALF,
        longest_head_dim=256,
    ),
    "flex": Implementation(
        "torch's flex_attention, compiled",
        open_flex,
        {
            "cuda": _TEMPLATE,
            "rocm": _TEMPLATE,
            "cpu": r"flex_attention|CompiledFxGraph",
        },
    ),
    "auto": Implementation(
        "torch's scaled_dot_product_attention with its own choice of the backend, which the table names",
        open_sdpa(None),
        {"cuda": "", "rocm": "", "cpu": ""},
    ),
    "fa3": Implementation(
        "FlashAttention 3 in torch's flash backend",
        open_flash_library("FA3"),
        {"cuda": r"(?i)flash_?attn_?fwd_?sm|enable_sm90"},
        dtypes=HALF,
        longest_head_dim=256,
        takes_window=False,
        modules=("flash_attn_interface",),
        remedy="build it from the folder hopper/ of the flash-attention repository",
    ),
    "fa4": Implementation(
        "FlashAttention 4 in torch's flash backend",
        open_flash_library("FA4"),
        {"cuda": r"(?i)flash_?(attn|attention)?_?(fwd|forward).*sm\d|flash_attn_?cute"},
        dtypes=HALF,
        longest_head_dim=256,
        takes_window=False,
        modules=("flash_attn.cute.interface",),
        remedy="pip install flash-attn-4",
    ),
}


def implementation_of(name: str) -> Implementation:
    """The entry of a name, or one for a function of the user's own.

    Raises:
        SpecError: There is neither.
    """
    if name in VARIANTS:
        return VARIANTS[name]
    if is_import_path(name):
        return user_function(name)
    raise SpecError(f"no attention variant '{name}'{did_you_mean(name, VARIANTS)}; your own is module:function")


def missing_module(implementation: Implementation) -> str | None:
    """The first module that it needs and that is not installed."""
    return next((module for module in implementation.modules if not _is_installed(module)), None)


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of a parent package
        return False
