"""Reference products of a decode step in float64."""

import torch
from torch import Tensor

from benchmarker.kernels.gemv_fusion import GemvFusion


def with_fusion(hidden: Tensor, weights: Tensor, fusion: GemvFusion) -> Tensor:
    """Return the product with the fused operations around it. The norm rounds to the dtype of `hidden`, as in models.

    Args:
        hidden: [in].
        weights: [outputs, in]; for SwiGLU first the rows of gate, then those of up.
    """
    vector = hidden.double()
    if fusion.gain is not None:
        vector = (vector * torch.rsqrt(vector.square().mean() + fusion.epsilon)).to(hidden.dtype)
        vector = (vector * fusion.gain).double()
    product = weights.double() @ vector
    if fusion.swiglu:
        gate, up = product.chunk(2)
        product = torch.nn.functional.silu(gate) * up
    return product if fusion.residual is None else product + fusion.residual.double()
