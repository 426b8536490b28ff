"""torch's flex_attention: a kernel that inductor makes from a template and a mask in Python.

The mask is a function of two positions. Blocks of it that are hidden altogether are not computed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarker.workloads.attention.spec import Shape
from benchmarker.workloads.attention.variants.base import Attention

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn.attention.flex_attention import BlockMask


def open_flex(shape: Shape, where: str) -> Attention:
    """Compiled for this shape at the first call."""
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    # Dynamo counts shapes against a limit of eight compilations, after which it runs what is not compiled.
    torch.compiler.reset()
    blocks = _blocks(shape, where)
    compiled = torch.compile(flex_attention, dynamic=False)
    is_grouped = shape.heads != shape.kv_heads

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output: Tensor = compiled(query, key, value, block_mask=blocks, enable_gqa=is_grouped)
        return output

    return Attention(attend)


def _blocks(shape: Shape, where: str) -> BlockMask | None:
    from torch.nn.attention.flex_attention import create_block_mask

    if not shape.causal:
        return None
    window = shape.window or shape.seq_len

    def is_allowed(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (query - key < window)

    return create_block_mask(is_allowed, None, None, shape.seq_len, shape.seq_len, device=where)
