"""The whole sequence on one rank: what the others are held against."""

from __future__ import annotations

from benchmarker.workloads.attention.variants.base import Attention
from benchmarker.workloads.attention.variants.sdpa import Backend, open_sdpa
from benchmarker.workloads.context_parallel.spec import KernelName
from benchmarker.workloads.context_parallel.variants.base import Plan

BACKENDS: dict[KernelName, Backend] = {"flash": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION"}
"""The kernel as torch's scaled_dot_product_attention calls it."""


def open_single(plan: Plan) -> Attention:
    """torch's scaled_dot_product_attention with the plan's kernel."""
    return open_sdpa(BACKENDS[plan.kernel])(plan.shape, plan.place.device)
