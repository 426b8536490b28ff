"""The implementations by name: the mixer, then where it is from. A new one is a line here.

Kernel names of fla as its release 0.6.0 has them.
"""

from __future__ import annotations

from importlib.util import find_spec

from benchmarker.core.errors import SpecError, did_you_mean
from benchmarker.workloads.attention.variants.base import Kind
from benchmarker.workloads.mixers.variants.base import GATED_DELTA, LINEAR, RETENTION, Implementation, Mixer
from benchmarker.workloads.mixers.variants.chunked import open_chunked
from benchmarker.workloads.mixers.variants.fla import fla
from benchmarker.workloads.mixers.variants.softmax import softmax

_ANYWHERE: dict[Kind, str] = {"cuda": "", "rocm": "", "cpu": ""}


def _in_torch(mixer: Mixer) -> Implementation:
    return Implementation(
        mixer=mixer,
        source="torch, chunked",
        summary="chunks of 64 positions in torch's operators, products in float32: a reference, not a fast kernel",
        open=open_chunked(mixer),
        kernels=_ANYWHERE,
        normalizes=True,
    )


VARIANTS: dict[str, Implementation] = {
    "softmax-naive": softmax("naive", writes_scores=True, wide_values=True),
    "softmax-sdpa": softmax("auto"),
    "softmax-flash": softmax("flash"),
    "softmax-cudnn": softmax("cudnn"),
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
        GATED_DELTA,
        "fla.ops.gated_delta_rule:chunk_gated_delta_rule",
        r"chunk_gated_delta_rule_fwd",
        "fla's chunks",
    ),
    "gdn-fla-recurrent": fla(
        GATED_DELTA,
        "fla.ops.gated_delta_rule:fused_recurrent_gated_delta_rule",
        r"fused_recurrent_gated_delta_rule",
        "fla's loop over positions, for decoding: forward alone",
        has_backward=False,
    ),
}


def implementation_of(name: str) -> Implementation:
    """The entry of a name.

    Raises:
        SpecError: There is none.
    """
    if name not in VARIANTS:
        raise SpecError(f"no mixer '{name}'{did_you_mean(name, VARIANTS)}")
    return VARIANTS[name]


def missing_module(implementation: Implementation) -> str | None:
    """The first module that it needs and that is not installed. Packages are not imported for that."""
    return next((module for module in implementation.modules if not _is_installed(module.split(".")[0])), None)


def _is_installed(package: str) -> bool:
    return find_spec(package) is not None
