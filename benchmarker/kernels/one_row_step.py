"""A whole decode step of one sequence, from a token to the next, where every layer is five kernels.

Besides them it is one kernel that looks the token up, one for the last norm with the output layer, and two for the
likeliest token: in Qwen3-4B 184.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from benchmarker.kernels.gemv_ends import Ends
from benchmarker.kernels.likeliest_token import likeliest_token
from benchmarker.kernels.one_row_attention import Rotation
from benchmarker.kernels.one_row_layer import LayerCache, OneRowLayer, is_close, norm_ends, one_row_layer
from benchmarker.kernels.one_row_products import Product, product_of
from benchmarker.kernels.pdl import can_start_early

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
class OneRowStep:
    """A model's step."""

    embedding: nn.Embedding
    layers: tuple[OneRowLayer, ...]
    before_head: Ends
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
        logits = self.head(hidden, ends=self.before_head)
        return likeliest_token(logits), logits.view(1, 1, -1)

    def rotation(self, positions: int) -> Rotation:
        """The table for so many positions."""
        device = self.embedding.weight.device
        with torch.no_grad():
            angles = self.rotary(
                torch.zeros((), device=device, dtype=torch.float32), torch.arange(positions, device=device)[None]
            )
        cosines, sines = (part[0].float().contiguous() for part in angles)
        return Rotation(cosines, sines)


def one_row_step(model: PreTrainedModel, key_heads: int) -> OneRowStep | None:
    """The step of a model whose linears have this package's kernels; None for a model that it is not the step of.

    The model's parts are looked at, and then each layer and the whole model are run beside this form of them.
    """
    base: Any = model.base_model
    if not can_start_early(model.device):
        return None
    head: Any = model.get_output_embeddings()
    if not all(hasattr(base, name) for name in ("embed_tokens", "layers", "norm", "rotary_emb")) or head is None:
        return None
    is_fixed = getattr(base.rotary_emb, "rope_type", None) in FIXED_ROTATIONS
    if not is_fixed or type(base.embed_tokens) is not nn.Embedding or not hasattr(base.norm, "variance_epsilon"):
        return None
    forms = [one_row_layer(layer) for layer in base.layers]
    known = tuple(form for form in forms if form is not None)
    product = product_of([head])
    if product is None or not forms or len(known) < len(forms):
        return None
    step = OneRowStep(base.embed_tokens, known, norm_ends(base.norm), product, base.rotary_emb)
    rotation = step.rotation(16)
    if not all(is_close(layer, form, rotation, key_heads) for layer, form in zip(base.layers, known, strict=True)):
        return None
    return step if _is_the_models(model, step, key_heads) else None


def _is_the_models(model: PreTrainedModel, step: OneRowStep, key_heads: int) -> bool:
    """Whether the step's logits for one token are the model's."""
    embedding, head_dim = step.embedding.weight, len(step.layers[0].heads.query_gain)
    token = torch.full((1, 1), TRIED_TOKEN % len(embedding), dtype=torch.int64, device=embedding.device)
    cache = LayerCache(*(embedding.new_zeros(1, 1, key_heads, head_dim) for _ in range(2)))
    with torch.no_grad():
        expected = model(input_ids=token, use_cache=False).logits.flatten().float()
        lengths = torch.ones(1, dtype=torch.int32, device=embedding.device)
        _, logits = step(token, [cache] * len(step.layers), step.rotation(1), lengths)
    return bool((logits.flatten().float() - expected).norm() <= CLOSE * expected.norm())
