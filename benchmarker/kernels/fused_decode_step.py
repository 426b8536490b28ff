"""Decode step of one sequence, from token to token, with fused decode layers.

The step has five kernels per layer, one for the embedding, one for the last norm and the output layer, and two for the
argmax: 184 kernels in Qwen3-4B. The engine adds four kernels of torch for positions and tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from benchmarker.kernels.fused_decode_attention import Rotation
from benchmarker.kernels.fused_decode_layer import (
    TRIAL_POSITION,
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
from benchmarker.kernels.launch_support import supports_pdl
from benchmarker.kernels.scaled_linear import unquantized_activations

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CLOSE = 0.1
"""Largest relative difference of the logits for one token that passes. Rounding in dozens of layers causes less; an
unknown factor in the model causes more."""
FIXED_ROTATIONS = ("default", "linear", "llama3", "yarn")
"""Kinds of rotary embedding whose angles depend only on the position."""
TRIAL_TOKEN = 100  # Id of the token in the trial run.


@dataclass(frozen=True)
class FusedDecodeStep:
    embedding: nn.Embedding
    layers: tuple[FusedDecodeLayer, ...]
    head_fusion: GemvFusion
    head: Product
    rotary: nn.Module  # The model's rotary embedding; `rotation` tabulates its cosines and sines.

    def __call__(
        self, token: Tensor, caches: Sequence[LayerCache], rotation: Rotation, lengths: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the next token, [1, 1], and the logits, [1, 1, vocabulary]. `lengths`: number of filled positions, the
        token's position included, [1]."""
        hidden = self.embedding(token).flatten()
        for layer, cache in zip(self.layers, caches, strict=True):
            hidden = layer(hidden, cache, rotation, lengths)
        logits = self.head(hidden, fusion=self.head_fusion)
        return greedy_token(logits), logits.view(1, 1, -1)

    def rotation(self, positions: int) -> Rotation:
        device = self.embedding.weight.device
        with torch.no_grad():
            angles = self.rotary(
                torch.zeros((), device=device, dtype=torch.float32), torch.arange(positions, device=device)[None]
            )
        cosines, sines = (part[0].float().contiguous() for part in angles)
        return Rotation(cosines, sines)


def fused_decode_step(model: PreTrainedModel, key_heads: int) -> FusedDecodeStep | None:
    """Return the fused step of a model after `replace_linears`; None if the model is not supported.

    Each fused layer and the fused step are compared with one run of the model. The model is not changed.
    """
    base: Any = model.base_model
    if not supports_pdl(model.device) or not _has_known_ends(base):
        return None
    with unquantized_activations(model):
        step = _step(model, key_heads, quantized=False)
        is_right = step is not None and _computes(model, step, key_heads)
    return _step(model, key_heads) if is_right else None


def _step(model: PreTrainedModel, key_heads: int, *, quantized: bool = True) -> FusedDecodeStep | None:
    base: Any = model.base_model
    output_layer: Any = model.get_output_embeddings()
    head = product_of([output_layer], quantized=quantized) if output_layer is not None else None
    layers = _layers(base, key_heads, quantized=quantized) if head else ()
    if head is None or not layers:
        return None
    return FusedDecodeStep(base.embed_tokens, layers, norm_fusion(base.norm), head, base.rotary_emb)


def _computes(model: PreTrainedModel, step: FusedDecodeStep, key_heads: int) -> bool:
    """Return True if each fused layer and the step reproduce the outputs of the model."""
    base: Any = model.base_model
    rotation = step.rotation(2 * TRIAL_POSITION)
    if rotation.cosines.shape[1] != step.layers[0].heads.head_dim:
        # Partial rotary embedding is not supported.
        return False
    forms = zip(base.layers, step.layers, strict=True)
    return all(is_close(layer, form, rotation, key_heads) for layer, form in forms) and _is_the_models(
        model, step, key_heads
    )


def _has_known_ends(base: Any) -> bool:
    if not all(hasattr(base, name) for name in ("embed_tokens", "layers", "norm", "rotary_emb")):
        return False
    is_fixed = getattr(base.rotary_emb, "rope_type", None) in FIXED_ROTATIONS
    return is_fixed and type(base.embed_tokens) is nn.Embedding and is_rms_norm(base.norm)


def _layers(base: Any, key_heads: int, *, quantized: bool) -> tuple[FusedDecodeLayer, ...]:
    embedding, forms = base.embed_tokens.weight, []
    for layer in base.layers:
        form = fused_decode_layer(layer, key_heads, quantized=quantized)
        if (
            form is None
            or (gain := layer.input_layernorm.weight).dtype != embedding.dtype
            or gain.device != embedding.device
        ):
            return ()
        forms.append(form)
    return tuple(forms) if len({form.heads.head_dim for form in forms}) == 1 else ()


def _is_the_models(model: PreTrainedModel, step: FusedDecodeStep, key_heads: int) -> bool:
    """Return True if the step reproduces the model's logits, and no soft cap follows the output layer."""
    embedding, head_dim = step.embedding.weight, step.layers[0].heads.head_dim
    token = torch.full((1, 1), TRIAL_TOKEN % len(embedding), dtype=torch.int64, device=embedding.device)
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
