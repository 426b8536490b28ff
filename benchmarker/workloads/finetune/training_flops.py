"""FLOPs of a training step.

    linear    = tokens * (4 * frozen + 6 * trained)
    attention = 3.5 * 4 * batch * heads * head_dim * layers * S (S + 1) / 2
    recompute = tokens * 2 * checkpointed + attention / 3.5             with gradient checkpointing

A frozen weight costs 2 FLOPs per token forward and 2 for the gradient of its input; a trained weight 2 more for its own
gradient. The common "6 N per token" counts gradients that LoRA does not compute, and is 1.5 times too much. Backward
through attention is 2.5 times forward (Dao, arXiv 2307.08691, section 4). linear + attention are model FLOPs, those of
MFU; with recompute they are hardware FLOPs, those of HFU (Chowdhery et al., "PaLM", arXiv 2204.02311, appendix B). The
embedding is a look-up; norms and elementwise work do not count.
"""

from __future__ import annotations

from typing import NamedTuple

from benchmarker.workloads.finetune.record import FinetuneDemand, FinetuneFacts
from benchmarker.workloads.finetune.spec import FinetunePoint

FROZEN_FLOPS = 4
TRAINED_FLOPS = 6
FORWARD_FLOPS = 2
ATTENTION_FLOPS = 3.5


class ModelAttention(NamedTuple):
    layers: int
    heads: int
    head_dim: int


def demand_of(facts: FinetuneFacts, attention: ModelAttention, point: FinetunePoint) -> FinetuneDemand:
    tokens = point.batch_size * point.seq_len * point.accumulate
    linear = tokens * (FROZEN_FLOPS * facts.frozen_linear_weights + TRAINED_FLOPS * facts.trained_linear_weights)
    pairs = point.seq_len * (point.seq_len + 1) // 2
    sequences = point.batch_size * point.accumulate
    forward = 4 * sequences * attention.heads * attention.head_dim * attention.layers * pairs
    checkpointed = facts.checkpointed_linear_weights
    return FinetuneDemand(
        flops=linear + round(ATTENTION_FLOPS * forward),
        linear_flops=linear,
        recompute_flops=tokens * FORWARD_FLOPS * checkpointed + forward if checkpointed else 0,
        tokens=tokens,
    )
