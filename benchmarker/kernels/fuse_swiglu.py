"""SwiGLU fused into one kernel for one query: an MLP's gate and up with the activation between them.

Gate and up are one linear already (see fuse_qkv_gate_up); what is left is a kernel that multiplies the two halves, 2 us
of each layer on an H100, in which no weights are read. Here the kernel of the linear ends with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarker.kernels import gemv_dense
from benchmarker.kernels.forward_override import with_forward
from benchmarker.kernels.replace_linears import is_one_query, rows_forward

CLOSE = 0.02
"""Largest relative difference to the MLP's own forward, in 16 bit."""
SCALES = (1, 16)
"""Sizes of the inputs that are tried."""


def fuse_swiglu(model: nn.Module) -> list[nn.Module]:
    """Let MLPs whose gate and up are fused run as one kernel, if they are SwiGLU. Doing it twice changes nothing.

    Returns:
        The MLPs that run so.
    """
    for module in model.modules():
        if type(module).forward is not _swiglu_forward and _has_fused_gate(module) and _is_swiglu(module):
            module.__class__ = with_forward(type(module), _swiglu_forward)
    return [module for module in model.modules() if type(module).forward is _swiglu_forward]


def _has_fused_gate(mlp: Any) -> bool:
    """Whether gate and up are fused with each other and nothing else, and multiply by `gemv_dense`."""
    if not all(hasattr(mlp, name) for name in ("gate_proj", "up_proj", "down_proj")):
        return False
    gate, up = mlp.gate_proj, mlp.up_proj
    if not (
        hasattr(gate, "fused_slice") and hasattr(up, "fused_slice") and gate.fused_slice.fused is up.fused_slice.fused
    ):
        return False
    is_alone = gate.fused_slice.start == 0 and gate.fused_slice.fused.linear.out_features == 2 * gate.out_features
    return bool(is_alone and type(gate).original_forward is rows_forward and gate.bias is None)


def _is_swiglu(mlp: Any) -> bool:
    """Whether the kernel makes what the MLP makes."""
    gate = mlp.gate_proj
    weight = gate.fused_slice.fused.linear.weight
    return makes_the_same(mlp, _fused, like=torch.empty(gate.in_features, dtype=weight.dtype, device=weight.device))


def makes_the_same(mlp: Any, form: Callable[[Any, Tensor], Tensor], *, like: Tensor) -> bool:
    """Whether a form of SwiGLU makes what an MLP makes of random inputs: its class does not tell.

    Large inputs are tried too, because some models cut large activations off.

    Args:
        form: Makes an MLP's outputs of the MLP and its inputs, [1, 1, in].
        like: Of the type of the inputs, as long as them, and on their device.
    """
    sample = torch.randn(1, 1, len(like), generator=torch.Generator().manual_seed(0))
    ordinary, *larger = (_difference(mlp, form, (scale * sample).to(like)) for scale in SCALES)
    # Real weights make of large numbers what 16 bit cannot hold; that tells nothing.
    return ordinary <= CLOSE and not any(difference > CLOSE for difference in larger)


def _difference(mlp: Any, form: Callable[[Any, Tensor], Tensor], hidden: Tensor) -> float:
    """Relative difference of a form's outputs to the MLP's own; NaN or infinite where one of them overflows."""
    with torch.no_grad():
        expected, made = mlp(hidden).float(), form(mlp, hidden).float()
    return float((made - expected).norm() / expected.norm())


def _swiglu_forward(mlp: Any, hidden: Tensor) -> Tensor:
    if not is_one_query(hidden, mlp.gate_proj):
        result: Tensor = mlp.original_forward(hidden)
        return result
    return _fused(mlp, hidden)


def _fused(mlp: Any, hidden: Tensor) -> Tensor:
    product = gemv_dense.gemv_swiglu(
        hidden.flatten(), *gemv_dense.as_rows(mlp.gate_proj.fused_slice.fused.linear.weight)
    )
    result: Tensor = mlp.down_proj(product.view(*hidden.shape[:-1], -1))
    return result
