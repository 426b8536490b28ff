"""The limits of the hardware: what a token costs at least, and how near a runtime came to that.

Decoding one token reads every weight once and the whole KV cache of each sequence once. Nothing that keeps the weights
in memory can be faster than reading them, so the bytes of a step over the device's bandwidth are its floor. With many
sequences at once the arithmetic takes over: the floor is whichever takes longer. A prefill is arithmetic throughout.

    floor_s = max(step bytes / bandwidth, step FLOPs / matmul rate)
    MBU     = step bytes / (TPOT * bandwidth)          model bandwidth utilization

Bandwidth and matmul rate are measured in the very process that measures the model, not taken from a data sheet: a
board that is shared, capped or hot has other ones. MBU above 1 is impossible unless the weights stay in a cache; more
than 2 % above is an error in our counting, and is said to be one.

MBU: Databricks, "LLM inference performance engineering: best practices" (2023). FLOPs: Chowdhery et al., "PaLM"
(arXiv 2204.02311), appendix B, forward part alone.
"""

from __future__ import annotations

from benchmarker.schema.record import Limits
from benchmarker.workloads.generation.record import GenerationDemand

MBU_LIMIT = 1.02
"""Above it the bytes are counted wrong, or the bandwidth was measured wrong."""


def floor_s(demand: GenerationDemand, limits: Limits) -> float:
    """The least time that one decode step can take."""
    return max(demand.step_bytes / limits.bytes_per_s, demand.decode_flops / limits.matmul_flops_per_s)


def mbu(demand: GenerationDemand, limits: Limits, *, tpot_s: float) -> float:
    """Share of the memory's bandwidth that decoding used for what it had to read."""
    return demand.step_bytes / (tpot_s * limits.bytes_per_s)


def prefill_mfu(demand: GenerationDemand, limits: Limits, *, ttft_s: float) -> float:
    """Share of the matmul rate that the prefill used for what it had to compute."""
    return demand.prefill_flops / (ttft_s * limits.matmul_flops_per_s)
