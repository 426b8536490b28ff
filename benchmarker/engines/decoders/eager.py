"""`model.generate`, as users call it: a growing KV cache, one Python call per layer and token, nothing compiled.

`generate` copies every token to the host and hands it to a streamer, so that a clock reading in the streamer is the
moment at which the token is known. `generate` waits for the device once per token anyway, to check whether it is done;
the streamer adds one copy of a few bytes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from benchmarker.engines.base import TokenIds, UnsupportedError
from benchmarker.engines.decoders.kv_cache import KVForm, quantized_cache, stored_words, value_bytes
from benchmarker.engines.decoders.linear_kernels import linear_kernels
from benchmarker.engines.decoders.prefill_decode import CHUNK
from benchmarker.engines.decoders.torch_engine import TorchDecoder, TorchScorer
from benchmarker.hardware.device import Device
from benchmarker.measure.clock import Generation, TokenClock, time_streamed
from benchmarker.schema.model import EngineFacts

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import Cache, DynamicCache, PreTrainedModel


class EagerDecoder(TorchDecoder):
    """`model.generate` with a KV cache that grows."""

    def __init__(self, model: PreTrainedModel, device: Device, *, kv_cache: KVForm | None = None) -> None:
        super().__init__(model, device)
        self.kv_cache: KVForm | None = kv_cache
        if kv_cache is not None:
            # Fails before anything is timed if this model cannot have such a cache.
            quantized_cache(model, kv_cache)
            self.kv_value_bytes = value_bytes(kv_cache, model.dtype.itemsize)
        self._cache: DynamicCache | None = None
        self._cached_context: Tensor | None = None
        self._last: tuple[Tensor, Tensor | None] | None = None

    @property
    def scorer(self) -> EagerScorer:
        return EagerScorer(self)

    def generate(
        self,
        prompt_ids: Sequence[TokenIds] | Tensor,
        new_tokens: int,
        *,
        context: Sequence[TokenIds] | Tensor | None = None,
    ) -> Generation:
        import torch

        prompt, context = self.tensor(prompt_ids), self.context_tensor(context)
        arguments, ids = greedy(new_tokens) | self.cache_argument(context), prompt
        if context is not None:
            ids = torch.cat([context, prompt], dim=1)
        mask = torch.ones_like(ids)

        def call(clock: TokenClock) -> Tensor:
            output: Tensor = self.model.generate(ids, attention_mask=mask, streamer=clock, **arguments)  # type: ignore[operator]
            return output

        generation = time_streamed(call, self.device, prompt_tokens=ids.shape[1])
        self._last = prompt, context
        return generation

    def stream(self, prompt: Tensor, new_tokens: int, stop: frozenset[int]) -> Iterator[list[int]]:
        """Yield tokens of `generate`, which runs in a thread of its own."""
        import torch

        streamer = TokenQueue()
        arguments = greedy(new_tokens) | self.cache_argument() | {"eos_token_id": sorted(stop) or None}

        def run() -> None:
            try:
                self.model.generate(  # type: ignore[operator]
                    prompt,
                    attention_mask=torch.ones_like(prompt),
                    streamer=streamer,
                    stopping_criteria=[streamer.is_abandoned],
                    **arguments,
                )
            except BaseException as error:  # noqa: BLE001
                # Raised again by the reader of the tokens.
                streamer.items.put(error)
            else:
                streamer.items.put(None)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield from streamer.pieces(stop)
        finally:
            streamer.abandoned = True
            thread.join()

    def cache_argument(self, context: Tensor | None = None) -> dict[str, Any]:
        """The cache as an argument of `generate`, filled with the context; empty if `generate` makes its own."""
        if self.kv_cache is not None:
            cache = quantized_cache(self.model, self.kv_cache)
            if context is not None:
                # Packed tokens cannot be cut off again, so each generation starts with a new cache.
                self._fill(cache, context)
            return {"past_key_values": cache}
        return {} if context is None else {"past_key_values": self._filled(context)}

    def _fill(self, cache: Cache, context: Tensor) -> None:
        import torch

        with torch.no_grad():
            for chunk in context.split(CHUNK, dim=1):
                self.model(input_ids=chunk, past_key_values=cache, use_cache=True, logits_to_keep=1)

    def _filled(self, context: Tensor) -> DynamicCache:
        from transformers import DynamicCache

        if self._cache is None or self._cached_context is not context:
            self._cache = None  # frees its memory before the new one is allocated
            self._cache = DynamicCache(config=self.model.config)
            self._cached_context = context
            self._fill(self._cache, context)
        parts: list[Any] = self._cache.layers
        for layer in parts:
            if type(layer).__name__ != "DynamicLayer":
                raise UnsupportedError(f"a depth in a cache of {type(layer).__name__} is not written yet")
            layer.keys = layer.keys[:, :, : context.shape[1]]
            layer.values = layer.values[:, :, : context.shape[1]]
        return self._cache

    def kernels_per_token(self, count: Callable[[Callable[[], object]], int]) -> float | None:
        """Return half the kernels that two more tokens add, so that prefill cancels out."""
        if self._last is None:
            return None
        prompt, context = self._last

        def kernels(tokens: int) -> int:
            return count(lambda: self.generate(prompt, tokens, context=context))

        return (kernels(4) - kernels(2)) / 2

    def facts(self) -> EngineFacts:
        return EngineFacts(
            name="eager",
            tokens_read="each",
            kv_cache="quantized" if self.kv_cache else "dynamic",
            kv_cache_stored=stored_words(self.kv_cache) if self.kv_cache else None,
            kernels_used=linear_kernels(self.model, compiled=False),
        )


class EagerScorer(TorchScorer):
    """Predictions of `generate`, forced to take the tokens of a given text."""

    def __init__(self, decoder: EagerDecoder) -> None:
        super().__init__(decoder)
        self._eager = decoder

    @property
    def is_library_step(self) -> bool:
        return self._eager.kv_cache is None and not self.has_own_kernels

    def log_probabilities(self, ids: Tensor, *, prompt_tokens: int = 1) -> Tensor:
        import torch

        forced = ForcedTokens(ids[0])
        self._eager.model.generate(  # type: ignore[operator]
            ids[:, :prompt_tokens],
            attention_mask=torch.ones_like(ids[:, :prompt_tokens]),
            logits_processor=[forced],
            **greedy(ids.shape[1] - prompt_tokens + 1),
            **self._eager.cache_argument(),
        )
        return torch.stack(forced.log_probabilities)


class ForcedTokens:
    """A logits processor that keeps the log-probabilities of each position and selects the given token."""

    def __init__(self, ids: Tensor) -> None:
        """Args:
        ids: [positions].
        """
        self._ids = ids
        self.log_probabilities: list[Tensor] = []
        """float32, [vocabulary] each, on the CPU."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        import torch

        self.log_probabilities.append(scores[0].float().log_softmax(dim=-1).cpu())
        following = self._ids[min(input_ids.shape[1], len(self._ids) - 1)]
        return torch.full_like(scores, float("-inf")).index_fill(1, following.view(1), 0.0)


class TokenQueue:
    """A streamer that passes each token to another thread."""

    def __init__(self) -> None:
        self.items: SimpleQueue[list[int] | BaseException | None] = SimpleQueue()
        self.abandoned = False
        """True once nobody reads tokens any more."""
        self._is_prompt = True

    def put(self, value: Tensor) -> None:
        """Receive the prompt first, then each token."""
        if not self._is_prompt:
            self.items.put(value.flatten().tolist())
        self._is_prompt = False

    def end(self) -> None: ...

    def is_abandoned(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:  # noqa: ARG002
        """Stopping criterion of `generate`, [batch] of booleans."""
        return input_ids.new_full((len(input_ids),), self.abandoned).bool()

    def pieces(self, stop: frozenset[int]) -> Iterator[list[int]]:
        """Yield new tokens as `generate` passes them on, without stop tokens. An error of `generate` is raised here."""
        while (item := self.items.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            tokens = [token for token in item if token not in stop]
            if tokens:
                yield tokens


def greedy(new_tokens: int) -> dict[str, Any]:
    """Return arguments of `generate` for exactly that many greedy tokens.

    Qwen3's own generation config samples (temperature 0.6, top-k 20): a sort of 151,936 logits per token, and lengths
    that differ from run to run. As an argument, `eos_token_id=None` switches the end-of-text token off; in a
    GenerationConfig it would fall back to the model's own.
    """
    return {
        "max_new_tokens": new_tokens,
        "eos_token_id": None,
        "pad_token_id": 0,
        "do_sample": False,
        "temperature": None,
        "top_p": None,
        "top_k": None,
        "num_beams": 1,
        "use_cache": True,
        # A static cache would make transformers compile the model; this engine is eager.
        "disable_compile": True,
    }
