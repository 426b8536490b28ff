"""Implementations of mixers by name: the mixer, then the source.

flash-linear-attention (fla 0.6.0) has kernels in Triton, with functions that take [batch, length, heads, width]. It
imports on any machine with triton and runs only on a GPU. It may hand a call to another library's kernel, so the kernel
that ran is checked by name.

Those in torch alone are references: chunks of 64 positions, matrix products in float32 inside each chunk, a state
between them, nothing fused. For decays a and strengths b, with G_i the sum of log a from the chunk's start to position
i, and S0 the state at its start (Yang et al., "Gated Delta Networks", arXiv 2412.06464, section 3.3; chunks of linear
attention: Hua et al., arXiv 2202.10447):

    L_ij = exp(G_i - G_j) for j <= i, otherwise 0
    U    = b v, or for the delta rule (I + lower(b k k^T L))^-1 (b v - b exp(G) k S0)
    o    = (q k^T L) U + exp(G) q S0                            all over sqrt(head_dim)
    S    = exp(G_last) S0 + (exp(G_last - G) k)^T U
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from benchmarker.core.errors import SpecError, UnsupportedError, did_you_mean, install_hint
from benchmarker.workloads.attention.attention_variants import VARIANTS as ATTENTION_VARIANTS
from benchmarker.workloads.mixers.mixer import (
    GATED_DELTA,
    LINEAR,
    RETENTION,
    SOFTMAX,
    Mixer,
    MixerImplementation,
    softmax_shape,
)
from benchmarker.workloads.mixers.spec import MixerShape
from benchmarker.workloads.operation.operation_call import ANY_KERNEL, Operation

if TYPE_CHECKING:
    import torch
    from torch import Tensor

CHUNK = 64
EPSILON = 1e-10
"""Added to the sum of the weights, as in fla."""
COMPILER_REFUSED = "upgrade triton"
"""Part of fla's message for a Triton that miscompiles a kernel: 3.4.0 to 3.7.0 miscompile the backward pass
of the delta rule on Hopper (fla-org/flash-linear-attention, issue 640)."""


def open_chunked(mixer: Mixer, shape: MixerShape, device: str) -> Operation:
    decay = None if mixer.is_gated_delta else head_decay(mixer, shape.heads, device)
    is_normalized = shape.normalize and mixer is LINEAR

    def mix(
        query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor | None = None, strength: Tensor | None = None
    ) -> Tensor:
        dtype = value.dtype
        query, key, value = (tensor.float() if tensor.dtype.itemsize < 4 else tensor for tensor in (query, key, value))
        if log_decay is None and decay is not None:
            log_decay = decay.to(query.dtype)[:, None].expand(query.shape[:3])
        if strength is not None:
            strength = strength.to(query.dtype)
        tensors = query, key, value, log_decay, strength
        return chunked(*tensors, is_delta=mixer.is_gated_delta, is_normalized=is_normalized).to(dtype)

    return Operation(mix)


def head_decay(mixer: Mixer, heads: int, device: str | torch.device) -> Tensor | None:
    """Return the log of retention's constant decay of each head, float64; None for other mixers."""
    import torch

    if mixer.name != "retention":
        return None
    return torch.log1p(-(2.0 ** (-5.0 - torch.arange(heads, dtype=torch.float64, device=device))))


def chunked(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor | None,
    strength: Tensor | None,
    *,
    is_delta: bool,
    is_normalized: bool = False,
) -> Tensor:
    """Return the output, [.., length, value_dim], for any length.

    Args:
        query: [.., length, head_dim], as the key; the value is [.., length, value_dim].
        log_decay: [.., length]; None for no decay.
        strength: [.., length]; None for strengths of 1.
    """
    import torch
    from torch.nn.functional import pad

    length, scale = query.shape[-2], 1 / math.sqrt(query.shape[-1])
    missing = -length % CHUNK
    if is_normalized:
        value = torch.cat([value, torch.ones_like(value[..., :1])], dim=-1)
    chunks = [pad(tensor, (0, 0, 0, missing)).unflatten(-2, (-1, CHUNK)) for tensor in (query * scale, key, value)]
    log_decay = query.new_zeros(query.shape[:-1]) if log_decay is None else log_decay.to(query.dtype)
    decay_sums = pad(log_decay, (0, missing)).unflatten(-1, (-1, CHUNK)).cumsum(-1)
    if strength is not None:
        strength = pad(strength, (0, missing)).unflatten(-1, (-1, CHUNK))[..., None]
    state = query.new_zeros(*query.shape[:-2], key.shape[-1], value.shape[-1])
    outputs = []
    for number in range(decay_sums.shape[-2]):
        q, k, v = (tensor[..., number, :, :] for tensor in chunks)
        decay_sum = decay_sums[..., number, :]
        # Above the diagonal the difference is positive and may overflow: tril before exp, and again after it.
        between = (decay_sum[..., :, None] - decay_sum[..., None, :]).tril().exp().tril()
        from_start, to_end = decay_sum.exp()[..., None], (decay_sum[..., -1:] - decay_sum).exp()[..., None]
        scaled_key, update = k, v
        if strength is not None:
            scaled_key, update = strength[..., number, :, :] * k, strength[..., number, :, :] * v
        if is_delta:
            lower = (scaled_key @ k.mT * between).tril(-1)
            rest = update - (from_start * scaled_key) @ state
            update = torch.linalg.solve_triangular(lower, rest, upper=False, unitriangular=True)
        outputs.append((q @ k.mT * between) @ update + (from_start * q) @ state)
        state = decay_sum[..., -1:, None].exp() * state + (to_end * k).mT @ update
    output = torch.cat(outputs, dim=-2)[..., :length, :]
    return output[..., :-1] / (output[..., -1:] + EPSILON) if is_normalized else output


def _fla(
    mixer: Mixer, module: str, name: str, kernel: str, *, normalizes: bool = False, has_backward: bool = True
) -> MixerImplementation:

    def open_function(shape: MixerShape, device: str) -> Operation:  # noqa: ARG001
        mix: Callable[..., Any] = getattr(import_module(f"fla.ops.{module}"), name)
        # Normalization is an option of linear attention alone, and its default.
        options = {"normalize": shape.normalize} if normalizes else {}

        def call(query: Tensor, key: Tensor, value: Tensor, *gates: Tensor) -> Tensor:
            named = dict(zip(("g", "beta"), gates, strict=True)) if gates else {}
            output: Tensor = mix(query, key, value, **named, **options)[0]
            return output

        return Operation(call)

    return MixerImplementation(
        mixer=mixer,
        source="fla",
        open=open_function,
        kernels={"cuda": kernel, "rocm": kernel},
        layout="length first",
        dtypes=("bfloat16", "float16"),
        modules=("triton", "fla"),
        remedy=install_hint("mixers"),
        packages=("fla-core", "triton", "torch"),
        normalizes=normalizes,
        has_backward=has_backward,
    )


def _softmax(name: str, *, writes_scores: bool = False, wide_values: bool = False) -> MixerImplementation:
    attention = ATTENTION_VARIANTS[name]
    return MixerImplementation(
        mixer=SOFTMAX,
        source=f"torch, {name}",
        open=lambda shape, device: attention.open(softmax_shape(shape), device),
        kernels=attention.kernels,
        dtypes=tuple(dtype for dtype in ("float32", "bfloat16", "float16") if dtype in attention.dtypes),
        modules=attention.modules,
        remedy=attention.remedy,
        wide_values=wide_values,
        writes_scores=writes_scores,
    )


def _in_torch(mixer: Mixer) -> MixerImplementation:
    opener = partial(open_chunked, mixer)
    return MixerImplementation(mixer=mixer, source="torch, chunked", open=opener, kernels=ANY_KERNEL, normalizes=True)


VARIANTS: dict[str, MixerImplementation] = {
    "softmax-naive": _softmax("naive", writes_scores=True, wide_values=True),
    "softmax-sdpa": _softmax("auto"),
    "softmax-flash": _softmax("flash"),
    "softmax-cudnn": _softmax("cudnn"),
    "linear-torch": _in_torch(LINEAR),
    "linear-fla-chunk": _fla(LINEAR, "linear_attn", "chunk_linear_attn", r"chunk_fwd_kernel_[ho]", normalizes=True),
    "linear-fla-fused": _fla(
        LINEAR, "linear_attn", "fused_chunk_linear_attn", r"fused_chunk_fwd_kernel", normalizes=True
    ),
    "retention-torch": _in_torch(RETENTION),
    "retention-fla-chunk": _fla(RETENTION, "retention", "chunk_retention", r"chunk_fwd_kernel_[ho]"),
    "gdn-torch": _in_torch(GATED_DELTA),
    "gdn-fla-chunk": _fla(GATED_DELTA, "gated_delta_rule", "chunk_gated_delta_rule", r"chunk_gated_delta_rule_fwd"),
    # A loop over positions, for decoding.
    "gdn-fla-recurrent": _fla(
        GATED_DELTA,
        "gated_delta_rule",
        "fused_recurrent_gated_delta_rule",
        r"fused_recurrent_gated_delta_rule",
        has_backward=False,
    ),
}


def implementation_of(name: str) -> MixerImplementation:
    if name not in VARIANTS:
        raise SpecError(f"no mixer '{name}'{did_you_mean(name, VARIANTS)}")
    return VARIANTS[name]


@contextmanager
def refused_compiler_is_unsupported() -> Iterator[None]:
    """Turn fla's refusal of a Triton that miscompiles a kernel into UnsupportedError, in one line."""
    try:
        yield
    except RuntimeError as error:
        if COMPILER_REFUSED not in str(error).lower():
            raise
        raise UnsupportedError(f"fla: {str(error).strip().splitlines()[0]}") from error
