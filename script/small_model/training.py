"""Training of a few million parameters: Muon for the matrices inside the layers, AdamW for the rest.

Muon (Keller Jordan, 2024) makes each update of a matrix orthogonal. Every step contains each kind of text. A tenth of
the layers' outputs is dropped at random, because the text is read several times.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import Qwen3Config, Qwen3ForCausalLM

WINDOW = 512
"""Tokens of a window, in training and for perplexity."""


@dataclass(frozen=True)
class Plan:
    """Duration and step sizes of a training."""

    steps: int
    minutes: float
    """Time limit. The learning rate reaches zero at `steps` or at this limit, whichever comes first."""
    rows: tuple[tuple[str, int], ...]
    """Windows of each kind of text in a step."""
    dropout: float
    learning_rate: float
    decay: float
    """Final share of the training, in which the learning rate falls to zero."""
    warmup: float = 0.02
    """Initial share of the training, in which the learning rate rises."""
    weight_decay: float = 0.1
    report_every: int = 200


def new_model(vocabulary: int) -> Qwen3ForCausalLM:
    """Return a new model of 2.5 million parameters (4.99 MB in 16 bit).

    All dimensions of matrices are multiples of 128, as groups and kernels require.
    """
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=256,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        tie_word_embeddings=True,
        max_position_embeddings=2048,
        bos_token_id=0,
        eos_token_id=1,
        dtype="bfloat16",
    )
    return Qwen3ForCausalLM(config).float()


def train(
    model: Qwen3ForCausalLM,
    *,
    texts: Mapping[str, Tensor],
    validation: Tensor,
    plan: Plan,
    keep: Callable[[int, float], None],
) -> None:
    """Train in place.

    Args:
        texts: Token ids by the names in `plan.rows`, each [tokens].
        validation: Token ids, [tokens].
        keep: Called with the step and the validation loss in nats at every report.
    """
    device = next(model.parameters()).device
    matrices = [weight for weight in model.model.layers.parameters() if weight.ndim == 2]
    rest = [weight for weight in model.parameters() if all(weight is not matrix for matrix in matrices)]
    optimizers = [
        torch.optim.Muon(
            matrices, lr=plan.learning_rate, weight_decay=plan.weight_decay, adjust_lr_fn="match_rms_adamw"
        ),
        torch.optim.AdamW(rest, lr=plan.learning_rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    model.train()
    started = time.monotonic()
    _drop_in_training(model, plan.dropout)
    for step in range(plan.steps + 1):
        progress = max(step / plan.steps, (time.monotonic() - started) / (60 * plan.minutes))
        if step % plan.report_every == 0 or progress >= 1:
            keep(step, mean_loss(model, validation))
        if progress >= 1:
            return
        for group in (group for optimizer in optimizers for group in optimizer.param_groups):
            group["lr"] = plan.learning_rate * schedule(progress, plan)
        rows = torch.cat([_windows(texts[name], count) for name, count in plan.rows]).to(device)
        _loss(model, rows).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def schedule(progress: float, plan: Plan) -> float:
    """Return the factor of the learning rate: rising, constant, falling to zero."""
    return max(0.0, min(progress / plan.warmup + 1e-3, 1.0, (1 - progress) / plan.decay))


def _drop_in_training(model: Qwen3ForCausalLM, share: float) -> None:
    """Drop part of each layer's output in training mode."""
    for layer in model.model.layers:
        for linear in (layer.self_attn.o_proj, layer.mlp.down_proj):
            linear.register_forward_hook(lambda module, _, out: nn.functional.dropout(out, share, module.training))


@torch.no_grad()
def mean_loss(model: Qwen3ForCausalLM, tokens: Tensor, *, scored_from: int = 0) -> float:
    """Return nats per token over windows without overlap.

    Args:
        scored_from: First position in a window whose next token is scored; 256 as in `--quality full`.
    """
    was_training = model.training
    model.eval()
    rows = tokens[: len(tokens) // WINDOW * WINDOW].view(-1, WINDOW).to(next(model.parameters()).device)
    losses = [_loss(model, part, scored_from=scored_from).item() * len(part) for part in rows.split(16)]
    model.train(was_training)
    return math.fsum(losses) / len(rows)


def _loss(model: Qwen3ForCausalLM, rows: Tensor, *, scored_from: int = 0) -> Tensor:
    with torch.autocast(rows.device.type, torch.bfloat16):
        logits = model(rows[:, :-1]).logits
    return nn.functional.cross_entropy(
        logits[:, scored_from:].float().flatten(0, 1), rows[:, scored_from + 1 :].flatten()
    )


def _windows(tokens: Tensor, count: int) -> Tensor:
    starts = torch.randint(len(tokens) - WINDOW, (count, 1))
    return tokens[starts + torch.arange(WINDOW)]
