"""torch's scaled_dot_product_attention with one backend forced, or with torch's own choice."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Literal

from benchmarker.workloads.attention.spec import Shape
from benchmarker.workloads.attention.variants.base import Attention
from benchmarker.workloads.attention.variants.naive import hidden_pairs

if TYPE_CHECKING:
    from torch import Tensor

Backend = Literal["MATH", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION"]


def open_sdpa(backend: Backend | None) -> Callable[[Shape, str], Attention]:
    """An opener for one backend; None leaves the choice to torch."""

    def around() -> AbstractContextManager[object]:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        return nullcontext() if backend is None else sdpa_kernel(getattr(SDPBackend, backend))

    def open_backend(shape: Shape, where: str) -> Attention:
        return Attention(sdpa_call(shape, where), around)

    return open_backend


def sdpa_call(shape: Shape, where: str) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The operator with the mask of the shape. A window has no flag of its own, and goes in as a matrix."""
    from torch.nn.functional import scaled_dot_product_attention

    hidden = hidden_pairs(shape, where) if shape.window is not None else None
    allowed = None if hidden is None else ~hidden
    is_causal, is_grouped = shape.causal and allowed is None, shape.heads != shape.kv_heads

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return scaled_dot_product_attention(
            query, key, value, attn_mask=allowed, is_causal=is_causal, enable_gqa=is_grouped
        )

    return attend
