"""Implementations of mixers by name: the mixer, then the source.

flash-linear-attention (fla 0.6.0) has kernels in Triton, with functions that take [batch, length, heads, width]. It
imports on any machine with triton and runs only on a GPU. It may hand a call to another library's kernel, so the kernel
that ran is checked by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from benchmarker.core.errors import SpecError, UnsupportedError, did_you_mean, install_hint
from benchmarker.workloads.attention.attention_variants import VARIANTS as ATTENTION_VARIANTS
from benchmarker.workloads.mixers.chunked import open_chunked
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
    from torch import Tensor

COMPILER_REFUSED = "upgrade triton"
"""Part of fla's message for a Triton that miscompiles a kernel: 3.4.0 to 3.7.0 miscompile the backward pass
of the delta rule on Hopper (fla-org/flash-linear-attention, issue 640)."""


def _fla(
    mixer: Mixer, module: str, name: str, kernel: str, *, normalizes: bool = False, has_backward: bool = True
) -> MixerImplementation:
    """Return the entry of one function of `fla.ops`, given the pattern of the name of one of its kernels."""

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
    """Return an implementation of the workload attention as a mixer."""
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
    return MixerImplementation(
        mixer=mixer,
        source="torch, chunked",
        open=open_chunked(mixer),
        kernels=ANY_KERNEL,
        normalizes=True,
    )


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
    """Return the entry of a name. Raises SpecError."""
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
