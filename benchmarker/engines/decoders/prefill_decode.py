"""Generation as two plain functions over a fixed KV cache: prefill once, then the same decode step again and again.

Every decode step has the same shapes and addresses, as compilers and graph captures require. `LibraryStep` runs the
functions as they are, which the engine cuda_graph captures. It is also the specification of the faster steps of the
engines compile (compile.py) and native (native.py).
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from benchmarker.engines.decoders.attention import (
    attention_backend,
    decode_attention_backend,
    prompt_attention_backend,
)
from benchmarker.engines.decoders.torch_engine import CHUNK, linear_kernels
from benchmarker.schema.model import KernelUse, ProductChoice, attention_use

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from benchmarker.engines.decoders.static_cache import SequenceLengths, StaticKVCache

PART = 128
"""Vocabulary entries in one part of the two-step argmax."""


def prefill(model: PreTrainedModel, prompt: Tensor, cache: StaticKVCache) -> Tensor:
    """Put the prompt into the cache and return the logits after its last token, [batch, 1, vocabulary].

    Args:
        prompt: Token ids, [batch, prompt_tokens], on the model's device.
        cache: At the position at which the prompt belongs, with room for it.
    """
    logits: Tensor = model(input_ids=prompt, past_key_values=cache.layers, use_cache=True, logits_to_keep=1).logits
    assert cache.position.on_host is not None
    cache.go_to(cache.position.on_host + prompt.shape[1])
    return logits


def fill(model: PreTrainedModel, context: Tensor, cache: StaticKVCache) -> None:
    """Fill the cache with tokens from its beginning, in chunks."""
    cache.go_to(0)
    for chunk in context.split(CHUNK, dim=1):
        prefill(model, chunk, cache)


def decode_step(model: PreTrainedModel, token: Tensor, cache: StaticKVCache) -> tuple[Tensor, Tensor]:
    """Run one decode step and advance the cache by one token.

    Args:
        token: [batch, 1].

    Returns:
        Greedy next token, [batch, 1], and its logits, [batch, 1, vocabulary].
    """
    with decode_attention_backend(model):
        return attending_step(model, token, cache)


def attending_step(model: PreTrainedModel, token: Tensor, cache: StaticKVCache) -> tuple[Tensor, Tensor]:
    """Run `decode_step` for a model whose attention reads the static cache already. A compiler gets this function."""
    logits = model(
        input_ids=token, past_key_values=cache.layers, use_cache=True, sequence_lengths=cache.sequence_lengths
    ).logits
    cache.advance()
    return greedy(logits), logits


def greedy(logits: Tensor) -> Tensor:
    """Return the likeliest token after the last position: [batch, positions, vocabulary] to [batch, 1].

    The first of equals wins. The argmax is taken over parts and then among them, which keeps a whole GPU busy.
    """
    last = logits[:, -1]
    if last.shape[1] % PART:
        return last.argmax(dim=-1, keepdim=True)
    parts = last.view(len(last), -1, PART)
    part = parts.amax(dim=2).argmax(dim=1, keepdim=True)
    best = parts.gather(1, part.unsqueeze(2).expand(-1, -1, PART)).squeeze(1)
    return part * PART + best.argmax(dim=1, keepdim=True)


def log_probabilities(logits: Tensor) -> Tensor:
    """Return log-probabilities after the last position of the first sequence, [vocabulary], float32, on the CPU."""
    return logits[0, -1].float().log_softmax(dim=-1).cpu()


def cache_length(tokens: int) -> int:
    """Round a number of tokens up to a multiple of 128, so that similar shapes share one compilation."""
    return -(-tokens // 128) * 128


class LibraryStep:
    """The decode step as the libraries wrote it, and the base of the compiled steps."""

    name = "cuda_graph"

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model

    def run(self, token: Tensor, cache: StaticKVCache) -> tuple[Tensor, Tensor]:
        """Run one decode step; see `decode_step`."""
        return decode_step(self.model, token, cache)

    def run_prompt(
        self, ids: Tensor, cache: StaticKVCache, visible: SequenceLengths, last: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Put a padded prompt into the cache, for a captured prefill.

        Args:
            ids: [batch, padded tokens].
            visible: Filled part of the cache, the padded prompt included.
            last: [1]: index of the last real token.

        Returns:
            Greedy next token, [batch, 1], and its logits, [batch, 1, vocabulary].
        """
        with prompt_attention_backend(self.model):
            logits: Tensor = self.model(
                input_ids=ids,
                past_key_values=cache.layers,
                use_cache=True,
                sequence_lengths=visible,
                logits_to_keep=last,
            ).logits
        return greedy(logits), logits

    def prepare(self, batch: int, length: int) -> None:
        """Get ready for a new shape, before its cache is allocated."""

    def forget(self) -> None:
        """Drop everything that belongs to the previous shape."""

    def tuning(self) -> AbstractContextManager[None]:
        """Surround code that compiles or runs for the first time."""
        return nullcontext()

    def timed(self) -> AbstractContextManager[None]:
        return nullcontext()

    def explained(self) -> AbstractContextManager[None]:
        """Turn errors of set-up and steps into UnsupportedError."""
        return nullcontext()

    def check(self) -> None:
        """Raise UnsupportedError if the timed steps were not of this kind."""

    def attention(self, keys: Tensor) -> str:
        """Return the attention kernels by their name in records, for cached keys of one layer."""
        return attention_backend(keys)

    def linear_kernels(self) -> tuple[KernelUse, ...]:
        return linear_kernels(self.model, compiled=False)

    def kernels_used(self, attention: str) -> tuple[KernelUse, ...]:
        return (*self.linear_kernels(), attention_use(attention))

    def products(self, rows: Collection[int]) -> tuple[ProductChoice, ...]:  # noqa: ARG002
        """Return the measured choices of GEMM kernels for these numbers of rows."""
        return ()

    def facts(self, *, has_shape: bool) -> dict[str, Any]:  # noqa: ARG002
        """Return fields of EngineFacts that this kind of step adds."""
        return {}
