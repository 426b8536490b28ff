"""Operations that are fused into a GEMV: RMS norm of the vector, SwiGLU and residual.

As a separate kernel, each operation takes 1 to 2 us per layer on an H100. In Triton, the norm needs no second pass over
the vector: the product is linear, so the factor 1 / rms is applied to the result.
"""

from dataclasses import dataclass

from torch import Tensor

from benchmarker.kernels.launch_support import tl, triton


@dataclass(frozen=True)
class GemvFusion:
    gain: Tensor | None = None  # Weight of the RMS norm of the vector, [in], or None.
    epsilon: float = 0.0  # Number that the RMS norm adds to the mean square.
    residual: Tensor | None = None  # Vector that is has_residual to the product, [out], or None.
    swiglu: bool = False  # True if the weights are gate and up, combined as silu(gate) * up.


NO_FUSION = GemvFusion()


@triton.jit
def norm_factor(squares, epsilon, inputs):  # type: ignore[no-untyped-def]
    return tl.rsqrt(squares / inputs + tl.cast(epsilon, tl.float32))


@triton.jit
def silu_and_mul(gate, up):  # type: ignore[no-untyped-def]
    return gate * tl.sigmoid(gate) * up


@triton.jit  # type: ignore[untyped-decorator]
def store_outputs(  # type: ignore[no-untyped-def]
    result, squares, epsilon, residual, output, first, outputs, inputs,
    each: tl.constexpr, matrices: tl.constexpr, has_norm: tl.constexpr, has_residual: tl.constexpr,
):  # fmt: skip
    """Apply norm factor, SwiGLU (two matrices) and residual to result, [matrices * each]; store it from `first` on."""
    if has_norm:
        result *= norm_factor(squares, epsilon, inputs)
    if matrices == 2:
        gate, up = tl.split(tl.permute(tl.reshape(result, [2, each]), [1, 0]))
        result = silu_and_mul(gate, up)
    place = first + tl.arange(0, each)
    if has_residual:
        result += tl.load(residual + place, mask=place < outputs, other=0.0).to(tl.float32)
    tl.store(output + place, result.to(output.dtype.element_ty), mask=place < outputs)
