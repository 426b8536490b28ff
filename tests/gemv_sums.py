"""Reference sums of a decode step's products in 64 bits."""

import torch
from torch import Tensor

from benchmarker.kernels.gemv_fusion import GemvFusion


def with_ends(hidden: Tensor, weights: Tensor, ends: GemvFusion) -> Tensor:
    """Return the product with the operations around it, including a norm that rounds as in models.

    Args:
        hidden: [in].
        weights: [outputs, in]; for SwiGLU the gate's rows, then up's.
    """
    vector = hidden.double()
    if ends.gain is not None:
        vector = (vector * torch.rsqrt(vector.square().mean() + ends.epsilon)).to(hidden.dtype)
        vector = (vector * ends.gain).double()
    product = weights.double() @ vector
    if ends.swiglu:
        gate, up = product.chunk(2)
        product = torch.nn.functional.silu(gate) * up
    return product if ends.residual is None else product + ends.residual.double()
