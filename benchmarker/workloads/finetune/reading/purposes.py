"""What the kernels of a training step are for: by name as anywhere, but for what only training has.

The optimizer is told by its section, recomputing too; the loss by its kernels' names, as its softmax is no attention's.
Products and attention in float32 run without tensor cores and stand apart.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from benchmarker.profiling.categories import shares
from benchmarker.profiling.float32 import is_float32
from benchmarker.schema.profile import Profile
from benchmarker.workloads.training.record import RECOMPUTE

FLOAT32_PRODUCTS = "products in float32"
FLOAT32_ATTENTION = "attention in float32"
LOSS = "loss"
OPTIMIZER = "optimizer"
_LOSS = re.compile(r"(?i)cunn_SoftMax|log_?softmax|nll_?loss|cross_?entropy")
_OF_AUTOGRAD = re.compile(r"^autograd::|Backward\d*$|AccumulateGrad$|^torch::")
"""On a CPU: what runs around operators, on the host alone."""


def seconds_by_purpose(profile: Profile) -> dict[str, float]:
    """Time by purpose, longest names as in `profiling.categories`. On a device it is the time in which no earlier
    kernel still ran, where that was kept."""
    totals: dict[str, float] = defaultdict(float)
    for name, section, time_s in _pieces(profile):
        for purpose, share in purposes(name, section, on_device=profile.by == "device").items():
            totals[purpose] += share * time_s
    return dict(totals)


def purposes(name: str, section: str, *, on_device: bool) -> dict[str, float]:
    """What a kernel is for, in parts that add up to 1."""
    if section == "optimizer":
        return {OPTIMIZER: 1.0}
    if _LOSS.search(name):
        return {LOSS: 1.0}
    if not on_device and _OF_AUTOGRAD.search(name):
        return {"bookkeeping": 1.0}
    # Nothing is sampled: the embedding's gradient sorts the token ids.
    renamed = {"sampling": "other"}
    # On a CPU every product is the same kind of instruction.
    if on_device and is_float32(name):
        renamed |= {"matmul": FLOAT32_PRODUCTS, "attention": FLOAT32_ATTENTION}
    return {renamed.get(category, str(category)): share for category, share in shares(name).items()}


def section_share(profile: Profile, section: str) -> float:
    """Part of all kernel time that is in a section."""
    section_s = sum(time_s for _, name, time_s in _pieces(profile) if name == section)
    total_s = sum(time_s for *_, time_s in _pieces(profile))
    return section_s / total_s if total_s else 0.0


def recompute_share(profile: Profile) -> float:
    """Part of all kernel time that computes forward passes again."""
    return section_share(profile, RECOMPUTE)


def has_fused_attention(profile: Profile) -> bool:
    """Whether a kernel computes attention as a whole. A softmax alone stands between two separate products."""
    return any(
        shares(kernel.name).get("attention") and "softmax" not in kernel.name.lower() and not _LOSS.search(kernel.name)
        for kernel in profile.kernels
    )


def unpacking_calls(profile: Profile) -> int:
    """Launches that make plain weights of packed ones."""
    return sum(kernel.calls for kernel in profile.kernels if shares(kernel.name).get("dequantize"))


def _pieces(profile: Profile) -> Iterator[tuple[str, str, float]]:
    """Name, section and time of each kernel in each section; the rest of it without a section."""
    for kernel in profile.kernels:
        rest_s = kernel.total_s
        for section, time in kernel.sections.items():
            rest_s -= time.total_s
            yield kernel.name, section, time.total_s if time.alone_s is None else time.alone_s
        if rest_s > 1e-9:
            yield kernel.name, "", rest_s
