"""Implementations of mixers by name: the mixer, then the source. Kernel names are those of fla 0.6.0."""

from __future__ import annotations

from benchmarker.core.errors import SpecError, did_you_mean
from benchmarker.workloads.attention.variants.registry import VARIANTS as ATTENTION_VARIANTS
from benchmarker.workloads.mixers.mixer import GATED_DELTA, LINEAR, RETENTION, SOFTMAX, Mixer, MixerImplementation
from benchmarker.workloads.mixers.mixer_flops import softmax_shape
from benchmarker.workloads.mixers.variants.chunked import open_chunked
from benchmarker.workloads.mixers.variants.fla import fla
from benchmarker.workloads.operation.implementation import ANY_KERNEL


def _softmax(name: str, *, writes_scores: bool = False, wide_values: bool = False) -> MixerImplementation:
    """Return an implementation of the workload attention as a mixer."""
    attention = ATTENTION_VARIANTS[name]
    return MixerImplementation(
        mixer=SOFTMAX,
        source=f"torch, {name}",
        summary=attention.summary,
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
        summary="chunks of 64 positions in torch's operators, products in float32: a reference, not a fast kernel",
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
    "linear-fla-chunk": fla(
        LINEAR, "fla.ops.linear_attn:chunk_linear_attn", r"chunk_fwd_kernel_[ho]", "fla's chunks", normalizes=True
    ),
    "linear-fla-fused": fla(
        LINEAR,
        "fla.ops.linear_attn:fused_chunk_linear_attn",
        r"fused_chunk_fwd_kernel",
        "fla's chunks in one kernel",
        normalizes=True,
    ),
    "retention-torch": _in_torch(RETENTION),
    "retention-fla-chunk": fla(
        RETENTION, "fla.ops.retention:chunk_retention", r"chunk_fwd_kernel_[ho]", "fla's chunks"
    ),
    "gdn-torch": _in_torch(GATED_DELTA),
    "gdn-fla-chunk": fla(
        GATED_DELTA, "fla.ops.gated_delta_rule:chunk_gated_delta_rule", r"chunk_gated_delta_rule_fwd", "fla's chunks"
    ),
    "gdn-fla-recurrent": fla(
        GATED_DELTA,
        "fla.ops.gated_delta_rule:fused_recurrent_gated_delta_rule",
        r"fused_recurrent_gated_delta_rule",
        "fla's loop over positions, for decoding: forward only",
        has_backward=False,
    ),
}


def implementation_of(name: str) -> MixerImplementation:
    """Return the entry of a name. Raises SpecError."""
    if name not in VARIANTS:
        raise SpecError(f"no mixer '{name}'{did_you_mean(name, VARIANTS)}")
    return VARIANTS[name]
