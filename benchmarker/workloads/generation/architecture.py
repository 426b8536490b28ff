"""Description of an architecture as data, and formulas for the least work of a prefill and of a decode step.

Bytes are those of the stored tensors that a step must read; shared storage counts once. Writes and copies by kernels
do not count: they lower the MBU.

    step bytes    = weights of every token + routed experts + one row of each embedding per sequence + KV cache + states
    decode FLOPs  = batch * (2 * weights of one token + sum over layers (score FLOPs * positions + state FLOPs))
    prefill FLOPs = batch * (S * (2 * weights of one token without the output layer + state FLOPs) + 2 * output layer
                             + sum over layers (score FLOPs * attended pairs))

`positions` is the number of positions in the cache before the step, at most W - 1 for a sliding window of W positions.
If the last layers of a model only read the KV cache of earlier layers, they compute only the prompt's last position.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from benchmarker.schema.record import Limits
from benchmarker.workloads.generation.record import GenerationDemand

MixerKind = Literal[
    "full attention", "sliding window", "MLA", "linear attention", "state space", "short convolution", "none"
]
FeedForwardKind = Literal["dense", "MoE", "none"]

_MODEL_TYPES: dict[tuple[MixerKind | FeedForwardKind, ...], str] = {
    ("state space", "full attention", "dense"): "bamba falcon_h1",
    ("full attention", "dense"): (
        "cohere ernie4_5 gemma glm4 gpt2 gpt_neox granite hunyuan_v1_dense llama olmo2 opt phi seed_oss"
    ),
    ("sliding window", "full attention", "dense"): (
        "cohere2 exaone4 gemma2 gemma3_text ministral ministral3 mistral olmo3 phi3 qwen2 qwen3 smollm3 starcoder2"
    ),
    ("MLA", "dense", "MoE"): "deepseek_v2 deepseek_v3 glm4_moe_lite",
    ("sliding window", "full attention", "dense", "MoE"): "gemma4_text qwen2_moe qwen3_moe",
    ("full attention", "dense", "MoE"): "glm4_moe",
    ("sliding window", "full attention", "MoE"): "gpt_oss mixtral phimoe",
    ("state space", "full attention", "dense", "MoE"): "granitemoehybrid",
    ("short convolution", "full attention", "dense"): "lfm2",
    ("full attention", "MoE"): "minimax_m2",
    ("state space", "full attention", "none", "dense", "MoE"): "nemotron_h",
    ("linear attention", "full attention", "MoE"): "qwen3_5_moe_text",
    ("linear attention", "full attention", "dense"): "qwen3_5_text",
    ("linear attention", "full attention", "dense", "MoE"): "qwen3_next",
}
DESCRIBED = {model_type: kinds for kinds, types in _MODEL_TYPES.items() for model_type in types.split()}
"""Kinds of layers by `model_type` (for a multimodal model, that of its text model). Tests compare the formulas' bytes
with the bytes that a decode step touches."""

MBU_LIMIT = 1.02  # Largest possible MBU. A larger MBU means a wrong count of bytes or a wrong bandwidth.


@dataclass(frozen=True)
class Layer:
    """One decoder layer. All sizes are per sequence and GPU."""

    mixers: tuple[MixerKind, ...]  # One kind; two if attention and a state-space model run in parallel.
    feed_forward: FeedForwardKind
    weights: int = 0  # Number of weights used per token, without routed experts.
    kv_values: int = 0
    """Number of values per position in the layer's KV cache; 0 if it has none or reads the cache of another layer."""
    window: int | None = None
    score_flops: int = 0  # FLOPs of attention per (query token, position).
    position_flops: int = 0
    """FLOPs per cached position in each step for MLA, because the library expands the latent of all positions."""
    state_bytes: int = 0
    state_flops: int = 0  # FLOPs per token to update and read the recurrent state.
    shares_kv: bool = False


@dataclass(frozen=True)
class Experts:
    """Routed experts of all MoE layers together."""

    count: int
    per_token: int
    bytes_each: int  # Bytes of one expert per MoE layer, summed over all MoE layers.
    weights_each: int  # Number of weights of one expert per MoE layer, summed over all MoE layers.


@dataclass(frozen=True)
class Architecture:
    """Architecture of a loaded model, with the sizes of its stored tensors.

    Attributes:
        read_bytes: Bytes of the weights that every step reads.
        row_bytes: Bytes of one row of each embedding: input, positions, and per-layer embeddings.
        other_weights: Number of weights used per token outside the decoder layers and the output layer.
        head: Number of weights of the output layer.
        value_bytes: Bytes of one value in the KV cache.
    """

    model_type: str
    layers: tuple[Layer, ...]
    read_bytes: int
    row_bytes: int
    other_weights: int
    head: int
    parameters: int
    active_parameters: int  # Parameters used per token: without unused experts and per-layer embeddings.
    value_bytes: float
    experts: Experts | None = None

    @property
    def kv_bytes_per_token(self) -> int:
        return sum(round(layer.kv_values * self.value_bytes) for layer in self.layers)

    @property
    def state_bytes(self) -> int:
        """Bytes of the recurrent states of one sequence, which do not grow with the context."""
        return sum(layer.state_bytes for layer in self.layers)

    def cache_bytes(self, positions: int, batch_size: int) -> int:
        """Return the bytes of KV cache and recurrent states of `batch_size` sequences with `positions` each."""
        held = [layer.kv_values * min(positions, layer.window or positions) for layer in self.layers]
        return batch_size * (round(sum(held) * self.value_bytes) + self.state_bytes)

    def demand(
        self, *, prompt_tokens: int, new_tokens: int, batch_size: int, depth: int, used_experts: float | None = None
    ) -> GenerationDemand:
        """Return the bytes and FLOPs of one cell.

        The prefill makes the first new token, so N new tokens take N - 1 decode steps. The first step has the prompt in
        the cache; each later step has one position more.

        Args:
            used_experts: Mean number of experts that a step reads per MoE layer. Default: the experts of one token.
        """
        steps, start = new_tokens - 1, depth + prompt_tokens
        counted_steps = max(1, steps)
        cached_bytes = float(batch_size * self.state_bytes)
        routed = self.experts.per_token * self.experts.weights_each if self.experts else 0
        outside_layers = self.other_weights + routed
        decode_flops: float = 2 * (outside_layers + sum(layer.weights for layer in self.layers) + self.head)
        prefill_flops: float = 2 * (prompt_tokens * outside_layers + self.head)
        last_writer = max((number for number, layer in enumerate(self.layers) if not layer.shares_kv), default=-1)
        for number, layer in enumerate(self.layers):
            held = _positions(start, counted_steps, layer.window and layer.window - 1) / counted_steps
            cached_bytes += batch_size * round(layer.kv_values * self.value_bytes) * held
            decode_flops += layer.state_flops + (layer.score_flops + layer.position_flops) * held
            tokens = prompt_tokens if number <= last_writer else 1
            prefill_flops += tokens * (2 * layer.weights + layer.state_flops) + layer.position_flops * depth
            prefill_flops += layer.score_flops * _positions(start + 1 - tokens, tokens, layer.window)
        weight_bytes, kv_bytes = self.read_bytes + batch_size * self.row_bytes, round(cached_bytes)
        if self.experts:
            used_experts = used_experts or self.experts.per_token
            weight_bytes += round(used_experts * self.experts.bytes_each)
        step_flops, all_prefill_flops = round(batch_size * decode_flops), round(batch_size * prefill_flops)
        return GenerationDemand(
            flops=all_prefill_flops + steps * step_flops,
            # The prefill reads the weights once; its reads and writes of activations depend on the kernels.
            bytes=weight_bytes + steps * (weight_bytes + kv_bytes),
            weight_bytes=weight_bytes,
            kv_bytes_per_token=self.kv_bytes_per_token,
            state_bytes=self.state_bytes or None,
            context_tokens=start + (counted_steps - 1) / 2,
            kv_bytes=kv_bytes,
            decode_flops=step_flops,
            prefill_flops=all_prefill_flops,
            experts_per_step=used_experts if self.experts else None,
            experts=self.experts.count if self.experts else None,
        )


def _positions(first: int, count: int, limit: int | None) -> int:
    """Return the sum of min(p, limit) over the `count` integers p from `first`."""
    below = count if limit is None else min(count, max(0, limit - first))
    return below * first + below * (below - 1) // 2 + (count - below) * (limit or 0)


def floor_s(demand: GenerationDemand, limits: Limits) -> float:
    """Return the least seconds of one decode step: max(bytes / bandwidth, FLOPs / matmul rate)."""
    return max(demand.step_bytes / limits.bytes_per_s, demand.decode_flops / limits.matmul_flops_per_s)


def mbu(demand: GenerationDemand, limits: Limits, *, tpot_s: float) -> float:
    """Return the memory-bandwidth utilization of decoding: required bytes / (TPOT * measured bandwidth)."""
    return demand.step_bytes / (tpot_s * limits.bytes_per_s)


def prefill_mfu(demand: GenerationDemand, limits: Limits, *, ttft_s: float) -> float:
    """Return the matmul utilization of the prefill: required FLOPs / (TTFT * measured matmul rate)."""
    return demand.prefill_flops / (ttft_s * limits.matmul_flops_per_s)
