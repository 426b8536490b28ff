"""Purposes of the kernels of a training step: the categories of kernel names, and those of training.

The optimizer and recomputation are known by their section of the profile; the loss by its kernels' names, since its
softmax is not attention's. float32 products and float32 attention, which run without tensor cores, are separate.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from benchmarker.profiling.categories import is_float32, shares
from benchmarker.schema.profile import Profile
from benchmarker.workloads.training.record import RECOMPUTE

FLOAT32_PRODUCTS = "products in float32"
FLOAT32_ATTENTION = "attention in float32"
LOSS = "loss"
OPTIMIZER = "optimizer"
_LOSS = re.compile(r"(?i)cunn_SoftMax|log_?softmax|nll_?loss|cross_?entropy")
_AUTOGRAD = re.compile(r"^autograd::|Backward\d*$|AccumulateGrad$|^torch::")
"""Bookkeeping around operators, in a CPU's profile."""


def seconds_by_purpose(profile: Profile) -> dict[str, float]:
    """Return the time of each purpose. On a device it is the time in which no earlier kernel still ran, if known."""
    totals: dict[str, float] = defaultdict(float)
    for name, section, time_s in _kernel_sections(profile):
        for purpose, share in purposes(name, section, on_device=profile.by == "device").items():
            totals[purpose] += share * time_s
    return dict(totals)


def purposes(name: str, section: str, *, on_device: bool) -> dict[str, float]:
    """Return the purposes of a kernel, with shares that add up to 1."""
    if section == "optimizer":
        return {OPTIMIZER: 1.0}
    if _LOSS.search(name):
        return {LOSS: 1.0}
    if not on_device and _AUTOGRAD.search(name):
        return {"bookkeeping": 1.0}
    # The embedding's gradient sorts token ids like sampling, which a training step does not have.
    renamed = {"sampling": "other"}
    # On a CPU, float32 products use the same instructions as others.
    if on_device and is_float32(name):
        renamed |= {"matmul": FLOAT32_PRODUCTS, "attention": FLOAT32_ATTENTION}
    return {renamed.get(category, str(category)): share for category, share in shares(name).items()}


def recompute_share(profile: Profile) -> float:
    """Return the share of all kernel time that repeats forward passes."""
    total_s = sum(time_s for *_, time_s in _kernel_sections(profile))
    recompute_s = sum(time_s for _, section, time_s in _kernel_sections(profile) if section == RECOMPUTE)
    return recompute_s / total_s if total_s else 0.0


def has_fused_attention(profile: Profile) -> bool:
    """Return whether a kernel computes all of attention. A softmax kernel alone belongs to separate products."""
    return any(
        shares(kernel.name).get("attention") and "softmax" not in kernel.name.lower() and not _LOSS.search(kernel.name)
        for kernel in profile.kernels
    )


def unpacking_calls(profile: Profile) -> int:
    """Return the launches of kernels that dequantize weights."""
    return sum(kernel.calls for kernel in profile.kernels if shares(kernel.name).get("dequantize"))


def _kernel_sections(profile: Profile) -> Iterator[tuple[str, str, float]]:
    """Yield name, section and seconds of each kernel in each section; section '' for the time outside of sections."""
    for kernel in profile.kernels:
        rest_s = kernel.total_s
        for section, time in kernel.sections.items():
            rest_s -= time.total_s
            yield kernel.name, section, time.total_s if time.alone_s is None else time.alone_s
        if rest_s > 1e-9:
            yield kernel.name, "", rest_s
