"""Generation as two plain functions over a static KV cache: prefill once, then the same decode step again and again.

A static cache has room for the whole generation from the start and is written in place, so every decode step has the
same shapes and addresses: what a compiler or a graph capture needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, StaticCache


def prefill(model: PreTrainedModel, prompt: Tensor, cache: StaticCache) -> Tensor:
    """Fill the cache with the prompt and return the first new token.

    Args:
        prompt: Token ids, [batch, prompt_tokens], on the model's device.
        cache: Empty, with room for the prompt and what will follow.

    Returns:
        Greedy next token, [batch, 1].
    """
    logits = model(input_ids=prompt, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
    return _greedy(logits)


def decode_step(model: PreTrainedModel, token: Tensor, cache: StaticCache) -> Tensor:
    """One more token: [batch, 1] in, [batch, 1] out. The cache knows the position and grows by one in place."""
    return _greedy(model(input_ids=token, past_key_values=cache, use_cache=True).logits)


def _greedy(logits: Tensor) -> Tensor:
    return logits[:, -1].argmax(dim=-1, keepdim=True)


def cache_length(tokens: int) -> int:
    """Room for `tokens`, rounded up to 128, so that near shapes share one compilation."""
    return -(-tokens // 128) * 128


def new_cache(model: PreTrainedModel, length: int) -> StaticCache:
    """An empty static cache; its tensors are made by the first prefill."""
    from transformers import StaticCache

    return StaticCache(config=model.config, max_cache_len=length)
