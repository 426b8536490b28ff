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

from benchmarker.schema.base import Count, Number, Plain, Positive, Rate, Whole

MBU_LIMIT = 1.02
"""Above it the bytes are counted wrong, or the bandwidth was measured wrong."""


class Limits(Plain):
    """What the device does at best, measured in this process before it loaded a model."""

    read_bytes_per_s: Rate
    """Summing an array."""
    copy_bytes_per_s: Rate
    """Copying one half of the array over the other: bytes read plus bytes written."""
    array_bytes: Whole
    """Size of that array: several times the cache, on a GPU 2 GiB."""
    matmul_flops_per_s: Rate
    """Of square matrices in the model's type, 2 * n^3 operations each."""
    matmul_dtype: str
    matmul_size: Whole
    """n."""
    cache_bytes: Whole | None = None
    """The device's last cache before its memory. None where nothing says."""
    launch_s: Number | None = None
    """Host time to launch one empty kernel, many back to back, outside torch's operators. None on CPU."""
    operator_s: Number | None = None
    """The same for torch's smallest operator, with Python and the dispatcher. None on CPU."""
    graph_kernel_s: Number | None = None
    """Time of one empty kernel inside a replayed graph: what is left of a launch there. None on CPU."""

    @property
    def bytes_per_s(self) -> float:
        """The bandwidth: the higher of the two, as decoding reads much more than it writes."""
        return max(self.read_bytes_per_s, self.copy_bytes_per_s)


class Demand(Plain):
    """What the work of one cell cannot do without, counted from the loaded tensors."""

    weight_bytes: Positive
    """Read by every decode step: weights with their scales, the output layer, norms, one row of the embedding a
    sequence. Shared storage counts once."""
    kv_bytes_per_token: Whole
    """KV cache of one position of one sequence."""
    context_tokens: Number
    """Positions in the cache before a step, mean over the decode steps."""
    kv_bytes: Count
    """KV cache read by a mean decode step, all sequences together."""
    decode_flops: Count
    """Of a mean decode step, all sequences together."""
    prefill_flops: Positive
    """Of the prompt, with logits for its last position alone."""

    @property
    def step_bytes(self) -> int:
        """All that a decode step reads; it makes one token of each sequence."""
        return self.weight_bytes + self.kv_bytes


def floor_s(demand: Demand, limits: Limits) -> float:
    """The least time that one decode step can take."""
    return max(demand.step_bytes / limits.bytes_per_s, demand.decode_flops / limits.matmul_flops_per_s)


def mbu(demand: Demand, limits: Limits, *, tpot_s: float) -> float:
    """Share of the memory's bandwidth that decoding used for what it had to read."""
    return demand.step_bytes / (tpot_s * limits.bytes_per_s)


def prefill_mfu(demand: Demand, limits: Limits, *, ttft_s: float) -> float:
    """Share of the matmul rate that the prefill used for what it had to compute."""
    return demand.prefill_flops / (ttft_s * limits.matmul_flops_per_s)
