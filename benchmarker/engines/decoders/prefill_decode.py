"""Generation as two plain functions over a fixed KV cache: prefill once, then the same decode step again and again.

Every decode step has the same shapes and addresses, which is what a compiler or a graph capture needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarker.engines.decoders.attention import decode_attention_backend

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from benchmarker.engines.decoders.static_cache import StaticKVCache

CHUNK = 4096
"""Tokens that are put into the cache at once: activations of more would outgrow the cache itself."""
PART = 128
"""Tokens of a part of the vocabulary: the likeliest token of each part is found first, then that of all."""


def prefill(model: PreTrainedModel, prompt: Tensor, cache: StaticKVCache) -> Tensor:
    """Put the prompt into the cache and return the first new token.

    Args:
        prompt: Token ids, [batch, prompt_tokens], on the model's device.
        cache: At the position where the prompt belongs, with room for it and what will follow.

    Returns:
        Greedy next token, [batch, 1].
    """
    return greedy(prefill_logits(model, prompt, cache))


def prefill_logits(model: PreTrainedModel, prompt: Tensor, cache: StaticKVCache) -> Tensor:
    """Put the prompt into the cache and return the logits after its last token, [batch, 1, vocabulary].

    Args:
        prompt: Token ids, [batch, prompt_tokens], on the model's device.
        cache: At the position where the prompt belongs, with room for it.
    """
    logits: Tensor = model(input_ids=prompt, past_key_values=cache.layers, use_cache=True, logits_to_keep=1).logits
    assert cache.position.on_host is not None
    cache.go_to(cache.position.on_host + prompt.shape[1])
    return logits


def fill(model: PreTrainedModel, context: Tensor, cache: StaticKVCache) -> None:
    """Put tokens into the cache from its beginning, some at a time. What comes of them is not wanted."""
    cache.go_to(0)
    for chunk in context.split(CHUNK, dim=1):
        prefill(model, chunk, cache)


def decode_step(model: PreTrainedModel, token: Tensor, cache: StaticKVCache) -> tuple[Tensor, Tensor]:
    """One more token; the cache is one token longer afterwards.

    Args:
        token: [batch, 1].

    Returns:
        The next token, [batch, 1], and the logits that it is the largest of, [batch, 1, vocabulary].
    """
    with decode_attention_backend(model):
        return attending_step(model, token, cache)


def attending_step(model: PreTrainedModel, token: Tensor, cache: StaticKVCache) -> tuple[Tensor, Tensor]:
    """One decode step of a model whose attention reads the static cache already; see `decode_step`.

    This is what a compiler is given.
    """
    logits = model(
        input_ids=token, past_key_values=cache.layers, use_cache=True, sequence_lengths=cache.sequence_lengths
    ).logits
    cache.advance()
    return greedy(logits), logits


def greedy(logits: Tensor) -> Tensor:
    """The likeliest token after the last position: [batch, positions, vocabulary] to [batch, 1].

    Of equals the first. In two steps, which keep a whole GPU busy where one would keep a part of it.
    """
    last = logits[:, -1]
    if last.shape[1] % PART:
        return last.argmax(dim=-1, keepdim=True)
    parts = last.view(len(last), -1, PART)
    part = parts.amax(dim=2).argmax(dim=1, keepdim=True)
    best = parts.gather(1, part.unsqueeze(2).expand(-1, -1, PART)).squeeze(1)
    return part * PART + best.argmax(dim=1, keepdim=True)


def log_probabilities(logits: Tensor) -> Tensor:
    """Log-probabilities after the last position of one sequence, [vocabulary], float32, on the CPU.

    Args:
        logits: [1, positions, vocabulary].
    """
    return logits[0, -1].float().log_softmax(dim=-1).cpu()


def cache_length(tokens: int) -> int:
    """Room for `tokens`, rounded up to 128, so that near shapes share one compilation."""
    return -(-tokens // 128) * 128
