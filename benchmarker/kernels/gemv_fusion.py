"""What stands before and behind a GEMV of one decode step, computed inside it: a norm, SwiGLU and the residual.

As kernels of their own each takes 1 to 2 us of a layer on an H100, in which no weights are read. A norm over the root
of the mean square needs no pass of its own in Triton's kernels: the product is linear, so its factor can come last.
"""

from dataclasses import dataclass

from torch import Tensor

from benchmarker.kernels.launch_support import tl, triton


@dataclass(frozen=True)
class GemvFusion:
    """What a GEMV computes besides its product."""

    gain: Tensor | None = None
    """The weight of an RMS norm over the vector, [in]; None for no norm."""
    epsilon: float = 0.0
    """What that norm adds to the mean square."""
    residual: Tensor | None = None
    """What is added to the product, [out]; None for nothing."""
    swiglu: bool = False
    """Whether the weights are a gate's and then an up's, of which silu(gate) * up is made."""


NO_FUSION = GemvFusion()
"""The product alone."""


@triton.jit
def norm_factor(squares, epsilon, inputs):  # type: ignore[no-untyped-def]
    """By what a product is multiplied for the norm of its vector, whose squares add up to `squares`."""
    return tl.rsqrt(squares / inputs + tl.cast(epsilon, tl.float32))


@triton.jit
def gated(gate, up):  # type: ignore[no-untyped-def]
    """SwiGLU: silu(gate) * up."""
    return gate * tl.sigmoid(gate) * up


@triton.jit  # type: ignore[untyped-decorator]
def store_outputs(  # type: ignore[no-untyped-def]
    result, squares, epsilon, residual, output, first, outputs, inputs,
    each: tl.constexpr, matrices: tl.constexpr, normed: tl.constexpr, added: tl.constexpr,
):  # fmt: skip
    """Write the outputs from `first` on. result: [matrices * each], one matrix's rows after the other's; squares: the
    sum of the vector's squares, if `normed`. With two matrices SwiGLU is written."""
    if normed:
        result *= norm_factor(squares, epsilon, inputs)
    if matrices == 2:
        gate, up = tl.split(tl.permute(tl.reshape(result, [2, each]), [1, 0]))
        result = gated(gate, up)
    place = first + tl.arange(0, each)
    if added:
        result += tl.load(residual + place, mask=place < outputs, other=0.0).to(tl.float32)
    tl.store(output + place, result.to(output.dtype.element_ty), mask=place < outputs)
