"""FlashAttention 3 and 4, which torch runs in place of its own FlashAttention 2 where their library is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from benchmarker.core.errors import UnsupportedError, first_line
from benchmarker.workloads.attention.spec import Shape
from benchmarker.workloads.attention.variants.base import Attention
from benchmarker.workloads.attention.variants.sdpa import sdpa_call


def open_flash_library(version: str) -> Callable[[Shape, str], Attention]:
    """An opener for `FA3` or `FA4`, as torch names them."""

    @contextmanager
    def around() -> Iterator[None]:
        from torch.nn.attention import (
            SDPBackend,
            activate_flash_attention_impl,
            restore_flash_attention_impl,
            sdpa_kernel,
        )

        try:
            activate_flash_attention_impl(version)
        except (ValueError, ImportError, RuntimeError) as error:
            raise UnsupportedError(f"torch: {first_line(error)}") from error
        try:
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                yield
        finally:
            restore_flash_attention_impl()

    def open_version(shape: Shape, where: str) -> Attention:
        return Attention(sdpa_call(shape, where), around)

    return open_version
