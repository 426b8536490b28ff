"""A whole decode step of one sequence, from a token to the next, where every layer is five kernels.

Besides them it is one kernel that looks the token up, one for the last norm with the output layer, and two for the
likeliest token: in Qwen3-4B 184. The engine adds four of torch's, which count the positions and keep the token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from benchmarker.kernels.fused_decode_attention import Rotation
from benchmarker.kernels.fused_decode_layer import (
    TRIED_POSITION,
    FusedDecodeLayer,
    LayerCache,
    Product,
    fused_decode_layer,
    is_close,
    is_rms_norm,
    norm_fusion,
    product_of,
)
from benchmarker.kernels.gemv_fusion import GemvFusion
from benchmarker.kernels.greedy_token import greedy_token
from benchmarker.kernels.launch_support import can_start_early

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CLOSE = 0.1
"""Largest relative difference of the logits for a single token to the model's own. Both round in each of dozens of
layers; a factor that this form does not know makes more."""
FIXED_ROTATIONS = ("default", "linear", "llama3", "yarn")
"""Kinds of rotary embedding that depend on the position alone."""
TRIED_TOKEN = 100
"""The token whose logits are compared."""


@dataclass(frozen=True)
class FusedDecodeStep:
    """A model's step."""

    embedding: nn.Embedding
    layers: tuple[FusedDecodeLayer, ...]
    head_fusion: GemvFusion
    head: Product
    rotary: nn.Module
    """The model's own, of which `rotation` makes a table."""

    def __call__(
        self, token: Tensor, caches: Sequence[LayerCache], rotation: Rotation, lengths: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The next token, [1, 1], and the logits, [1, 1, vocabulary].

        Args:
            token: [1, 1].
            caches: Each layer's.
            lengths: Filled positions with the token's, [1], int32.
        """
        hidden = self.embedding(token).flatten()
        for layer, cache in zip(self.layers, caches, strict=True):
            hidden = layer(hidden, cache, rotation, lengths)
        logits = self.head(hidden, ends=self.head_fusion)
        return greedy_token(logits), logits.view(1, 1, -1)

    def rotation(self, positions: int) -> Rotation:
        """The table for so many positions."""
        device = self.embedding.weight.device
        with torch.no_grad():
            angles = self.rotary(
                torch.zeros((), device=device, dtype=torch.float32), torch.arange(positions, device=device)[None]
            )
        cosines, sines = (part[0].float().contiguous() for part in angles)
        return Rotation(cosines, sines)


def fused_decode_step(model: PreTrainedModel, key_heads: int) -> FusedDecodeStep | None:
    """The step of a model whose linears have this package's kernels; None for a model that it is not the step of.

    The model's parts are looked at, and then each layer and the whole model are run beside this form of them, which
    changes nothing of the model.
    """
    base: Any = model.base_model
    if not can_start_early(model.device) or not _has_known_ends(base):
        return None
    output_layer: Any = model.get_output_embeddings()
    head = product_of([output_layer]) if output_layer is not None else None
    layers = _layers(base, key_heads) if head else ()
    if head is None or not layers:
        return None
    step = FusedDecodeStep(base.embed_tokens, layers, norm_fusion(base.norm), head, base.rotary_emb)
    rotation = step.rotation(2 * TRIED_POSITION)
    if rotation.cosines.shape[1] != len(layers[0].heads.query_gain):
        # Rotates a part of each head.
        return None
    if not all(is_close(layer, form, rotation, key_heads) for layer, form in zip(base.layers, layers, strict=True)):
        return None
    return step if _is_the_models(model, step, key_heads) else None


def _has_known_ends(base: Any) -> bool:
    """Whether what stands before a model's layers and behind them is of the kinds that are written here."""
    if not all(hasattr(base, name) for name in ("embed_tokens", "layers", "norm", "rotary_emb")):
        return False
    is_fixed = getattr(base.rotary_emb, "rope_type", None) in FIXED_ROTATIONS
    return is_fixed and type(base.embed_tokens) is nn.Embedding and is_rms_norm(base.norm)


def _layers(base: Any, key_heads: int) -> tuple[FusedDecodeLayer, ...]:
    """The model's layers, all in the type and on the device of its embedding; empty if one is of another kind."""
    embedding, forms = base.embed_tokens.weight, []
    for layer in base.layers:
        form = fused_decode_layer(layer, key_heads)
        if form is None or (gain := form.heads.query_gain).dtype != embedding.dtype or gain.device != embedding.device:
            return ()
        forms.append(form)
    return tuple(forms) if len({len(form.heads.query_gain) for form in forms}) == 1 else ()


def _is_the_models(model: PreTrainedModel, step: FusedDecodeStep, key_heads: int) -> bool:
    """Whether the step's logits for one token are the model's, and those are what its output layer makes: a soft cap
    hardly shows in small logits."""
    embedding, head_dim = step.embedding.weight, len(step.layers[0].heads.query_gain)
    token = torch.full((1, 1), TRIED_TOKEN % len(embedding), dtype=torch.int64, device=embedding.device)
    cache = LayerCache(*(embedding.new_zeros(1, 1, key_heads, head_dim) for _ in range(2)))
    lengths = torch.ones(1, dtype=torch.int32, device=embedding.device)
    outputs: list[Tensor] = []
    head: Any = model.get_output_embeddings()
    hook = head.register_forward_hook(lambda _, __, output: outputs.append(output.flatten().float()))
    with torch.no_grad():
        try:
            expected = model(input_ids=token, use_cache=False).logits.flatten().float()
        finally:
            hook.remove()
        if not outputs or not torch.equal(outputs[-1], expected):
            return False
        _, logits = step(token, [cache] * len(step.layers), step.rotation(1), lengths)
    return bool((logits.flatten().float() - expected).norm() <= CLOSE * expected.norm())
