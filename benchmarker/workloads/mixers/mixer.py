"""Mixers by their recurrence, their implementations by name, and FLOPs, bytes and state of one call.

The state of a linear mixer is a matrix of head_dim x value_dim for each head. A token writes to the state (2 FLOPs per
number of the state) and reads it (2 FLOPs); the delta rule also reads the value stored for the key (2 FLOPs):

    linear attention, retention   4 * head_dim * value_dim   per token and head
    gated delta rule              6 * head_dim * value_dim

The backward pass has twice the products of the forward pass: a gradient for each factor of a product. Softmax attention
counts as in `attention_flops.py`: 2 * (head_dim + value_dim) per pair of tokens, backward 2.5 times that. Additional
products of chunked kernels do not count.

flash-linear-attention (fla 0.6.0) has kernels in Triton, with functions that take [batch, length, heads, width]. It can
be imported on any machine with triton and runs only on a GPU. It may call a kernel of another library, so the name of
the kernel that ran is checked.

Implementations in plain torch are reference implementations: chunks of 64 positions with float32 matrix products
inside a chunk and a state between chunks, nothing fused. With decays a, strengths b, G_i = sum of log a from the
chunk's start to position i, and S0 = state at the chunk's start (Yang et al., "Gated Delta Networks", arXiv 2412.06464,
section 3.3; chunks of linear attention: Hua et al., arXiv 2202.10447):

    L_ij = exp(G_i - G_j) for j <= i, otherwise 0
    U    = v, or for the delta rule (I + lower(b k k^T L))^-1 (b v - b exp(G) k S0)
    o    = (q k^T L) U + exp(G) q S0                            all over sqrt(head_dim)
    S    = exp(G_last) S0 + (exp(G_last - G) k)^T U
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Literal, NamedTuple

from benchmarker.core.errors import SpecError, UnsupportedError, did_you_mean, install_hint
from benchmarker.workloads.attention.attention_flops import LSE_BYTES, attention_flops
from benchmarker.workloads.attention.attention_variants import VARIANTS as ATTENTION_VARIANTS
from benchmarker.workloads.attention.spec import AttentionShape
from benchmarker.workloads.mixers.record import MixerName, MixersDemand
from benchmarker.workloads.mixers.spec import MixerShape
from benchmarker.workloads.operation.operation_call import ANY_KERNEL, Implementation, Operation

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Layout = Literal["heads first", "length first"]
"""[batch, heads, length, width] or [batch, length, heads, width]. Each implementation receives inputs in its own
layout, so that no copy is timed."""
GATE_BYTES = 4  # Bytes of one log decay, which is always float32.


class Mixer(NamedTuple):
    """Formula by which tokens interact. S: state of one head, [head_dim, value_dim]; a: decay; b: strength."""

    name: MixerName
    state_products: int | None
    """Multiplications per token / (head_dim * value_dim). None for softmax, whose state grows with the length."""


SOFTMAX = Mixer("softmax", None)  # o = softmax(q k^T / sqrt(head_dim)) v over all tokens so far.
LINEAR = Mixer("linear", 2)  # S += k v^T; o = S^T q / sqrt(head_dim).
RETENTION = Mixer("retention", 2)  # S = a S + k v^T, a = 1 - 2^(-5 - head); o = S^T q / sqrt(head_dim).
GATED_DELTA = Mixer("gdn", 3)  # S = a S; S += k (b (v - S^T k))^T; o = S^T q / sqrt(head_dim).
"""Gated delta rule. Decay and strength are inputs of each token; queries and keys are scaled to length 1."""


@dataclass(frozen=True, kw_only=True)
class MixerImplementation(Implementation):
    mixer: Mixer
    source: str  # Library of the kernels: `torch` or `fla`.
    dtypes: tuple[str, ...] = ("float32", "bfloat16", "float16")
    layout: Layout = "heads first"
    packages: tuple[str, ...] = ("torch",)  # Packages whose versions are recorded.
    wide_values: bool = True  # True if value_dim may differ from head_dim.
    has_backward: bool = True
    writes_scores: bool = False  # True if the scores of all pairs go through memory.

    def wrong_shape(self, shape: MixerShape) -> str | None:
        if reason := super().wrong_shape(shape):
            return reason
        if shape.value_dim != shape.head_dim and not self.wide_values:
            return f"takes values as wide as keys, not {shape.value_dim} beside {shape.head_dim}"
        return "has no backward pass" if shape.is_backward and not self.has_backward else None


def softmax_shape(shape: MixerShape) -> AttentionShape:
    size = shape.batch_size, shape.seq_len, shape.heads, shape.heads, shape.head_dim
    mode = "forward_backward" if shape.is_backward else "forward"
    return AttentionShape(*size, causal=True, window=None, dtype=shape.dtype, mode=mode)


def demand_of(mixer: Mixer, shape: MixerShape) -> MixersDemand:
    if mixer.state_products is None:
        forward, backward = attention_flops(softmax_shape(shape), value_dim=shape.value_dim)
        state_floats = shape.heads * (shape.head_dim + shape.value_dim) * shape.seq_len
    else:
        state_floats = shape.heads * shape.head_dim * shape.value_dim
        forward = 2 * mixer.state_products * shape.tokens * state_floats
        backward = 2 * forward
    return MixersDemand(
        forward_flops=forward,
        flops=forward + backward * shape.is_backward,
        bytes=_bytes(mixer, shape),
        state_floats=state_floats,
    )


def input_bytes(mixer: Mixer, shape: MixerShape) -> int:
    """Return the bytes of queries, keys, values and gates; with a backward pass, also of the output's gradient."""
    numbers = 2 * shape.head_dim + shape.value_dim * (1 + shape.is_backward)
    gate = GATE_BYTES + shape.element_bytes if mixer is GATED_DELTA else 0
    return shape.tokens * shape.heads * (numbers * shape.element_bytes + gate)


def _bytes(mixer: Mixer, shape: MixerShape) -> int:
    """Return the bytes that one call reads and writes. Backward: read inputs and the output's gradient, write the
    inputs' gradients; softmax also reads its output and log-sum-exp."""
    rows = shape.tokens * shape.heads
    inputs, output = input_bytes(mixer, shape._replace(mode="forward")), rows * shape.value_dim * shape.element_bytes
    if not shape.is_backward:
        return inputs + output
    return 3 * inputs + 2 * output + (output + 2 * LSE_BYTES * rows if mixer is SOFTMAX else 0)


def least_bytes(mixer: Mixer, shape: MixerShape, *, writes_scores: bool) -> int:
    """Return a lower bound of the memory in bytes: inputs, output, and the scores if `writes_scores`."""
    scores = shape.batch_size * shape.heads * shape.seq_len**2 * shape.element_bytes if writes_scores else 0
    return _bytes(mixer, shape._replace(mode="forward")) + scores


GATE_OFFSET = 4.0  # Decay = sigmoid(random number + 4): half of the tokens keep more than 98 % of the state.
CHUNK = 64
EPSILON = 1e-10  # Added to the sum of weights before a division, as in fla.
COMPILER_REFUSED = "upgrade triton"
"""Part of fla's error for versions of Triton that miscompile a kernel: 3.4.0 to 3.7.0 miscompile the backward pass
of the delta rule on Hopper (fla-org/flash-linear-attention, issue 640)."""


def open_chunked(mixer: Mixer, shape: MixerShape, device: str) -> Operation:
    decay = head_decay(mixer, shape.heads, device)

    def mix(
        query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor | None = None, strength: Tensor | None = None
    ) -> Tensor:
        dtype = value.dtype
        query, key, value = (tensor.float() if tensor.dtype.itemsize < 4 else tensor for tensor in (query, key, value))
        if decay is not None:
            log_decay = decay.to(query.dtype)[:, None].expand(query.shape[:3])
        strength = None if strength is None else strength.to(query.dtype)
        is_normalized = shape.normalize and mixer is LINEAR
        return chunked(query, key, value, log_decay, strength, is_normalized=is_normalized).to(dtype)

    return Operation(mix)


def head_decay(mixer: Mixer, heads: int, device: str | torch.device) -> Tensor | None:
    """Return retention's log decay of each head, [heads], float64; None for other mixers."""
    import torch

    if mixer.name != "retention":
        return None
    return torch.log1p(-(2.0 ** (-5.0 - torch.arange(heads, dtype=torch.float64, device=device))))


def chunked(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor | None, strength: Tensor | None, *, is_normalized: bool
) -> Tensor:
    """Return the output of a linear mixer by chunks, [.., length, value_dim].

    Args:
        query: [.., length, head_dim], like `key`; `value` is [.., length, value_dim].
        log_decay: [.., length], like `strength`. None without decay; `strength` is None without the delta rule.
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
        # tril before exp, because differences above the diagonal may overflow; tril after exp, because exp(0) is 1.
        between = (decay_sum[..., :, None] - decay_sum[..., None, :]).tril().exp().tril()
        from_start, to_end = decay_sum.exp()[..., None], (decay_sum[..., -1:] - decay_sum).exp()[..., None]
        update = v
        if strength is not None:
            scaled_key = strength[..., number, :, :] * k
            lower = (scaled_key @ k.mT * between).tril(-1)
            rest = strength[..., number, :, :] * v - (from_start * scaled_key) @ state
            update = torch.linalg.solve_triangular(lower, rest, upper=False, unitriangular=True)
        outputs.append((q @ k.mT * between) @ update + (from_start * q) @ state)
        state = decay_sum[..., -1:, None].exp() * state + (to_end * k).mT @ update
    output = torch.cat(outputs, dim=-2)[..., :length, :]
    return output[..., :-1] / (output[..., -1:] + EPSILON) if is_normalized else output


def scaled(tensor: Tensor, mixer: Mixer, shape: MixerShape) -> Tensor:
    """Return queries or keys as the mixer requires them: scaled to length 1, after the feature map, or unchanged."""
    from torch.nn.functional import elu, normalize

    if mixer is GATED_DELTA:
        return normalize(tensor.float(), dim=-1)
    return elu(tensor) + 1 if mixer is LINEAR and shape.feature_map == "elu" else tensor


def _fla(mixer: Mixer, module: str, name: str, kernel: str, *, has_backward: bool = True) -> MixerImplementation:
    def open_function(shape: MixerShape, device: str) -> Operation:  # noqa: ARG001
        mix: Callable[..., tuple[Tensor, ...]] = getattr(import_module(f"fla.ops.{module}"), name)
        # Only fla's linear attention has the option `normalize`, which is True by default.
        options = {"normalize": shape.normalize} if mixer is LINEAR else {}

        def call(query: Tensor, key: Tensor, value: Tensor, *gates: Tensor) -> Tensor:
            return mix(query, key, value, **dict(zip(("g", "beta"), gates, strict=False)), **options)[0]

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
        has_backward=has_backward,
    )


def _softmax(name: str, *, is_naive: bool = False) -> MixerImplementation:
    attention = ATTENTION_VARIANTS[name]
    return MixerImplementation(
        mixer=SOFTMAX,
        source=f"torch, {name}",
        open=lambda shape, device: attention.open(softmax_shape(shape), device),
        kernels=attention.kernels,
        dtypes=tuple(dtype for dtype in MixerImplementation.dtypes if dtype in attention.dtypes),
        modules=attention.modules,
        remedy=attention.remedy,
        wide_values=is_naive,
        writes_scores=is_naive,
    )


def _in_torch(mixer: Mixer) -> MixerImplementation:
    return MixerImplementation(
        mixer=mixer, source="torch, chunked", open=partial(open_chunked, mixer), kernels=ANY_KERNEL
    )


VARIANTS: dict[str, MixerImplementation] = {
    "softmax-naive": _softmax("naive", is_naive=True),
    "softmax-sdpa": _softmax("auto"),
    "softmax-flash": _softmax("flash"),
    "softmax-cudnn": _softmax("cudnn"),
    "linear-torch": _in_torch(LINEAR),
    "linear-fla-chunk": _fla(LINEAR, "linear_attn", "chunk_linear_attn", r"chunk_fwd_kernel_[ho]"),
    "linear-fla-fused": _fla(LINEAR, "linear_attn", "fused_chunk_linear_attn", r"fused_chunk_fwd_kernel"),
    "retention-torch": _in_torch(RETENTION),
    "retention-fla-chunk": _fla(RETENTION, "retention", "chunk_retention", r"chunk_fwd_kernel_[ho]"),
    "gdn-torch": _in_torch(GATED_DELTA),
    "gdn-fla-chunk": _fla(GATED_DELTA, "gated_delta_rule", "chunk_gated_delta_rule", r"chunk_gated_delta_rule_fwd"),
    # fla's kernel for decoding, which loops over positions.
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
    """Raise a short UnsupportedError in place of fla's error about a version of Triton that miscompiles a kernel."""
    try:
        yield
    except RuntimeError as error:
        if COMPILER_REFUSED not in str(error).lower():
            raise
        raise UnsupportedError(f"fla: {str(error).strip().splitlines()[0]}") from error
