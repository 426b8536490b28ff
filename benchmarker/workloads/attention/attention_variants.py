"""Implementations of attention by name, and a user's own function by its import path.

Kernel names on NVIDIA are those of torch 2.11 with cuDNN 9.19. On AMD, torch's flash and efficient backends both run
AOTriton's kernels. A CPU build of torch has only the math and flash backends.

A user's function, such as `mykernels.attention:forward`, is called with queries [batch, heads, length, head_dim], keys
and values [batch, kv_heads, length, head_dim], and those of the keywords `is_causal`, `window` and `enable_gqa` that it
accepts. It returns the output in the queries' shape, in a new tensor for each call. Importing it requires --trust-code.
"""

from __future__ import annotations

import importlib
import inspect
import math
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from benchmarker.checkpoints.files import fingerprint
from benchmarker.core.errors import SpecError, UnsupportedError, did_you_mean, first_line
from benchmarker.workloads.attention.spec import AttentionShape
from benchmarker.workloads.operation.operation_call import ANY_KERNEL, Implementation, Kind, Operation
from benchmarker.workloads.operation.record import SeenKernel

if TYPE_CHECKING:
    from torch import Tensor

Backend = Literal["MATH", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION"]
Open = Callable[[AttentionShape, str], Operation]
HALF = ("bfloat16", "float16")
_SOFTMAX = r"(?i)softmax"
_AOTRITON = r"attn_fwd"
_TEMPLATE = r"triton.*flex|triton_tem_"


def _masked_pairs(shape: AttentionShape, device: str) -> Tensor | None:
    import torch

    if not shape.causal:
        return None
    all_pairs = torch.ones(shape.seq_len, shape.seq_len, dtype=torch.bool, device=device)
    later = all_pairs.triu(1)
    return later if shape.window is None else later | all_pairs.tril(-shape.window)


def open_naive(shape: AttentionShape, device: str) -> Operation:
    masked = _masked_pairs(shape, device)
    scale, group_size = math.sqrt(shape.head_dim), shape.heads // shape.kv_heads

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if group_size > 1:
            key, value = key.repeat_interleave(group_size, dim=1), value.repeat_interleave(group_size, dim=1)
        scores = query @ key.transpose(-2, -1) / scale
        if masked is not None:
            scores = scores.masked_fill(masked, -math.inf)
        return scores.softmax(dim=-1) @ value

    return Operation(attend)


def open_sdpa(backend: Backend | None) -> Open:
    """Return a function that prepares scaled_dot_product_attention with this backend; for None, torch chooses one."""

    def around() -> AbstractContextManager[object]:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        return nullcontext() if backend is None else sdpa_kernel(getattr(SDPBackend, backend))

    return lambda shape, device: Operation(_sdpa_call(shape, device), around)


def _sdpa_call(shape: AttentionShape, device: str) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return the operator with the shape's mask. A causal mask is passed as a flag, a window as a mask matrix."""
    from torch.nn.functional import scaled_dot_product_attention

    masked = _masked_pairs(shape, device) if shape.window is not None else None
    allowed = None if masked is None else ~masked
    return partial(
        scaled_dot_product_attention,
        attn_mask=allowed,
        is_causal=shape.causal and allowed is None,
        enable_gqa=shape.heads != shape.kv_heads,
    )


def open_flash_library(version: str) -> Open:
    """Return a function that prepares FlashAttention "FA3" or "FA4", which torch calls instead of FlashAttention 2."""

    @contextmanager
    def around() -> Iterator[None]:
        from torch.nn import attention

        try:
            attention.activate_flash_attention_impl(version)
        except (ValueError, ImportError, RuntimeError) as error:
            raise UnsupportedError(f"torch: {first_line(error)}") from error
        try:
            with attention.sdpa_kernel(attention.SDPBackend.FLASH_ATTENTION):
                yield
        finally:
            attention.restore_flash_attention_impl()

    return lambda shape, device: Operation(_sdpa_call(shape, device), around)


def open_flex(shape: AttentionShape, device: str) -> Operation:
    """Prepare flex_attention, which inductor compiles at the first call. Fully masked blocks are skipped."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    # Without a reset, dynamo compiles a function for at most eight shapes and runs it uncompiled for all others.
    torch.compiler.reset()
    compiled = torch.compile(flex_attention, dynamic=False)
    window = shape.window or shape.seq_len

    def is_allowed(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (query - key < window)

    length = shape.seq_len
    blocks = create_block_mask(is_allowed, None, None, length, length, device=device) if shape.causal else None
    return Operation(partial(compiled, block_mask=blocks, enable_gqa=shape.heads != shape.kv_heads))


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


_flash_library = partial(AttentionImplementation, dtypes=HALF, max_head_dim=256, takes_window=False)

VARIANTS: dict[str, AttentionImplementation] = {
    "naive": AttentionImplementation(
        open=open_naive, kernels={"cuda": _SOFTMAX, "rocm": _SOFTMAX, "cpu": r"aten::_softmax"}
    ),
    # Separate operators, which compute 16-bit types in float32.
    "math": AttentionImplementation(
        open=open_sdpa("MATH"),
        kernels={"cuda": _SOFTMAX, "rocm": _SOFTMAX, "cpu": r"_scaled_dot_product_attention_math"},
    ),
    # FlashAttention 2.
    "flash": AttentionImplementation(
        open=open_sdpa("FLASH_ATTENTION"),
        kernels={"cuda": r"flash_fwd", "rocm": _AOTRITON, "cpu": r"_scaled_dot_product_flash_attention_for_cpu"},
        max_head_dim=256,
        takes_window=False,
    ),
    # xFormers' memory-efficient kernel.
    "efficient": AttentionImplementation(
        open=open_sdpa("EFFICIENT_ATTENTION"), kernels={"cuda": r"fmha_cutlass", "rocm": _AOTRITON}
    ),
    "cudnn": AttentionImplementation(
        open=open_sdpa("CUDNN_ATTENTION"),
        kernels={"cuda": r"(?i)cudnn.*(sdpa|attention|flash|fmha)|fort_native_sdpa"},
        dtypes=HALF,
        max_head_dim=256,
    ),
    "flex": AttentionImplementation(
        open=open_flex, kernels={"cuda": _TEMPLATE, "rocm": _TEMPLATE, "cpu": r"flex_attention|CompiledFxGraph"}
    ),
    # torch chooses the backend; the name of the kernel in the table shows which.
    "auto": AttentionImplementation(open=open_sdpa(None), kernels=ANY_KERNEL),
    "fa3": _flash_library(
        open=open_flash_library("FA3"),
        kernels={"cuda": r"(?i)flash_?attn_?fwd_?sm|enable_sm90"},
        modules=("flash_attn_interface",),
        remedy="build it from the folder hopper/ of the flash-attention repository",
    ),
    "fa4": _flash_library(
        open=open_flash_library("FA4"),
        kernels={"cuda": r"(?i)flash_?(attn|attention)?_?(fwd|forward).*sm\d|flash_attn_?cute"},
        modules=("flash_attn.cute.interface",),
        remedy="pip install flash-attn-4",
    ),
}


def implementation_of(name: str) -> AttentionImplementation:
    if name in VARIANTS:
        return VARIANTS[name]
    if _is_import_path(name):
        return AttentionImplementation(open=lambda shape, _: Operation(_user_call(name, shape)), kernels=ANY_KERNEL)
    raise SpecError(f"no attention variant '{name}'{did_you_mean(name, VARIANTS)}; your own is module:function")


def variants_with_kernel(kernels: Sequence[SeenKernel], kind: Kind) -> tuple[str, ...]:
    """Return the names of variants that run one of `kernels`; `naive` and `math` only if no fused variant does."""
    matching = [
        name
        for name, implementation in VARIANTS.items()
        if implementation.kernels.get(kind) and implementation.matches((kernel.name for kernel in kernels), kind)
    ]
    return tuple([name for name in matching if name not in ("naive", "math")] or matching)


def _is_import_path(name: str) -> bool:
    module, colon, function = name.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), function))


def source_sha256(variant: str) -> str | None:
    """Return the SHA-256 of a user's module file; None for a variant of the registry, or if no such file exists.

    Imports the packages that contain the module, but not the module.
    """
    if not _is_import_path(variant):
        return None
    _search_current_folder()
    try:
        spec = find_spec(variant.partition(":")[0])
    except (ImportError, ValueError):
        return None
    return fingerprint(Path(spec.origin)) if spec and spec.origin and spec.has_location else None


def _search_current_folder() -> None:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))


def _user_call(path: str, shape: AttentionShape) -> Callable[..., Any]:
    module_name, _, name = path.partition(":")
    _search_current_folder()
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise SpecError(f"variant {path}: cannot import {module_name}: {first_line(error)}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise SpecError(f"variant {path}: {module_name} has no function '{name}'")
    offered = {"is_causal": shape.causal, "window": shape.window, "enable_gqa": shape.heads != shape.kv_heads}
    parameters = inspect.signature(function).parameters
    options = {name: value for name, value in offered.items() if name in parameters}

    def call(query: Any, key: Any, value: Any) -> Any:
        try:
            return function(query, key, value, **options)
        except RuntimeError:  # out of memory, or an unsupported call: the caller handles it
            raise
        except Exception as error:
            *_, (frame, line) = traceback.walk_tb(error.__traceback__)
            location = f"{Path(frame.f_code.co_filename).name}, line {line}"
            raise SpecError(f"variant {path}: {type(error).__name__}: {first_line(error)} ({location})") from error

    return call
