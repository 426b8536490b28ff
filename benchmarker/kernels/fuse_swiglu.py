"""An MLP's gate and up with the activation between them, made one kernel for one query.

Gate and up are one product already (see `joined`); what is left is a kernel that multiplies the two halves, 2 us of
each layer on an H100, in which no weights are read. Here the product ends with it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from benchmarker.kernels import gemv_dense
from benchmarker.kernels.forward_override import with_forward
from benchmarker.kernels.replace_linears import is_one_query, rows_forward

CLOSE = 0.02
"""Largest relative difference to the MLP's own forward, in 16 bit."""
SCALES = (1, 16)
"""Of the inputs that are tried."""


def fuse_gates(model: nn.Module) -> list[nn.Module]:
    """Give MLPs whose gate and up are joined this form, if it makes what they make. Doing it twice changes nothing.

    Returns:
        The MLPs that have it.
    """
    for module in model.modules():
        if type(module).forward is not _gated and _has_joined_gate(module) and _is_the_same(module):
            module.__class__ = with_forward(type(module), _gated)
    return [module for module in model.modules() if type(module).forward is _gated]


def _has_joined_gate(mlp: Any) -> bool:
    if not all(hasattr(mlp, name) for name in ("gate_proj", "up_proj", "down_proj")):
        return False
    gate, up = mlp.gate_proj, mlp.up_proj
    if not (hasattr(gate, "part") and hasattr(up, "part") and gate.part.joint is up.part.joint):
        return False
    is_whole = gate.part.start == 0 and gate.part.joint.product.out_features == 2 * gate.out_features
    return bool(is_whole and type(gate).alone is rows_forward and gate.bias is None)


def _is_the_same(mlp: Any) -> bool:
    """Whether it is down(silu(gate) * up): seen in what it makes, not read off its class. Of large numbers too, which
    some models cut off."""
    gate = mlp.gate_proj
    weight = gate.part.joint.product.weight
    some = torch.randn(1, 1, gate.in_features, generator=torch.Generator().manual_seed(0))
    ordinary, *larger = ((scale * some).to(weight.device, weight.dtype) for scale in SCALES)
    # Real weights make of large numbers what 16 bit cannot hold; that tells nothing.
    return _difference(mlp, ordinary) <= CLOSE and not any(_difference(mlp, hidden) > CLOSE for hidden in larger)


def _difference(mlp: Any, hidden: Tensor) -> float:
    """Of what ours makes to what the MLP makes itself, relative; no number where one of them overflows."""
    with torch.no_grad():
        expected, fused = type(mlp).forward(mlp, hidden).float(), _fused(mlp, hidden).float()
    return float((fused - expected).norm() / expected.norm())


def _gated(mlp: Any, hidden: Tensor) -> Tensor:
    if not is_one_query(hidden, mlp.gate_proj):
        result: Tensor = mlp.alone(hidden)
        return result
    return _fused(mlp, hidden)


def _fused(mlp: Any, hidden: Tensor) -> Tensor:
    product = gemv_dense.gemv_swiglu(hidden.flatten(), *gemv_dense.as_rows(mlp.gate_proj.part.joint.product.weight))
    result: Tensor = mlp.down_proj(product.view(*hidden.shape[:-1], -1))
    return result
